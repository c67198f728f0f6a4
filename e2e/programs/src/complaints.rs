//! Lines of our programs' logs that report a problem: a test that did not provoke them fails.

use anyhow::bail;
use serde_json::Value;

/// Number of lines that an error shows.
const MAX_SHOWN_COMPLAINTS: usize = 20;

/// Texts of complaints that were expected, each a part of its line.
#[derive(Clone, Debug, Default)]
pub struct ProvokedComplaints(Vec<String>);

impl ProvokedComplaints {
    /// Lets lines with this text pass from now on.
    pub fn add(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }

    /// An error with the lines that were not expected, if there are any.
    ///
    /// # Errors
    ///
    /// There are.
    pub fn check(&self, whose: &str, complaints: &[String]) -> anyhow::Result<()> {
        let expected = |line: &str| self.0.iter().any(|text| line.contains(text));
        let lines: Vec<_> = complaints.iter().filter(|line| !expected(line)).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let more = lines.len().saturating_sub(MAX_SHOWN_COMPLAINTS);
        let shown: Vec<_> = lines
            .iter()
            .take(MAX_SHOWN_COMPLAINTS)
            .map(|line| line.as_str())
            .collect();
        bail!(
            "{whose} logged unexpected complaints ({} lines, {more} not shown):\n{}",
            lines.len(),
            shown.join("\n")
        )
    }
}

/// Texts of lines about slow requests, which are expected on a busy machine.
const SLOW_REQUEST_TEXTS: [&str; 2] = [r#""msg":"apply request took too long""#, r#""msg":"request stats""#];

/// Returns true if a line of one of our programs is a warning, an error or a panic, but not about a slow request.
#[must_use]
pub fn is_complaint(line: &str) -> bool {
    if SLOW_REQUEST_TEXTS.iter().any(|text| line.contains(text)) {
        return false;
    }
    if line.contains("' panicked at ") || (line.starts_with("thread ") && line.contains(" panicked at ")) {
        return true;
    }
    // pods' lines are preceded by time, stream and a mark
    let level = match line.find('{').map(|at| serde_json::from_str::<Value>(&line[at..])) {
        // etcd's own lines have the same keys, but no Rust file in them
        Some(Ok(object))
            if object
                .get("caller")
                .and_then(Value::as_str)
                .is_some_and(|caller| caller.contains(".rs:")) =>
        {
            object.get("level").and_then(Value::as_str).map(str::to_uppercase)
        }
        Some(Ok(object)) => object.get("level").and_then(Value::as_str).map(str::to_owned),
        _ => line.split_whitespace().nth(1).map(str::to_owned),
    };
    level.is_some_and(|level| matches!(level.as_str(), "WARN" | "ERROR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_errors_and_panics_are_told_from_other_lines() {
        for line in [
            r#"{"timestamp":"2026-11-21T12:44:42Z","level":"WARN","message":"odd"}"#,
            r#"2026-11-21T12:44:53Z stderr F {"level":"warn","ts":"2026","caller":"net/serve.rs:7","msg":"odd"}"#,
            r#"2026-11-21T12:44:53Z stderr F {"timestamp":"2026","level":"ERROR","fields":{"message":"bad"}}"#,
            "2026-11-21T12:34:07.014356Z  WARN e2e::supervisor: ended by itself",
            "thread 'main' (7) panicked at src/main.rs:1:1:",
        ] {
            assert!(is_complaint(line), "{line}");
        }
        for line in [
            r#"{"timestamp":"2026-11-21T12:44:42Z","level":"INFO","message":"no \"level\":\"WARN\" here"}"#,
            r#"{"level":"warn","ts":"2026","caller":"etcdserver/server.go:7","msg":"etcd's own"}"#,
            r#"{"level":"info","ts":"2026","caller":"net/serve.rs:7","msg":"fine"}"#,
            r#"{"level":"warn","ts":"2026","caller":"slow_requests.rs:7","msg":"apply request took too long"}"#,
            r#"{"level":"warn","ts":"2026","caller":"slow_requests.rs:7","msg":"request stats"}"#,
            "2026-11-21T12:34:07.014356Z  INFO e2e: a WARN ERROR of others",
            "",
        ] {
            assert!(!is_complaint(line), "{line}");
        }
    }

    #[test]
    fn only_what_was_provoked_passes() {
        let mut expected_logs = ProvokedComplaints::default();
        let lines = ["a WARN about space".to_owned(), "an ERROR".to_owned()];
        expected_logs.add("about space");
        let error = expected_logs.check("a brain", &lines).unwrap_err().to_string();
        assert!(error.contains("an ERROR") && !error.contains("space"), "{error}");
        expected_logs.add("an ERROR");
        expected_logs.check("a brain", &lines).unwrap();
    }
}
