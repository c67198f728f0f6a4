//! Chooses merges of tables, and computes the space that the next one needs. Pure: computed from the sizes and key ranges of the tables.
//!
//! lsm-tree does not report in advance which tables it will merge. So its choice is repeated here, by its rules: the level that
//! is fullest for its size goes first; all of level 0, or the tables of another level whose merge writes least.

use lsm_tree::compaction::Leveled;

/// Levels that a tree has.
const LEVELS: usize = 7;

/// The level below which there is none.
pub(super) const LAST_LEVEL: u8 = 6;

/// The ratio of the size of a level to that of the one above.
const LEVEL_RATIO: u8 = 10;

/// Maximum number of tables of the lower level in a merge: lsm-tree considers no larger one.
const MAX_MERGE_TABLES: u64 = 50;

/// The shape of merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MergeShape {
    /// Tables of level 0 that are merged at once. The level below holds about as much, and each further one ten times as much.
    pub(super) level0: u8,
    /// The size of the tables that merges make, in bytes.
    pub(super) table_bytes: u64,
}

impl MergeShape {
    /// Tables of level 0 that are merged at once where there is space, and where nothing waits for time either.
    const IDLE_RUNS: u8 = 8;

    /// Tables of level 0 that are merged at once while rows arrive.
    pub(super) const BUSY_RUNS: u8 = 16;

    /// The shape when there is space: a merge writes twice what is new.
    pub(super) fn ample(memtable_bytes: u64) -> Self {
        Self {
            level0: Self::IDLE_RUNS,
            table_bytes: memtable_bytes,
        }
    }

    /// The same while rows arrive. The more tables of level 0 a merge takes, the less is written for each row, and the more a read looks
    /// into until then.
    pub(super) fn busy(memtable_bytes: u64) -> Self {
        Self {
            level0: Self::BUSY_RUNS,
            table_bytes: memtable_bytes,
        }
    }

    /// The shape when space is short: many merges of a few tables, each needing little additional space.
    pub(super) fn tight(memtable_bytes: u64) -> Self {
        Self {
            level0: 2,
            table_bytes: memtable_bytes / 4,
        }
    }

    /// The shape that gives space back when there is none for a merge of everything at once: in the end only the last level holds tables.
    pub(super) fn down(table_bytes: u64) -> Self {
        Self { level0: 0, table_bytes }
    }

    /// The shape that empties level 0 although the levels below cannot be merged.
    pub(super) fn level0(table_bytes: u64) -> Self {
        Self { level0: 1, table_bytes }
    }

    /// The same as a strategy of lsm-tree.
    pub(super) fn strategy(self) -> Leveled {
        Leveled::default()
            .with_table_target_size(self.table_bytes)
            .with_l0_threshold(self.level0)
            .with_level_ratio_policy(vec![f32::from(LEVEL_RATIO)])
    }

    /// The size of the n-th level below level 0 that is in use.
    fn target(self, nth: usize) -> u64 {
        let base = self.table_bytes * u64::from(self.level0);
        (1..nth).fold(base, |size, _| size.saturating_mul(u64::from(LEVEL_RATIO)))
    }
}

/// A table: its first and last key, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableRange {
    pub(super) first: Vec<u8>,
    pub(super) last: Vec<u8>,
    pub(super) bytes: u64,
}

/// The tables of each level. Those of level 0 may overlap, those of another level are in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Levels(pub(super) [Vec<TableRange>; LEVELS]);

fn sum(tables: &[TableRange]) -> u64 {
    tables.iter().map(|table| table.bytes).sum()
}

impl Levels {
    /// Additional bytes that merging all of level 0 needs.
    pub(super) fn level0_need(&self, shape: MergeShape) -> u64 {
        let level0 = &self.0[0];
        let (Some(first), Some(last)) = (
            level0.iter().map(|table| &table.first).min(),
            level0.iter().map(|table| &table.last).max(),
        ) else {
            return 0;
        };
        let below = &self.0[self.below(shape)];
        let overlapping = below
            .iter()
            .filter(|table| table.first <= *last && table.last >= *first);
        sum(level0) + overlapping.map(|table| table.bytes).sum::<u64>()
    }

    /// Bytes of all tables.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|tables| sum(tables)).sum()
    }

    /// Bytes of the tables of the last level.
    pub(super) fn last_bytes(&self) -> u64 {
        sum(&self.0[LEVELS - 1])
    }

    /// Returns true if there are tables that are not in the last level.
    pub(super) fn is_spread(&self) -> bool {
        self.0[..LEVELS - 1].iter().any(|level| !level.is_empty())
    }

    /// Bytes that any one of the merges to come needs at most, as far as can be seen.
    pub(super) fn most_need(&self, shape: MergeShape) -> u64 {
        let others = (1..LEVELS - 1).filter_map(|level| self.cheapest(level, shape));
        others.fold(self.level0_need(shape), u64::max)
    }

    /// The level that level 0 goes to: the first that is in use, or the one above it when all are full.
    fn below(&self, shape: MergeShape) -> usize {
        let Some(first) = (1..LEVELS).find(|level| !self.0[*level].is_empty()) else {
            return LEVELS - 1;
        };
        let mut used = (first..LEVELS).filter(|level| !self.0[*level].is_empty());
        let all_full = used.all(|level| sum(&self.0[level]) > shape.target(level + 1 - first));
        if all_full && first > 1 { first - 1 } else { first }
    }

    /// Returns true if no level above this one has tables.
    pub(super) fn is_highest(&self, level: u8) -> bool {
        self.0[..usize::from(level)].iter().all(Vec::is_empty)
    }

    /// The lowest level above the last one that has tables, and the bytes that merging both levels whole needs.
    pub(super) fn lowest(&self) -> Option<(u8, u64)> {
        let level = (0..LAST_LEVEL)
            .rev()
            .find(|level| !self.0[usize::from(*level)].is_empty())?;
        Some((
            level,
            sum(&self.0[usize::from(level)]) + sum(&self.0[usize::from(LAST_LEVEL)]),
        ))
    }

    /// Additional bytes that the next merge needs; `None` if there is nothing to merge, or lsm-tree finds no merge of the fullest level.
    pub(super) fn need(&self, shape: MergeShape) -> Option<u64> {
        match self.fullest(shape)? {
            0 => Some(self.level0_need(shape)),
            level => self.cheapest(level, shape),
        }
    }

    /// The level that is fullest for its size, if one is too full.
    pub(super) fn fullest(&self, shape: MergeShape) -> Option<usize> {
        let shift = self.below(shape) - 1;
        let count = self.0[0].len();
        let mut fullest = (0.0, 0);
        if count > 0 && count >= usize::from(shape.level0) {
            fullest = (count as f64 / f64::from(shape.level0), 0);
        }
        for level in 1..LEVELS - 1 {
            let (bytes, target) = (sum(&self.0[level]), shape.target(level.saturating_sub(shift).max(1)));
            if bytes <= target {
                continue;
            }
            let score = if self.0[level + 1].is_empty() {
                99.99
            } else {
                bytes as f64 / target as f64
            };
            // Of two that are as full lsm-tree takes the lower one.
            if score >= fullest.0 {
                fullest = (score, level);
            }
        }
        match fullest {
            (score, _) if score < 1.0 => None,
            (_, level) => Some(level),
        }
    }

    /// The bytes that the cheapest merge of tables of this level into the next one reads; `None` if lsm-tree finds none.
    fn cheapest(&self, level: usize, shape: MergeShape) -> Option<u64> {
        let (upper, lower) = (&self.0[level], &self.0[level + 1]);
        let overlaps = |table: &TableRange| {
            let from = lower.partition_point(|other| other.last < table.first);
            lower.get(from).is_some_and(|other| other.first <= table.last)
        };
        if upper.iter().any(|table| !overlaps(table)) {
            return Some(0); // it is moved
        }
        let mut before = vec![0; upper.len() + 1];
        for (at, table) in upper.iter().enumerate() {
            before[at + 1] = before[at] + table.bytes;
        }
        let mut cheapest = None;
        for from in 0..lower.len() {
            let mut bytes = 0;
            for table in &lower[from..] {
                bytes += table.bytes;
                if bytes > MAX_MERGE_TABLES * shape.table_bytes || cheapest.is_some_and(|cheapest| bytes >= cheapest) {
                    break;
                }
                let begin = upper.partition_point(|other| other.first < lower[from].first);
                let end = upper.partition_point(|other| other.last <= table.last);
                if end > begin {
                    let whole = bytes + before[end] - before[begin];
                    cheapest = Some(cheapest.map_or(whole, |cheapest: u64| cheapest.min(whole)));
                }
            }
        }
        cheapest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn shape() -> MergeShape {
        MergeShape::ample(16 * MIB)
    }

    fn table(first: u8, last: u8, mib: u64) -> TableRange {
        TableRange {
            first: vec![first],
            last: vec![last],
            bytes: mib * MIB,
        }
    }

    fn levels(filled: &[(usize, &[TableRange])]) -> Levels {
        let mut levels = Levels::default();
        for (level, tables) in filled {
            levels.0[*level] = tables.to_vec();
        }
        levels
    }

    #[test]
    fn level_0_goes_to_the_first_level_in_use_and_needs_what_overlaps() {
        let runs = vec![table(10, 200, 16); 8];
        assert_eq!(levels(&[(0, &runs[..7])]).need(shape()), None);
        assert_eq!(levels(&[(0, &runs)]).need(shape()), Some(128 * MIB));
        let below = [table(0, 5, 16), table(6, 100, 16), table(150, 255, 16)];
        assert_eq!(levels(&[(0, &runs), (6, &below)]).need(shape()), Some(160 * MIB));
        // A last level that is too large for its place gets one above it, which is empty.
        let large: Vec<TableRange> = (0..20).map(|at| table(at * 10, at * 10 + 9, 16)).collect();
        assert_eq!(levels(&[(0, &runs), (6, &large)]).need(shape()), Some(128 * MIB));
    }

    #[test]
    fn busy_rows_leave_more_tables_in_level_0() {
        let busy = MergeShape::busy(16 * MIB);
        let runs = vec![table(10, 200, 16); 16];
        assert_eq!(levels(&[(0, &runs[..15])]).need(busy), None);
        assert_eq!(levels(&[(0, &runs)]).need(busy), Some(256 * MIB));
        assert_eq!(levels(&[(0, &runs[..8])]).need(shape()), Some(128 * MIB));
    }

    #[test]
    fn level_that_is_too_large_gives_what_costs_least() {
        // 160 MiB where the target is 128 MiB, above 20 tables; each table overlaps few of them.
        let upper: Vec<TableRange> = (0..10).map(|at| table(at * 20, at * 20 + 15, 16)).collect();
        let lower: Vec<TableRange> = (0..20).map(|at| table(at * 10, at * 10 + 9, 16)).collect();
        assert_eq!(levels(&[(5, &upper), (6, &lower)]).need(shape()), Some(48 * MIB));
        // One that overlaps nothing is moved.
        let mut moved = upper.clone();
        moved.push(table(210, 220, 16));
        assert_eq!(levels(&[(5, &moved), (6, &lower)]).need(shape()), Some(0));
    }

    #[test]
    fn pushed_down_everything_is_in_the_last_level() {
        let down = MergeShape::down(4 * MIB);
        let below = [table(0, 99, 4), table(100, 199, 4)];
        assert_eq!(levels(&[(6, &below)]).need(down), None);
        let spread = levels(&[(5, &[table(20, 30, 1)]), (6, &below)]);
        assert!(spread.is_spread());
        assert_eq!(spread.need(down), Some(5 * MIB));
        assert_eq!(levels(&[(0, &[table(20, 120, 1)]), (6, &below)]).need(down), Some(MIB));
    }

    #[test]
    fn table_that_goes_beyond_the_level_below_is_stuck_and_merged_with_all_of_it() {
        let (down, below) = (MergeShape::down(4 * MIB), [table(0, 99, 4), table(100, 199, 4)]);
        let stuck = levels(&[(5, &[table(20, 240, 1)]), (6, &below)]);
        assert_eq!((stuck.fullest(down), stuck.need(down)), (Some(5), None));
        assert_eq!(stuck.lowest(), Some((5, 9 * MIB)));
        assert_eq!(levels(&[(6, &below)]).lowest(), None);
        // Tables above that level are merged into it.
        let above = levels(&[(0, &[table(20, 30, 1)]), (5, &[table(20, 240, 1)]), (6, &below)]);
        assert_eq!((above.fullest(down), above.need(down)), (Some(5), None));
        assert_eq!(above.need(MergeShape::level0(4 * MIB)), Some(2 * MIB));
    }

    #[test]
    fn short_of_space_merges_are_small() {
        let runs = vec![table(10, 200, 4); 2];
        let below: Vec<TableRange> = (0..2).map(|at| table(at * 100, at * 100 + 99, 1)).collect();
        let need = levels(&[(0, &runs), (6, &below)]).need(MergeShape::tight(4 * MIB));
        assert_eq!(need, Some(10 * MIB));
        assert_eq!(
            levels(&[(0, &runs[..1]), (6, &below)]).need(MergeShape::tight(4 * MIB)),
            None
        );
    }
}
