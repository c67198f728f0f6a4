//! The options of logs, as flags give them.

use std::path::PathBuf;
use std::time::Duration;

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Least severe level that is logged.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// The targets of log lines; never empty.
    pub outputs: Vec<LogOutput>,
    /// How the file among the targets is replaced when it is full; `None` if it never is.
    pub rotation: Option<LogRotation>,
}

/// The replacement of a log file that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// The size of a full file in bytes.
    pub max_bytes: u64,
    /// The age at which an old file is removed, if there is one.
    pub max_age: Option<Duration>,
    /// The number of old files that are kept; 0 means all.
    pub max_backups: usize,
    /// True if the time in their names is local time, else UTC.
    pub local_time: bool,
    /// True if they are compressed.
    pub compress: bool,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Each request.
    Debug,
    /// Changes of state.
    Info,
    /// Unexpected, but the process continues.
    Warn,
    /// A human must act.
    Error,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object.
    Json,
    /// Text for people.
    Console,
}

/// The target of log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
}
