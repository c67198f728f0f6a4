//! A difference, described so that it can be mended.

use std::fmt;

use wire::mvccpb::Event;

use super::answer::{Answer, Received};
use super::request::Request;

const MAX_KINDS: usize = 40;
const EXAMPLES_PER_KIND: usize = 2;
const MAX_SHOWN_LINE_CHARS: usize = 160;
const MAX_SHOWN_LINES: usize = 30;
const CONTEXT_LINES: usize = 14;

/// Kinds of differences, each with its first examples.
#[derive(Debug, Default)]
pub struct Differences(Vec<Kind>);

#[derive(Debug)]
struct Kind {
    /// The method and the line of the answer that differs first, without its values.
    signature: String,
    count: usize,
    /// The step at which it was found first.
    first: usize,
    examples: Vec<String>,
}

impl Differences {
    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The step and the kind of the first difference.
    pub fn first(&self) -> Option<(usize, &str)> {
        self.0.first().map(|kind| (kind.first, kind.signature.as_str()))
    }

    /// Returns true if there is a difference of this kind.
    pub fn contains(&self, signature: &str) -> bool {
        self.0.iter().any(|kind| kind.signature == signature)
    }

    /// Compares two answers to one request. True if the servers are no longer in the same state, so that comparing on
    /// makes no sense.
    pub fn compare(
        &mut self,
        index: usize,
        request: &Request,
        mut expected: Answer,
        mut got: Answer,
        floor: i64,
    ) -> bool {
        for answer in [&mut expected, &mut got] {
            forget_compacted(answer, floor);
        }
        if expected == got {
            return false;
        }
        let apart = are_apart(request, &expected, &got);
        let (lines, signature) = diff(request, &expected, &got);
        let shown = format!("#{index} {}\n{lines}", shorten(&format!("{request:?}"), 1_000));
        match self.0.iter_mut().find(|kind| kind.signature == signature) {
            Some(kind) => {
                kind.count += 1;
                if kind.examples.len() < EXAMPLES_PER_KIND {
                    kind.examples.push(shown);
                }
            }
            None => self.0.push(Kind {
                signature,
                count: 1,
                first: index,
                examples: vec![shown],
            }),
        }
        apart || self.0.len() >= MAX_KINDS
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("all equal");
        }
        write!(f, "{} kinds of differences (- reference, + subject)", self.0.len())?;
        for Kind {
            signature,
            count,
            examples,
            ..
        } in &self.0
        {
            write!(f, "\n\n{count} × {signature}")?;
            for example in examples {
                write!(f, "\n{example}")?;
            }
        }
        Ok(())
    }
}

/// Returns true if the two can no longer be in the same state.
fn are_apart(request: &Request, expected: &Answer, got: &Answer) -> bool {
    let failed = |answer: &Answer| matches!(answer, Answer::Error { .. });
    match (expected.revision(), got.revision()) {
        _ if matches!(got, Answer::Broken(_)) => true,
        (Some(expected), Some(got)) => expected != got,
        _ => request.writes() && failed(expected) != failed(got),
    }
}

/// Removes the parts that depend on the time of etcd's background work.
///
/// The state before an event is read when the event is sent, and is gone if it was compacted: whether an event at the
/// compacted revision has it depends on when the watcher came.
fn forget_compacted(answer: &mut Answer, floor: i64) {
    let Answer::Watched(watchers) = answer else { return };
    for received in watchers.values_mut().flatten() {
        if let Received::Event(Event {
            kv: Some(kv), prev_kv, ..
        }) = received
            && kv.mod_revision <= floor
        {
            *prev_kv = None;
        }
    }
}

/// The lines of both answers that are not in the other, and a name for the difference.
fn diff(request: &Request, expected: &Answer, got: &Answer) -> (String, String) {
    let (expected, got) = (format!("{expected:#?}"), format!("{got:#?}"));
    let (expected, got): (Vec<_>, Vec<_>) = (expected.lines().collect(), got.lines().collect());
    let same = expected.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let tail = expected[same..]
        .iter()
        .rev()
        .zip(got[same..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let mut lines = String::new();
    for (mark, side) in [('-', &expected), ('+', &got)] {
        let differing = &side[same.saturating_sub(CONTEXT_LINES)..side.len() - tail];
        for line in differing.iter().take(MAX_SHOWN_LINES) {
            lines.push_str(&format!("  {mark} {}\n", shorten(line, MAX_SHOWN_LINE_CHARS)));
        }
        if differing.len() > MAX_SHOWN_LINES {
            lines.push_str(&format!(
                "  {mark} … {} lines more\n",
                differing.len() - MAX_SHOWN_LINES
            ));
        }
    }
    let at = |side: &[&str]| side.get(same).map_or("end", |line| name(line)).to_owned();
    let path = field(&expected, same);
    (
        lines,
        format!("{}: {path}{} / {}", request.method(), at(&expected), at(&got)),
    )
}

/// The line without its value, except for codes and messages: `code: OutOfRange,` differs from other codes, `revision: 7,` does not
/// differ from other revisions.
fn name(line: &str) -> &str {
    let line = line.trim();
    match line.split_once(": ") {
        Some(("code" | "message", _)) => line,
        Some((field, _)) => field,
        None if line.chars().next().is_some_and(char::is_alphabetic) => line,
        None => "value",
    }
}

/// The path of the fields and types that contain the line.
fn field(lines: &[&str], at: usize) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut level = lines.get(at).map_or(0, |line| indent(line));
    let mut path = Vec::new();
    for line in lines[..at.min(lines.len())].iter().rev() {
        if indent(line) < level {
            level = indent(line);
            path.push(line.trim().trim_end_matches(['{', '(', '[', ' ']).to_owned());
        }
    }
    path.reverse();
    path.iter().map(|name| format!("{name}.")).collect()
}

fn shorten(text: &str, most: usize) -> String {
    let text = &without_runs(text);
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// Big values are one letter many times.
fn without_runs(text: &str) -> String {
    const RUN: usize = 40;
    let bytes = text.as_bytes();
    let mut short = Vec::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        match run {
            [letter, ..] if run.len() > RUN && letter.is_ascii_lowercase() => {
                short.extend_from_slice(format!("{} × {}", char::from(*letter), run.len()).as_bytes());
            }
            _ => short.extend_from_slice(run),
        }
    }
    String::from_utf8_lossy(&short).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::etcdserverpb as pb;

    fn put(revision: i64) -> Answer {
        let header = Some(pb::ResponseHeader {
            revision,
            ..pb::ResponseHeader::default()
        });
        Answer::Put(pb::PutResponse { header, prev_kv: None })
    }

    #[test]
    fn differences_are_counted_by_what_differs() {
        let mut differences = Differences::default();
        let request = Request::Put(pb::PutRequest::default());
        assert!(!differences.compare(0, &request, put(4), put(4), 0));
        assert!(differences.is_empty());
        let refused = |message: &str| Answer::Error {
            code: tonic::Code::NotFound,
            message: message.to_owned(),
            http: None,
        };
        assert!(!differences.compare(1, &request, refused("a"), refused("b"), 0));
        assert!(!differences.compare(2, &request, refused("a"), refused("b"), 0));
        assert!(differences.compare(3, &request, put(4), put(5), 0), "states are apart");
        let said = differences.to_string();
        assert!(said.starts_with("2 kinds of differences"), "{said}");
        assert!(
            said.contains("2 × Put: Error.message: \"a\", / message: \"b\","),
            "{said}"
        );
        assert!(
            said.contains("1 × Put: Put.PutResponse.header: Some.ResponseHeader.revision / revision"),
            "{said}"
        );
    }
}
