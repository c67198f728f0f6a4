//! Medians side by side.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Requests a second.
    PerSecond,
    /// Microseconds a request.
    MicrosEach,
    /// Bytes a request.
    BytesEach,
    /// Mebibytes.
    Mib,
    /// Seconds.
    Seconds,
    /// Hundredths.
    Percent,
}

impl Unit {
    /// Behind a number.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "req/s",
            Self::MicrosEach => "µs each",
            Self::BytesEach => "B each",
            Self::Mib => "MiB",
            Self::Seconds => "s",
            Self::Percent => "%",
        }
    }
}

/// Everything measured, in the order in which it was first measured.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Row>);

#[derive(Debug)]
struct Row {
    name: String,
    unit: Unit,
    measured: BTreeMap<&'static str, Vec<f64>>,
}

impl Report {
    /// Notes one measurement.
    pub(crate) fn add(&mut self, name: &str, unit: Unit, program: &'static str, value: f64) {
        let at = self.0.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.0.push(Row {
                name: name.to_owned(),
                unit,
                measured: BTreeMap::new(),
            });
            self.0.len() - 1
        });
        self.0[at].measured.entry(program).or_default().push(value);
    }

    /// For people.
    pub(crate) fn table(&self, dir: &Path, rounds: usize) -> String {
        let mut table = format!("medians of {rounds} rounds, fsync on, data in {}\n\n", dir.display());
        let head = format!("{:<60} {:>12} {:>12} {:>8}  unit\n", "", "kubebrain", "etcd", "ratio");
        table.push_str(&head);
        for row in &self.0 {
            let [brain, etcd] = ["kubebrain", "etcd"].map(|program| row.median(program));
            let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            let ratio = brain.zip(etcd).map(|(brain, etcd)| brain / etcd);
            let (name, unit) = (&row.name, row.unit.name());
            // writing to a String cannot fail
            writeln!(
                table,
                "{name:<60} {:>12} {:>12} {:>8}  {unit}",
                number(brain),
                number(etcd),
                number(ratio)
            )
            .ok();
        }
        table
    }

    /// For programs: every measurement.
    pub(crate) fn json(&self) -> serde_json::Value {
        let row = |row: &Row| {
            serde_json::json!({
                "name": row.name, "unit": row.unit.name(), "measured": row.measured,
                "median": row.measured.keys().map(|program| (*program, row.median(program))).collect::<BTreeMap<_, _>>(),
            })
        };
        serde_json::Value::Array(self.0.iter().map(row).collect())
    }
}

impl Row {
    fn median(&self, program: &str) -> Option<f64> {
        let mut values = self.measured.get(program)?.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        Some(if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_side_by_side() {
        let mut report = Report::default();
        for value in [30.0, 10.0, 20.0] {
            report.add("updates", Unit::PerSecond, "kubebrain", value);
        }
        report.add("updates", Unit::PerSecond, "etcd", 8.0);
        report.add("updates", Unit::PerSecond, "etcd", 12.0);
        report.add("idle", Unit::Percent, "kubebrain", 0.5);
        let table = report.table(Path::new("/data"), 3);
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = table.lines().skip(3).map(words).collect();
        assert_eq!(lines[0], ["updates", "20.00", "10.00", "2.00", "req/s"]);
        assert_eq!(lines[1], ["idle", "0.50", "-", "-", "%"]);
        assert_eq!(report.json()[0]["median"]["etcd"], 10.0);
    }
}
