//! Metrics of a kube-apiserver: the text of Prometheus, histograms, and how they grew between two scrapes.

use std::collections::BTreeMap;

use anyhow::Context as _;

/// The values of one series by the labels of it.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Everything that a process exported at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape(Vec<Sample>);

/// A distribution in buckets. Bounds ascend, counts are those of values up to the bound, and the last bound is infinite.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    buckets: Vec<(f64, f64)>,
    sum: f64,
}

impl Scrape {
    /// Reads the text format.
    ///
    /// # Errors
    ///
    /// A line is no sample.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let parsed = lines.map(|line| sample(line).with_context(|| format!("not a sample of a metric: {line}")));
        Ok(Self(parsed.collect::<anyhow::Result<_>>()?))
    }

    /// The sum of all series of a name; 0 of none.
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.named(name).map(|sample| sample.value).sum()
    }

    /// The histograms of a name, added up by what `key` makes of their labels. Those without a key are left out.
    pub(crate) fn histograms<K: Ord>(
        &self,
        name: &str,
        key: impl Fn(&BTreeMap<String, String>) -> Option<K>,
    ) -> BTreeMap<K, Histogram> {
        let mut all: BTreeMap<K, Histogram> = BTreeMap::new();
        for bucket in self.named(&format!("{name}_bucket")) {
            let bound = bucket.labels.get("le").and_then(|bound| number(bound));
            if let (Some(key), Some(bound)) = (key(&bucket.labels), bound) {
                all.entry(key).or_default().add(bound, bucket.value);
            }
        }
        for sum in self.named(&format!("{name}_sum")) {
            if let Some(key) = key(&sum.labels) {
                all.entry(key).or_default().sum += sum.value;
            }
        }
        all
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

impl Histogram {
    fn add(&mut self, bound: f64, count: f64) {
        let at = self.buckets.partition_point(|(other, _)| *other < bound);
        match self.buckets.get_mut(at) {
            Some((other, sum)) if *other == bound => *sum += count,
            _ => self.buckets.insert(at, (bound, count)),
        }
    }

    /// Its growth since `before`, which has the same bounds, or none.
    #[must_use]
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let mut grown = self.clone();
        grown.sum -= before.sum;
        for (bound, count) in &mut grown.buckets {
            let then = before.buckets.iter().find(|(other, _)| other == bound);
            *count -= then.map_or(0.0, |(_, count)| *count);
        }
        grown
    }

    /// Number of values.
    pub(crate) fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// `None` without values.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// As PromQL's `histogram_quantile`: values are taken to be evenly spread within their bucket, and those above the last finite bound to be
    /// on it. `None` without values.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let rank = part * self.count();
        if self.count() <= 0.0 {
            return None;
        }
        let at = self.buckets.partition_point(|(_, count)| *count < rank);
        let (lower, below) = match at {
            0 => (0.0, 0.0),
            _ => self.buckets[at - 1],
        };
        let (upper, count) = *self.buckets.get(at)?;
        if upper.is_infinite() {
            return Some(lower);
        }
        Some(lower + (upper - lower) * (rank - below) / (count - below))
    }
}

/// How the histograms of a name grew, by what `key` makes of their labels; only those that did.
pub(crate) fn growth<K: Ord>(
    before: &Scrape,
    after: &Scrape,
    name: &str,
    key: impl Fn(&BTreeMap<String, String>) -> Option<K>,
) -> BTreeMap<K, Histogram> {
    let then = before.histograms(name, &key);
    let now = after.histograms(name, &key).into_iter();
    let grown = now.map(|(key, histogram)| {
        let grown = histogram.since(then.get(&key));
        (key, grown)
    });
    grown.filter(|(_, histogram)| histogram.count() > 0.0).collect()
}

/// `name{label="value",…} value`, perhaps with a time, which is ignored.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(label.to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: number(rest.split_whitespace().next()?)?,
    })
}

/// The text up to the next quote that is not escaped, and what comes after the quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

/// Rust reads Prometheus' `+Inf` and `NaN`, too.
fn number(text: &str) -> Option<f64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
