//! A table of medians in Markdown.

use std::fmt::Write as _;

use super::{BRAIN, ETCD, ReportRow, others};

/// One line a metric, in the order of the rows.
pub(super) fn table(rows: &[ReportRow]) -> String {
    let others = others(rows);
    let mut table = format!("| metric | unit | {BRAIN} | {ETCD} | {BRAIN} / {ETCD} |");
    // writing to a String cannot fail
    for other in &others {
        write!(table, " {other} | {other} / {ETCD} |").ok();
    }
    writeln!(table, "\n|---|---|---:|---:|---:|{}", "---:|---:|".repeat(others.len())).ok();
    for row in rows {
        let cell = |program: &str| row.median(program).map_or_else(|| "–".to_owned(), number);
        let ratio = |program: &str| {
            row.ratio(program)
                .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"))
        };
        let (name, unit) = (row.name.replace('|', "\\|"), row.unit.name());
        write!(
            table,
            "| {name} | {unit} | {} | {} | {} |",
            cell(BRAIN),
            cell(ETCD),
            ratio(BRAIN)
        )
        .ok();
        for other in &others {
            write!(table, " {} | {} |", cell(other), ratio(other)).ok();
        }
        table.push('\n');
    }
    table
}

/// Three digits that count, thousands apart: 12,346, 123, 12.3, 1.23, 0.0123.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size => (2 - size.log10().floor() as i64).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let first = whole.bytes().take_while(|byte| !byte.is_ascii_digit()).count();
    let mut grouped = String::new();
    for (n, digit) in whole.char_indices() {
        if n > first && (whole.len() - n) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Report, Unit};

    #[test]
    fn numbers_have_three_digits_that_count() {
        let numbers = [
            0.0,
            1_234_567.8,
            12_345.6,
            999.0,
            12.34,
            1.234,
            0.012_34,
            -1_234.5,
            -123.4,
        ];
        let texts = [
            "0",
            "1,234,568",
            "12,346",
            "999",
            "12.3",
            "1.23",
            "0.0123",
            "-1,234",
            "-123",
        ];
        assert_eq!(numbers.map(number), texts);
    }

    #[test]
    fn a_row_is_a_line() {
        let mut report = Report::default();
        report.add("updates", Unit::PerSecond, "kubebrain", 30_000.0);
        report.add("updates", Unit::PerSecond, "etcd", 10_000.0);
        report.add("idle", Unit::Percent, "kubebrain", 0.5);
        let table = report.markdown();
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(lines[0], "| updates | /s | 30,000 | 10,000 | 3.00× |");
        assert_eq!(lines[1], "| idle | % | 0.500 | – | – |");
    }

    #[test]
    fn a_third_program_has_columns_of_its_own() {
        let mut report = Report::default();
        report.add("updates", Unit::PerSecond, "etcd", 10_000.0);
        report.add("updates", Unit::PerSecond, "kine", 500.0);
        let table = report.markdown();
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(
            lines,
            [
                "| metric | unit | kubebrain | etcd | kubebrain / etcd | kine | kine / etcd |",
                "|---|---|---:|---:|---:|---:|---:|",
                "| updates | /s | – | 10,000 | – | 500 | 0.05× |",
            ]
        );
    }
}
