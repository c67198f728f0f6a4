//! Named points at which a test ends the process as `kill -9` does: between two steps that must be safe in any order of a crash.
//!
//! Only programs with debug assertions have them. In others [`reach`] is empty.

/// The variable that names a point, and how often it is passed before the process ends there: `<point>:<times>`.
#[cfg(debug_assertions)]
const KILL_AT_VARIABLE: &str = "KUBEBRAIN_KILL_AT";

/// Ends the process here, if a test named this point.
#[cfg(not(debug_assertions))]
#[inline]
pub fn reach(_point: &'static str) {}

/// Ends the process here, if a test named this point.
#[cfg(debug_assertions)]
pub fn reach(point: &'static str) {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    static NAMED: LazyLock<Option<(String, AtomicU64)>> =
        LazyLock::new(|| named(&std::env::var(KILL_AT_VARIABLE).ok()?));
    if let Some((name, left)) = &*NAMED
        && name == point
        && left.fetch_sub(1, SeqCst) == 1
    {
        // Nothing is flushed or unwound: the process is gone when this returns, or at the next instruction of any thread.
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        tracing::error!(?killed, point, "the process lives on");
    }
}

#[cfg(debug_assertions)]
fn named(value: &str) -> Option<(String, std::sync::atomic::AtomicU64)> {
    let (point, times) = value.split_once(':')?;
    Some((point.to_owned(), times.parse::<u64>().ok()?.into()))
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn point_is_named_with_a_number() {
        let (point, times) = named("log-synced:7").unwrap();
        assert_eq!((point.as_str(), times.into_inner()), ("log-synced", 7));
        assert!(named("log-synced").is_none() && named("log-synced:x").is_none());
    }
}
