//! Fuzzing: every decoder of data from clients, files or TiKV is run on damaged input.
//!
//! A target takes any bytes and must not panic; it may check more properties. Its inputs are the files of its directory in
//! `brain/fuzz`, the output of the code under test, and mutations of both. A failing input is minimised and stored in that
//! directory, so that it is tried first from then on. `KUBEBRAIN_FUZZ_SECONDS` sets a time limit instead of a number of cases.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestError, TestRunner};
use tokio::time::Instant;

mod targets;

const SECONDS_VARIABLE: &str = "KUBEBRAIN_FUZZ_SECONDS";
/// The number of cases between two checks of the time.
const CASES_PER_CLOCK_CHECK: u32 = 256;

/// A change of some bytes.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(Index, u8),
    Put(Index, u8),
    /// A number that is likely to confuse lengths and counts.
    Number(Index, u64, bool),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Repeats a part.
    Repeat(Index, usize, usize),
    Truncate(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let numbers = [
        0,
        1,
        0x7f,
        0x80,
        0xff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 63,
        u64::MAX,
    ];
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, 1 << bit)),
        3 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Put(at, byte)),
        2 => (at(), select(numbers.to_vec()), any::<bool>()).prop_map(|(at, number, wide)| Mutation::Number(at, number, wide)),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        2 => (at(), 1..64usize).prop_map(|(at, len)| Mutation::Remove(at, len)),
        1 => (at(), 1..64usize, 1..64usize).prop_map(|(at, len, times)| Mutation::Repeat(at, len, times)),
        1 => at().prop_map(Mutation::Truncate),
    ]
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let len = bytes.len();
        match self {
            Self::Flip(at, bits) => bytes[at.index(len)] ^= bits,
            Self::Put(at, byte) => bytes[at.index(len)] = *byte,
            Self::Number(at, number, wide) => {
                let at = at.index(len);
                let number = if *wide {
                    number.to_le_bytes().to_vec()
                } else {
                    number.to_le_bytes()[..4].to_vec()
                };
                let end = len.min(at + number.len());
                bytes.splice(at..end, number);
            }
            Self::Insert(at, inserted) => {
                let at = at.index(len);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(len);
                bytes.drain(at..len.min(at + count));
            }
            Self::Repeat(at, count, times) => {
                let at = at.index(len);
                let piece = bytes[at..len.min(at + count)].repeat(*times);
                bytes.splice(at..at, piece);
            }
            Self::Truncate(at) => bytes.truncate(at.index(len)),
        }
    }
}

/// Runs the target on `cases` inputs, or for the requested time. `seeds` are valid inputs in addition to those of the directory.
pub(crate) fn fuzz(name: &str, cases: u32, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name);
    let mut corpus = seeds;
    for path in files(&dir) {
        let input = fs::read(&path).unwrap();
        // Run unmodified first: a past failure must be tried again in every run.
        target(&input);
        corpus.push(input);
    }
    let mutated = (select(corpus), prop::collection::vec(mutation(), 0..6)).prop_map(|(mut bytes, mutations)| {
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
        bytes
    });
    let inputs = prop_oneof![
        12 => mutated,
        1 => prop::collection::vec(any::<u8>(), 0..400),
    ];
    let limit: Option<u64> = std::env::var(SECONDS_VARIABLE)
        .ok()
        .map(|seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(limit.unwrap_or_default());
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(if limit.is_some() { CASES_PER_CLOCK_CHECK } else { cases })
    };
    let mut runner = TestRunner::new(config);
    loop {
        let tried = runner.run(&inputs, |bytes| {
            target(&bytes);
            Ok(())
        });
        match tried {
            Ok(()) => {}
            Err(TestError::Fail(reason, input)) => {
                let kept = dir.join(format!("failed-{:08x}", crc32c::crc32c(&input)));
                fs::create_dir_all(&dir).unwrap();
                fs::write(&kept, &input).unwrap();
                panic!(
                    "{name}: {reason}; the input is {}: {}",
                    kept.display(),
                    input.escape_ascii()
                );
            }
            Err(aborted) => panic!("{name}: {aborted}"),
        }
        if Instant::now() >= end {
            return;
        }
    }
}

/// Creates a temporary directory, in memory if possible.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.unwrap()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn mutations_bear_every_place() {
    let mut runner = TestRunner::default();
    let any_bytes = prop::collection::vec(any::<u8>(), 0..8);
    let tried = runner.run(&(any_bytes, mutation()), |(mut bytes, mutation)| {
        mutation.apply(&mut bytes);
        Ok(())
    });
    tried.unwrap();
}
