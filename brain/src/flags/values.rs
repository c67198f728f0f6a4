//! The values that make sense for a flag, as far as a bound of each flag alone tells. Programs that pass flags on check them by
//! `crds/flags.txt`. Where etcd corrects a value with a warning, so does the brain; here it is out of bounds.

use super::table::{Flag, Kind};

/// The values that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    /// Any text, as far as it is known here.
    Text,
    /// A boolean of Go.
    Bool,
    /// A whole number, with its bounds.
    Number(i128, i128),
    /// A duration of Go, with its bounds in nanoseconds.
    Duration(u64, u64),
    /// One of these words.
    OneOf(&'static [&'static str]),
}

use Values::{Bool, Duration, Number, OneOf, Text};

const U32: Values = Number(0, u32::MAX as i128);
const U64: Values = Number(0, u64::MAX as i128);
const I64: Values = Number(i64::MIN as i128, i64::MAX as i128);
const SECOND: u64 = 1_000_000_000;
const LONGEST: u64 = i64::MAX.cast_unsigned();
const ANY_DURATION: Values = Duration(0, LONGEST);

/// Flags whose values are neither booleans nor any text.
const VALUES: &[(&str, Values)] = &[
    ("election-timeout", Number(5, 50_000)),
    ("heartbeat-interval", Number(1, 10_000)),
    ("quota-backend-bytes", I64),
    ("max-txn-ops", U64),
    ("max-request-bytes", Number(1, 1 << 30)),
    ("max-concurrent-streams", U32),
    ("max-inflight-bytes", U64),
    ("key-index-bytes", I64),
    ("grpc-keepalive-min-time", ANY_DURATION),
    ("grpc-keepalive-interval", ANY_DURATION),
    ("grpc-keepalive-timeout", ANY_DURATION),
    ("storage", OneOf(&["embedded", "tikv"])),
    ("embedded-cache-bytes", U64),
    ("tikv-gc-interval", ANY_DURATION),
    ("tikv-gc-window", Duration(120 * SECOND, LONGEST)),
    ("election", OneOf(&["storage", "lease"])),
    ("initial-cluster-state", OneOf(&["new", "existing"])),
    ("auto-compaction-mode", OneOf(&["periodic", "revision"])),
    ("self-signed-cert-validity", U32),
    ("tls-min-version", OneOf(&["TLS1.2", "TLS1.3"])),
    ("tls-max-version", OneOf(&["", "TLS1.2", "TLS1.3"])),
    ("bcrypt-cost", Number(4, 31)),
    ("auth-token-ttl", U32),
    ("metrics", OneOf(&["basic", "extensive"])),
    ("logger", OneOf(&["zap"])),
    (
        "log-level",
        OneOf(&["debug", "info", "warn", "error", "dpanic", "panic", "fatal"]),
    ),
    ("log-format", OneOf(&["json", "console"])),
    ("warning-unary-request-duration", ANY_DURATION),
    ("warning-apply-duration", ANY_DURATION),
    ("distributed-tracing-sampling-rate", Number(0, 1_000_000)),
    ("corrupt-check-time", ANY_DURATION),
    ("compaction-batch-limit", Number(0, 1_000_000)),
    ("compaction-sleep-interval", Duration(0, 30 * SECOND)),
    ("watch-progress-notify-interval", ANY_DURATION),
    ("bootstrap-defrag-threshold-megabytes", U32),
];

impl Values {
    /// The values that `flag` takes.
    pub(super) fn of(flag: &Flag) -> Values {
        let found = VALUES.iter().find(|(name, _)| *name == flag.name);
        match (found, flag.kind) {
            (Some((_, values)), _) => *values,
            (None, Kind::Bool) => Bool,
            (None, Kind::Text) => Text,
        }
    }
}

/// The words that `crds/flags.txt` has for them.
impl std::fmt::Display for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Text => f.write_str("text"),
            Bool => f.write_str("bool"),
            Number(least, most) => write!(f, "number {least} {most}"),
            Duration(least, most) => write!(f, "duration {least} {most}"),
            OneOf(words) => write!(f, "one-of {}", words.join("|")),
        }
    }
}
