//! Logs: their targets and their format.

use std::fs::OpenOptions;
use std::io;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt as _};
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder, format};

pub use options::{LogFormat, LogLevel, LogOptions, LogOutput, LogRotation};
use rotate::RotatingFile;
use zap::ZapFormat;

mod options;
mod rotate;
mod zap;

/// Crates whose INFO lines are not logged; they log below WARN only at `debug`.
const CHATTY_CRATES: &[&str] = &["hyper", "hyper_util", "tonic", "tower", "rustls", "lsm_tree"];

/// Sets the process's logger; call it once, before anything logs. `RUST_LOG` overrides the level. Fails if a file cannot be opened,
/// or a logger is already set.
pub fn init(options: &LogOptions) -> anyhow::Result<()> {
    let writer = writer(&options.outputs, options.rotation)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(options.level))
        .with_writer(writer);
    let set = match options.format {
        LogFormat::Json => zap(builder).try_init(),
        LogFormat::Console => builder.with_ansi(false).try_init(),
    };
    set.map_err(|error| anyhow::anyhow!(error)).context("set the logger")
}

/// Formats lines as etcd's logger does.
fn zap<N, E, F, W>(builder: SubscriberBuilder<N, E, F, W>) -> SubscriberBuilder<format::JsonFields, ZapFormat, F, W>
where
    W: for<'a> MakeWriter<'a> + 'static,
{
    builder.fmt_fields(format::JsonFields::new()).event_format(ZapFormat)
}

fn filter(level: LogLevel) -> EnvFilter {
    let ours = match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    };
    let theirs = if matches!(level, LogLevel::Debug) {
        "info"
    } else {
        "warn"
    };
    let theirs = if matches!(level, LogLevel::Error) {
        "error"
    } else {
        theirs
    };
    let chatty: Vec<String> = CHATTY_CRATES.iter().map(|name| format!("{name}={theirs}")).collect();
    // These crates repeat every failed call or connection, which kubebrain itself logs once.
    let default = format!(
        "{ours},{},h2=error,tikv_client=off,kube_client::client=off",
        chatty.join(",")
    );
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default))
}

/// Returns one writer for all targets.
fn writer(outputs: &[LogOutput], rotation: Option<LogRotation>) -> anyhow::Result<BoxMakeWriter> {
    let mut all: Option<BoxMakeWriter> = None;
    for output in outputs {
        let one = match output {
            LogOutput::Stderr => BoxMakeWriter::new(io::stderr),
            LogOutput::Stdout => BoxMakeWriter::new(io::stdout),
            LogOutput::File(path) => {
                let opening = || format!("open the log file {}", path.display());
                match rotation {
                    Some(rotation) => {
                        let file = RotatingFile::open(path, rotation).with_context(opening)?;
                        BoxMakeWriter::new(Mutex::new(file))
                    }
                    None => {
                        let file = OpenOptions::new().create(true).append(true).open(path);
                        BoxMakeWriter::new(Arc::new(file.with_context(opening)?))
                    }
                }
            }
        };
        all = Some(match all {
            None => one,
            Some(others) => BoxMakeWriter::new(others.and(one)),
        });
    }
    all.context("--log-outputs has no target")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tracing_subscriber::fmt::MakeWriter as _;

    use super::*;

    #[test]
    fn every_target_gets_every_line() {
        let dir = tempfile::TempDir::new().unwrap();
        let paths = [dir.path().join("a"), dir.path().join("b")];
        let outputs = paths.clone().map(LogOutput::File);
        for line in ["one\n", "two\n"] {
            writer(&outputs, None)
                .unwrap()
                .make_writer()
                .write_all(line.as_bytes())
                .unwrap();
        }
        for path in paths {
            assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
        }
        let rotation = LogRotation {
            max_bytes: 5,
            max_age: None,
            max_backups: 1,
            local_time: false,
            compress: false,
        };
        let rotating = writer(&[LogOutput::File(dir.path().join("c.log"))], Some(rotation)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            rotating.make_writer().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("c.log")).unwrap(), "three\n");
        assert!(writer(&[LogOutput::File(dir.path().join("no/such"))], None).is_err());
    }
}
