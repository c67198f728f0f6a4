//! Samples by the place where memory was allocated.

use std::collections::HashMap;

use super::Sample;

/// Beginnings of functions that do not say what was allocated for whom: of allocators, collections and runtimes.
const SKIPPED_FUNCTIONS: [&str; 12] = [
    "__r",
    "alloc::",
    "alloc_counter::",
    "bytes::",
    "core::",
    "futures_util::",
    "hashbrown::",
    "mimalloc::",
    "start_thread",
    "std::",
    "tokio::",
    "tracing::",
];

/// The same for parts of their files: the names of inlined functions have no path.
const SKIPPED_FILES: [&str; 7] = [
    "/rustc/",
    "/bytes-",
    "/futures-",
    "/mimalloc-",
    "/tokio-",
    "/tracing-",
    "/alloc-counter/",
];

/// The most frames of a stack that are kept.
const MAX_FRAMES: usize = 6;

/// The samples of one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackCount {
    /// Its frames, the innermost first: functions, with their lines where these are known.
    pub frames: Vec<String>,
    /// The number of samples.
    pub samples: u64,
    /// The bytes of these.
    pub bytes: u64,
}

/// Returns samples by their stacks, the most frequent first.
#[must_use]
pub fn by_stack(samples: Vec<Sample>) -> Vec<StackCount> {
    let mut counts: HashMap<Vec<String>, (u64, u64)> = HashMap::new();
    for Sample { bytes, stack } in samples {
        let (samples, sum) = counts.entry(frames(&stack.to_string())).or_default();
        *samples += 1;
        *sum += bytes as u64;
    }
    let counts = counts
        .into_iter()
        .map(|(frames, (samples, bytes))| StackCount { frames, samples, bytes });
    let mut counts = Vec::from_iter(counts);
    counts.sort_by(|a, b| (b.samples, &a.frames).cmp(&(a.samples, &b.frames)));
    counts
}

/// Returns the frames that say something, from the text of a backtrace.
fn frames(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(str::trim).peekable();
    let mut frames: Vec<String> = Vec::new();
    while let Some(line) = lines.next() {
        let function = plain(line.split_once(": ").map_or(line, |(_number, function)| function));
        let place = lines.next_if(|line| line.starts_with("at ")).unwrap_or_default();
        let is_skipped = SKIPPED_FUNCTIONS.iter().any(|skipped| function.starts_with(skipped))
            || SKIPPED_FILES.iter().any(|skipped| place.contains(skipped));
        if is_skipped {
            continue;
        }
        let frame = match place.rsplit('/').next().and_then(|file| file.rsplit_once(':')) {
            // The names of closures and futures are their numbers.
            Some((line, _column)) if function.starts_with('{') => line.to_owned(),
            Some((line, _column)) => format!("{function} ({line})"),
            None => function,
        };
        if frames.last() != Some(&frame) {
            frames.push(frame);
        }
        if frames.len() == MAX_FRAMES {
            break;
        }
    }
    frames
}

/// Returns the name of a function without its type arguments, its hash and the marks of closures. Of `<T as Trait>::f` it keeps `T::f`.
fn plain(function: &str) -> String {
    let function = function.replace("::{{closure}}", "");
    let function = match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => &function,
    };
    let (function, is_method) = match function.strip_prefix('<') {
        Some(rest) => (rest, true),
        None => (function, false),
    };
    let mut depth = 0_i32;
    let mut plain = String::new();
    let mut in_trait = false;
    for (at, char) in function.char_indices() {
        match char {
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            '>' => in_trait = false,
            _ if depth == 0 && is_method && function[at..].starts_with(" as ") => in_trait = true,
            _ if depth == 0 && !in_trait => plain.push(char),
            _ => {}
        }
    }
    plain.replace("::::", "::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_functions_with_lines() {
        let text = "   0: new\n             at /rustc/0123/library/alloc/src/boxed.rs:1:1\n   \
                    0: alloc_counter::Counting<A>::count\n             at ./e2e/alloc-counter/src/lib.rs:90:21\n   \
                    1: <alloc::vec::Vec<T> as core::clone::Clone>::clone\n   \
                    2: <api::kv::KvService as Kv>::txn::{{closure}}::{{closure}}\n             at ./brain/api/src/kv.rs:101:9\n   \
                    3: <api::kv::KvService as Kv>::txn::{{closure}}\n             at ./brain/api/src/kv.rs:100:9\n   \
                    4: <h2::proto::Streams<B,P> as h2::Recv>::poll_data::h0123456789abcdef\n";
        let expected = [
            "api::kv::KvService::txn (kv.rs:101)",
            "api::kv::KvService::txn (kv.rs:100)",
            "h2::proto::Streams::poll_data",
        ];
        assert_eq!(frames(text), expected);
    }
}
