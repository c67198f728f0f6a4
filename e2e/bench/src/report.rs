//! Medians side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

mod markdown;
mod plots;

const BRAIN: &str = "kubebrain";
const ETCD: &str = "etcd";

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(crate) enum Unit {
    /// Requests, keys or events a second.
    #[serde(rename = "/s")]
    PerSecond,
    /// Microseconds a request.
    #[serde(rename = "µs each")]
    MicrosEach,
    /// Bytes a request.
    #[serde(rename = "B each")]
    BytesEach,
    /// Mebibytes.
    #[serde(rename = "MiB")]
    Mib,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Hundredths.
    #[serde(rename = "%")]
    Percent,
    /// One rate as a part of another; more is better.
    #[serde(rename = "×")]
    Share,
    /// How often something happened.
    #[serde(rename = "times")]
    Times,
}

impl Unit {
    /// Behind a number.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::MicrosEach => "µs each",
            Self::BytesEach => "B each",
            Self::Mib => "MiB",
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Percent => "%",
            Self::Share => "×",
            Self::Times => "times",
        }
    }

    /// True if more is better.
    fn is_rate(self) -> bool {
        matches!(self, Self::PerSecond | Self::Share)
    }
}

/// Everything measured, in the order in which it was first measured.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<ReportRow>);

#[derive(Debug, serde::Deserialize, serde::Serialize)]
struct ReportRow {
    name: String,
    unit: Unit,
    /// Values of all rounds by program.
    measured: BTreeMap<String, Vec<f64>>,
}

impl Report {
    /// Notes one measurement.
    pub(crate) fn add(&mut self, name: &str, unit: Unit, program: &str, value: f64) {
        let at = self.0.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.0.push(ReportRow {
                name: name.to_owned(),
                unit,
                measured: BTreeMap::new(),
            });
            self.0.len() - 1
        });
        self.0[at].measured.entry(program.to_owned()).or_default().push(value);
    }

    /// Notes one measurement, and prints it at once: the whole may take long, and fail on the way.
    pub(crate) fn say(&mut self, name: &str, unit: Unit, program: &str, value: f64) {
        eprintln!("    {program}: {name}: {value:.2} {}", unit.name());
        self.add(name, unit, program, value);
    }

    /// Adds what [`Report::json`] gave in another run.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is none of these.
    pub(crate) fn read(&mut self, path: &Path) -> anyhow::Result<()> {
        let json = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let rows: Vec<ReportRow> =
            serde_json::from_slice(&json).with_context(|| format!("{} is not a benchmark report", path.display()))?;
        for row in &rows {
            for (program, values) in &row.measured {
                for value in values {
                    self.add(&row.name, row.unit, program, *value);
                }
            }
        }
        Ok(())
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let others = others(&self.0);
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let columns = |name: &str, of: &dyn Fn(&str) -> [String; 2], unit: &str| {
            let ([brain, ratio], [etcd, _]) = (of(BRAIN), of(ETCD));
            let mut line = format!("{name:<60} {brain:>12} {etcd:>12} {ratio:>8}");
            for other in &others {
                let [value, ratio] = of(other);
                write!(line, " {value:>12} {ratio:>8}").ok(); // writing to a String cannot fail
            }
            format!("{line}  {unit}\n")
        };
        let mut table = columns("", &|program| [program.to_owned(), "ratio".to_owned()], "unit");
        for row in &self.0 {
            let cells = |program: &str| [number(row.median(program)), number(row.ratio(program))];
            table += &columns(&row.name, &cells, row.unit.name());
        }
        table
    }

    /// For a page of documentation.
    pub(crate) fn markdown(&self) -> String {
        markdown::table(&self.0)
    }

    /// Writes charts as SVG into a directory, which is made if it is absent.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub(crate) fn draw(&self, dir: &Path) -> anyhow::Result<()> {
        plots::draw(&self.0, dir)
    }

    /// For programs: every measurement.
    pub(crate) fn json(&self) -> serde_json::Value {
        let row = |row: &ReportRow| {
            serde_json::json!({
                "name": row.name, "unit": row.unit, "measured": row.measured,
                "median": row.measured.keys().map(|program| (program, row.median(program))).collect::<BTreeMap<_, _>>(),
            })
        };
        serde_json::Value::Array(self.0.iter().map(row).collect())
    }
}

impl ReportRow {
    fn median(&self, program: &str) -> Option<f64> {
        let mut values = self.measured.get(program)?.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        Some(if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle])
        })
    }

    /// A program's median over etcd's. `None`: one was not measured, or there is nothing to divide by.
    fn ratio(&self, program: &str) -> Option<f64> {
        let (value, etcd) = (self.median(program)?, self.median(ETCD)?);
        (etcd > 0.0).then(|| value / etcd)
    }

    /// The number of keys in its name, and the rest of it.
    fn by_keys(&self) -> Option<(u64, &str)> {
        let (keys, name) = self.name.split_once(" keys: ")?;
        Some((keys.parse().ok()?, name))
    }
}

/// Programs beside the brain and etcd, in the order of the alphabet.
fn others(rows: &[ReportRow]) -> BTreeSet<&str> {
    let programs = rows.iter().flat_map(|row| row.measured.keys());
    programs
        .map(String::as_str)
        .filter(|program| ![BRAIN, ETCD].contains(program))
        .collect()
}

#[cfg(test)]
mod tests;
