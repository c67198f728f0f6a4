//! The flags of logs.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Values;
use telemetry::logs::{LogFormat, LogLevel, LogOptions, LogOutput, LogRotation};

/// The flag with the JSON of the rotation.
const ROTATION: &str = "log-rotation-config-json";

/// The unit of `maxsize` in bytes, and its value if it is 0.
const MEGABYTE: u64 = 1 << 20;
const DEFAULT_MEGABYTES: u64 = 100;

/// The unit of `maxage`.
const DAY: u64 = 24 * 3600;

pub(super) fn read(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<LogOptions, String> {
    // As in Go, in any case, and none is the default.
    let level = values.one_of_lower(
        "log-level",
        &[
            ("debug", LogLevel::Debug),
            ("info", LogLevel::Info),
            ("", LogLevel::Info),
            ("warn", LogLevel::Warn),
            ("error", LogLevel::Error),
            ("dpanic", LogLevel::Error),
            ("panic", LogLevel::Error),
            ("fatal", LogLevel::Error),
        ],
    )?;
    let format = values.one_of(
        "log-format",
        &[
            ("json", LogFormat::Json),
            ("console", LogFormat::Console),
            ("", LogFormat::Json),
        ],
    )?;
    let mut outputs = Vec::new();
    for output in values.list("log-outputs") {
        let output = match output.as_str() {
            "default" | "stderr" => LogOutput::Stderr,
            "stdout" => LogOutput::Stdout,
            "systemd/journal" => {
                warnings.push(
                    "--log-outputs=systemd/journal: lines are written to stderr, which systemd forwards to its journal"
                        .to_owned(),
                );
                LogOutput::Stderr
            }
            path => LogOutput::File(path.into()),
        };
        if !outputs.contains(&output) {
            outputs.push(output);
        }
    }
    if outputs.is_empty() {
        outputs.push(LogOutput::Stderr);
    }
    Ok(LogOptions {
        level,
        format,
        rotation: rotation(values, &outputs, warnings)?,
        outputs,
    })
}

/// Returns the rotation of the log file, if it is enabled. The case of field names is ignored, as in Go.
fn rotation(
    values: &Values<'_>,
    outputs: &[LogOutput],
    warnings: &mut Vec<String>,
) -> Result<Option<LogRotation>, String> {
    if !values.bool("enable-log-rotation") {
        return Ok(None);
    }
    let files = outputs.iter().filter(|output| matches!(output, LogOutput::File(_)));
    if files.count() != 1 {
        return Err("--log-outputs requires a single file path when --enable-log-rotation is given".to_owned());
    }
    let wrong = |what: &dyn std::fmt::Display| values.error(ROTATION, what);
    let fields: Map<String, Value> = serde_json::from_str(values.text(ROTATION)).map_err(|error| wrong(&error))?;
    let mut rotation = LogRotation {
        max_bytes: DEFAULT_MEGABYTES * MEGABYTE,
        max_age: None,
        max_backups: 0,
        local_time: false,
        compress: false,
    };
    for (name, value) in &fields {
        let number = || {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| wrong(&format!("{name} is not a number in range")))
        };
        let bool = || {
            value
                .as_bool()
                .ok_or_else(|| wrong(&format!("{name} is neither true nor false")))
        };
        match name.to_lowercase().as_str() {
            "maxsize" => match number()? {
                0 => {}
                megabytes => rotation.max_bytes = u64::from(megabytes) * MEGABYTE,
            },
            "maxage" => {
                let days = Some(number()?).filter(|days| *days > 0);
                rotation.max_age = days.map(|days| Duration::from_secs(u64::from(days) * DAY));
            }
            "maxbackups" => rotation.max_backups = number()?.try_into().unwrap_or(usize::MAX),
            "localtime" => rotation.local_time = bool()?,
            "compress" => rotation.compress = bool()?,
            _ => warnings.push(format!("{name:?} in --{ROTATION} has no effect")),
        }
    }
    Ok(Some(rotation))
}
