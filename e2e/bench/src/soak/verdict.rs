//! Result of the minutes after the warm-up: which figures are flat, and which grow.

use std::fmt;

use super::MinuteRow;
use super::trend::{GrowthBound, Trend};

/// Memtables fill and are flushed, and caches follow what is read: neither takes more than this from one minute to another.
const MEMORY_BOUND: GrowthBound = GrowthBound {
    part: 0.10,
    noise: 24.0,
};
/// A segment of the log is allocated as a whole, and tables that a compaction replaces stay until it ends.
const DISK_BOUND: GrowthBound = GrowthBound {
    part: 0.15,
    noise: 96.0,
};
/// A p99 depends on syncs of the disk, which others use, too. A latency that grows with the stored data doubles it sooner or later.
const P99_BOUND: GrowthBound = GrowthBound {
    part: 0.50,
    noise: 10.0,
};

/// The least part of the requests of a minute that is served, and the minutes in ten in which it may be less.
const MIN_SERVED_FRACTION: f64 = 0.95;

/// The trend of each figure.
#[derive(Debug)]
pub(super) struct SoakVerdict {
    minutes: usize,
    /// Minutes in which the load got less than it asks for.
    short: usize,
    figures: Vec<(&'static str, &'static str, Trend)>,
}

impl SoakVerdict {
    /// Judges the minutes after the warm-up, for a load of `rate` requests a second.
    pub(super) fn of(rows: &[MinuteRow], rate: u32) -> Self {
        type SoakFigure = (&'static str, &'static str, GrowthBound, fn(&MinuteRow) -> f64);
        let figures: [SoakFigure; 4] = [
            ("memory", "MiB", MEMORY_BOUND, |row| row.memory),
            ("disk", "MiB", DISK_BOUND, |row| row.disk),
            ("write p99", "ms", P99_BOUND, |row| row.write_p99),
            ("list p99", "ms", P99_BOUND, |row| row.list_p99),
        ];
        let trend = |(name, unit, bound, figure): SoakFigure| {
            let values: Vec<f64> = rows.iter().map(figure).collect();
            (name, unit, Trend::of(&values, bound))
        };
        Self {
            minutes: rows.len(),
            short: rows
                .iter()
                .filter(|row| (row.requests as f64) < MIN_SERVED_FRACTION * 60.0 * f64::from(rate))
                .count(),
            figures: figures.map(trend).into(),
        }
    }

    /// True if no figure grows, and the load got what it asks for in nine minutes of ten.
    pub(super) fn is_flat(&self) -> bool {
        !self.is_short() && self.figures.iter().all(|(_, _, trend)| trend.is_flat())
    }

    fn is_short(&self) -> bool {
        self.short * 10 > self.minutes
    }
}

impl fmt::Display for SoakVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            minutes,
            short,
            figures,
        } = self;
        for (name, unit, trend) in figures {
            let Trend {
                median,
                growth,
                allowed,
                score,
            } = trend;
            let state = if trend.is_flat() { "flat" } else { "GROWS" };
            writeln!(
                f,
                "{name:<9} {state:<5} {growth:+.1} {unit} in {minutes} minutes (at most {allowed:.1} at a median of {median:.1}; trend {score:+.1} σ)"
            )?;
        }
        writeln!(f, "minutes with less than 95 % of the requests: {short} of {minutes}")?;
        if self.is_short() {
            return f.write_str("verdict: NOT flat, requests wait");
        }
        let grown: Vec<_> = figures.iter().filter(|(_, _, trend)| !trend.is_flat()).collect();
        if grown.is_empty() {
            return f.write_str("verdict: memory, disk and latency are flat");
        }
        let names: Vec<_> = grown.iter().map(|(name, _, _)| *name).collect();
        write!(f, "verdict: NOT flat, growth of {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(memory: impl Fn(f64) -> f64, disk: impl Fn(f64) -> f64, p99: impl Fn(f64) -> f64) -> Vec<MinuteRow> {
        let row = |minute: u32| {
            let minute = f64::from(minute);
            MinuteRow {
                requests: 24_000,
                events: 30_000,
                write_p50: 1.0,
                write_p99: p99(minute),
                list_p99: 12.0,
                memory: memory(minute),
                disk: disk(minute),
            }
        };
        (0..20).map(row).collect()
    }

    #[test]
    fn steady_and_noisy_rows_are_flat() {
        let saw = |minute: f64| 150.0 + 20.0 * (minute % 4.0);
        let jumpy = |minute: f64| if minute % 7.0 == 3.0 { 90.0 } else { 15.0 + minute % 3.0 };
        let verdict = SoakVerdict::of(&rows(saw, |minute| 500.0 + 90.0 * (minute % 3.0), jumpy), 400);
        assert!(verdict.is_flat(), "{verdict}");
        let said = verdict.to_string();
        assert!(said.contains("memory    flat"), "{said}");
        assert!(said.ends_with("verdict: memory, disk and latency are flat"), "{said}");
    }

    #[test]
    fn load_that_is_not_served_is_not_flat() {
        let mut rows = rows(|_| 100.0, |_| 100.0, |_| 100.0);
        rows[3].requests = 100;
        rows[9].requests = 100;
        assert!(SoakVerdict::of(&rows, 400).is_flat(), "two minutes of twenty");
        rows[12].requests = 22_700;
        let verdict = SoakVerdict::of(&rows, 400);
        assert!(!verdict.is_flat());
        assert!(
            verdict.to_string().ends_with("verdict: NOT flat, requests wait"),
            "{verdict}"
        );
    }

    #[test]
    fn growth_of_each_figure_is_named() {
        let flat = |_: f64| 100.0;
        for (rows, name) in [
            (rows(|minute| 100.0 + 3.0 * minute, flat, flat), "memory"),
            (rows(flat, |minute| 400.0 + 12.0 * minute, flat), "disk"),
            (rows(flat, flat, |minute| 10.0 + 2.0 * minute), "write p99"),
        ] {
            let verdict = SoakVerdict::of(&rows, 400);
            assert!(!verdict.is_flat(), "{verdict}");
            let said = verdict.to_string();
            assert!(
                said.ends_with(&format!("verdict: NOT flat, growth of {name}")),
                "{said}"
            );
            assert_eq!(said.matches("GROWS").count(), 1, "{said}");
        }
    }
}
