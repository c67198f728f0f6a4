//! Ranks by Zipf's law: the one of rank n comes 1/n as often as the first.

pub(crate) struct Zipf {
    /// The sum of all shares up to each rank.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Of that many ranks.
    pub(crate) fn new(ranks: u64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=ranks).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self {
            cumulative: cumulative.collect(),
        }
    }

    /// The rank, counted from 0, of a number from 0 to 1.
    pub(crate) fn rank(&self, uniform: f64) -> u64 {
        let all = self.cumulative.last().copied().unwrap_or(0.0);
        let below = self.cumulative.partition_point(|sum| *sum <= uniform * all);
        below.min(self.cumulative.len().saturating_sub(1)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_by_their_shares() {
        let zipf = Zipf::new(1_000);
        let mut counts = vec![0_u32; 1_000];
        const DRAWS: u32 = 1_000_000;
        for draw in 0..DRAWS {
            counts[zipf.rank(f64::from(draw) / f64::from(DRAWS)) as usize] += 1;
        }
        let harmonic: f64 = (1..=1_000).map(|rank| 1.0 / f64::from(rank)).sum();
        for rank in [1_u32, 2, 3, 10, 100, 1_000] {
            let expected = f64::from(DRAWS) / harmonic / f64::from(rank);
            let found = f64::from(counts[rank as usize - 1]);
            assert!((found - expected).abs() <= 1.5, "rank {rank}: {found}, not {expected}");
        }
    }

    #[test]
    fn every_number_has_a_rank() {
        let zipf = Zipf::new(7);
        assert_eq!((zipf.rank(0.0), zipf.rank(0.999_999), zipf.rank(1.0)), (0, 6, 6));
        assert_eq!(Zipf::new(1).rank(0.5), 0);
    }
}
