//! The line through a row of figures, one for each minute.
//!
//! A figure grows if both of these questions are answered with yes. Is there a trend at all? More pairs of minutes rise than fall, by
//! more than chance explains (the test of Mann and Kendall). Is it large enough to matter? The line along the median of the slopes
//! between any two minutes (Theil and Sen) rises by more than a bound, or the last third of the minutes is above the first one by more
//! than that, as after a step. A single bad minute changes little in any of that.

/// Values that are needed to tell a trend from chance.
pub(super) const MIN_TREND_VALUES: usize = 5;

/// Chance gives a larger score of Mann and Kendall in one of 20 rows without a trend.
const SIGNIFICANT_SCORE: f64 = 1.645;

/// How much a figure may grow.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrowthBound {
    /// A part of its median.
    pub(super) part: f64,
    /// Plus this much in any case.
    pub(super) noise: f64,
}

/// Trend of a row of figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trend {
    /// The median.
    pub(super) median: f64,
    /// By how much it grew from the first value to the last one, along the line.
    pub(super) growth: f64,
    /// The most that it may grow.
    pub(super) allowed: f64,
    /// The score of Mann and Kendall: standard deviations from a row without a trend.
    pub(super) score: f64,
}

impl Trend {
    pub(super) fn of(values: &[f64], bound: GrowthBound) -> Self {
        let median = median(values.to_vec());
        Self {
            median,
            growth: growth(values).max(step(values)),
            allowed: bound.noise + bound.part * median,
            score: score(values),
        }
    }

    pub(super) fn is_flat(&self) -> bool {
        self.growth <= self.allowed || self.score <= SIGNIFICANT_SCORE
    }
}

/// All pairs, the earlier value first, with their distance in the row.
fn pairs(values: &[f64]) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
    values.iter().enumerate().flat_map(move |(at, one)| {
        let later = values.iter().skip(at + 1).enumerate();
        later.map(move |(further, other)| (*one, *other, (further + 1) as f64))
    })
}

/// By how much figures grew from the first to the last one, along the median of the slopes between any two.
fn growth(values: &[f64]) -> f64 {
    let slopes = pairs(values).map(|(one, other, distance)| (other - one) / distance);
    median(slopes.collect()) * values.len().saturating_sub(1) as f64
}

/// The median of the last third of the values less that of the first one.
fn step(values: &[f64]) -> f64 {
    let third = values.len().div_ceil(3);
    let (first, last) = (&values[..third], &values[values.len() - third..]);
    median(last.to_vec()) - median(first.to_vec())
}

/// Pairs that rise less those that fall, in standard deviations.
fn score(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let sum: f64 = pairs(values).map(|(one, other, _)| sign(other - one)).sum();
    if sum == 0.0 { 0.0 } else { (sum - sign(sum)) / deviation }
}

fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

/// 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: GrowthBound = GrowthBound { part: 0.1, noise: 5.0 };

    fn is_flat(values: &[f64]) -> bool {
        Trend::of(values, BOUND).is_flat()
    }

    #[test]
    fn growth_is_seen_through_noise_and_a_bad_minute_is_none() {
        assert_eq!(growth(&[10.0, 11.0, 12.0, 13.0]), 3.0);
        assert_eq!(growth(&[10.0, 10.0, 500.0, 10.0, 10.0, 10.0]), 0.0);
        assert!(growth(&[10.0, 13.0, 12.0, 15.0, 14.0, 17.0]) > 4.0);
        assert!(growth(&[9.0, 7.0, 8.0, 6.0]) < 0.0);
        assert_eq!((growth(&[]), growth(&[1.0])), (0.0, 0.0));
    }

    #[test]
    fn step_that_stays_is_growth() {
        let late = |minute| if minute < 14 { 100.0 } else { 900.0 };
        let early = |minute| if minute < 6 { 100.0 } else { 900.0 };
        assert!(!is_flat(&(0..20).map(late).collect::<Vec<_>>()));
        assert!(!is_flat(&(0..20).map(early).collect::<Vec<_>>()));
        assert_eq!((step(&[]), step(&[1.0]), step(&[1.0, 1.0, 1.0, 4.0])), (0.0, 0.0, 1.5));
    }

    #[test]
    fn score_counts_pairs() {
        assert_eq!(score(&[7.0; 9]), 0.0);
        // 10 pairs rise: (10 - 1) / sqrt(5 * 4 * 15 / 18).
        assert!((score(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 2.204).abs() < 0.001);
        assert!(score(&[5.0, 4.0, 3.0, 2.0, 1.0]) < -2.2);
        assert!(
            score(&[1.0, 2.0, 3.0, 4.0, 5.0]) > SIGNIFICANT_SCORE,
            "the fewest are enough"
        );
    }

    #[test]
    fn flat_rows_are_flat() {
        assert!(is_flat(&[100.0; 30]));
        assert!(is_flat(&[100.0, 99.0, 98.0, 97.0, 96.0]), "it shrinks");
        assert!(is_flat(&[100.0, 101.0, 102.0, 103.0, 104.0]), "within the bound");
        assert!(is_flat(&[100.0, 100.0, 100.0, 100.0, 900.0]), "one bad minute");
    }

    #[test]
    fn noise_is_flat_however_wide() {
        // Steps of a linear congruential generator: as good as chance, and the same each time.
        let noise = |seed: u64, count: usize| -> Vec<f64> {
            let mut state = seed;
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as f64 / f64::from(1_u32 << 31)
            };
            (0..count).map(|_| 20.0 + 180.0 * next()).collect()
        };
        let wrong = (0..200).filter(|seed| !is_flat(&noise(*seed, 40))).count();
        assert!(wrong <= 20, "{wrong} of 200 rows of noise were taken for growth");
        // The same noise on a line is growth.
        let seen = (0..200)
            .filter(|seed| {
                let noisy = noise(*seed, 40).into_iter().enumerate();
                !is_flat(
                    &noisy
                        .map(|(minute, value)| value + 6.0 * minute as f64)
                        .collect::<Vec<_>>(),
                )
            })
            .count();
        assert!(seen >= 190, "growth was seen in {seen} of 200 rows");
    }

    #[test]
    fn growth_beyond_the_bound_is_named() {
        let trend = Trend::of(&[100.0, 110.0, 120.0, 130.0, 140.0], BOUND);
        assert!(!trend.is_flat(), "{trend:?}");
        assert_eq!((trend.median, trend.growth, trend.allowed), (120.0, 40.0, 17.0));
        // A leak under a sawtooth.
        let saw = (0..30).map(|minute| 100.0 + f64::from(minute % 5) * 4.0 + f64::from(minute) * 2.0);
        assert!(!is_flat(&saw.collect::<Vec<_>>()));
    }
}
