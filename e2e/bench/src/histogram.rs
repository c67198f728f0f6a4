//! Times of any number of requests in a bounded space. Percentiles are right within one percent, the longest time exactly.

use std::time::Duration;

/// Each power of two has this number of buckets, itself as a power of two.
const PART_BITS: u32 = 7;
const PARTS: u64 = 1 << PART_BITS;
const BUCKETS: usize = (u64::BITS - PART_BITS + 1) as usize * PARTS as usize;

/// Microseconds by bucket.
#[derive(Clone, Debug)]
pub(crate) struct LatencyHistogram {
    buckets: Vec<u64>,
    count: u64,
    longest: Duration,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
            longest: Duration::ZERO,
        }
    }
}

impl LatencyHistogram {
    pub(crate) fn record(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(micros)] += 1;
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += others;
        }
        self.count += other.count;
        self.longest = self.longest.max(other.longest);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The time that this part of all did not exceed; 0 of none.
    pub(crate) fn percentile(&self, part: f64) -> Duration {
        let rank = (self.count as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = |count: &u64| {
            seen += count;
            seen >= rank
        };
        let at = self.buckets.iter().position(reached).unwrap_or(0);
        Duration::from_micros(upper_bound(at)).min(self.longest)
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }
}

fn bucket(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(PART_BITS + 1);
    (u64::from(shift) * PARTS + (micros >> shift)) as usize
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let part = bucket - shift * PARTS;
    (part << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentile::percentile;

    #[test]
    fn buckets_hold_values_within_one_percent() {
        for micros in (0..3_000).chain([1 << 20, (1 << 33) + 12_345, u64::MAX >> 1, u64::MAX]) {
            let bound = upper_bound(bucket(micros));
            assert!(bound >= micros && bound - micros <= micros / 100, "{micros} in {bound}");
            assert!(bucket(micros) < BUCKETS);
        }
        assert!((1..3_000).all(|micros| bucket(micros) >= bucket(micros - 1)));
    }

    #[test]
    fn percentiles_are_those_of_all_values() {
        let (mut histogram, mut values) = (LatencyHistogram::default(), Vec::new());
        for n in 0..10_000_u64 {
            let micros = n * n % 977 * 31;
            histogram.record(Duration::from_micros(micros));
            values.push(micros as f64);
        }
        for part in [0.01, 0.5, 0.99, 0.999, 1.0] {
            let (found, exact) = (histogram.percentile(part).as_micros() as f64, percentile(&values, part));
            assert!(found >= exact && found <= exact * 1.01, "{part}: {found}, not {exact}");
        }
        assert_eq!(histogram.longest(), Duration::from_micros(976 * 31));
        assert_eq!(LatencyHistogram::default().percentile(0.5), Duration::ZERO);
    }

    #[test]
    fn merged_histograms_hold_the_values_of_both() {
        let of = |micros: &[u64]| {
            let mut histogram = LatencyHistogram::default();
            micros
                .iter()
                .for_each(|micros| histogram.record(Duration::from_micros(*micros)));
            histogram
        };
        let mut all = of(&[1, 2, 3]);
        all.merge(&of(&[50, 60, 70]));
        assert_eq!((all.count(), all.longest()), (6, Duration::from_micros(70)));
        assert_eq!(all.percentile(0.5), Duration::from_micros(3));
    }
}
