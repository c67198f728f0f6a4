//! The line in a row of figures.

/// How much a figure may grow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    /// A part of its mean.
    pub(super) part: f64,
    /// And so much in any case.
    pub(super) noise: f64,
}

impl Bound {
    /// The most that these figures may grow.
    pub(super) fn of(self, values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        self.noise + self.part * mean
    }
}

/// By how much figures grew from the first to the last one, along the median of the slopes between any two (Theil and Sen).
pub(super) fn growth(values: &[f64]) -> f64 {
    let mut slopes = Vec::new();
    for (at, one) in values.iter().enumerate() {
        for (further, other) in values.iter().skip(at + 1).enumerate() {
            slopes.push((other - one) / (further + 1) as f64);
        }
    }
    slopes.sort_by(f64::total_cmp);
    let median = match slopes.len() {
        0 => 0.0,
        count if count % 2 == 1 => slopes[count / 2],
        count => f64::midpoint(slopes[count / 2 - 1], slopes[count / 2]),
    };
    median * values.len().saturating_sub(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_through_noise_and_a_bad_minute_is_none() {
        assert_eq!(growth(&[10.0, 11.0, 12.0, 13.0]), 3.0);
        assert_eq!(growth(&[10.0, 10.0, 500.0, 10.0, 10.0, 10.0]), 0.0);
        assert!(growth(&[10.0, 13.0, 12.0, 15.0, 14.0, 17.0]) > 4.0);
        assert!(growth(&[9.0, 7.0, 8.0, 6.0]) < 0.0);
        assert_eq!((growth(&[]), growth(&[1.0])), (0.0, 0.0));
    }

    #[test]
    fn bound_grows_with_the_figure() {
        let bound = Bound { part: 0.1, noise: 5.0 };
        assert_eq!(bound.of(&[100.0, 300.0]), 25.0);
    }
}
