//! The configuration file: etcd's YAML, whose keys are names of flags.

use serde_yaml::{Mapping, Value};

use super::table::{Flag, Treatment};
use super::{FlagError, Given};

/// The flag that names the file.
pub(super) const CONFIG_FILE: &str = "config-file";

/// Sections of etcd's file, and what their keys begin with as flags.
const SECTIONS: [(&str, &str); 2] = [("client-transport-security", ""), ("peer-transport-security", "peer-")];

/// Keys of the sections whose flags have other names.
const RENAMED: [(&str, &str); 3] = [
    ("peer-allowed-cn", "peer-cert-allowed-cn"),
    ("peer-allowed-hostname", "peer-cert-allowed-hostname"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
];

/// Flags that are durations: as numbers they are nanoseconds, as Go reads them from YAML.
const DURATIONS: [&str; 11] = [
    "backend-batch-interval",
    "compact-hash-check-time",
    "compaction-sleep-interval",
    "corrupt-check-time",
    "downgrade-check-time",
    "grpc-keepalive-interval",
    "grpc-keepalive-min-time",
    "grpc-keepalive-timeout",
    "warning-apply-duration",
    "warning-unary-request-duration",
    "watch-progress-notify-interval",
];

/// Returns the flags that the text of a file gives. Keys that are no flag cause a warning.
pub(super) fn read(
    path: &str,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<(&'static Flag, Given)>, FlagError> {
    let failed = |why: &dyn std::fmt::Display| FlagError(format!("--{CONFIG_FILE} {path:?}: {why}"));
    let content: Value = serde_yaml::from_str(text).map_err(|error| failed(&error))?;
    let mapping = match content {
        Value::Mapping(mapping) => mapping,
        Value::Null => Mapping::new(),
        _ => return Err(failed(&"is not a mapping of flags to values")),
    };
    let mut given = Vec::new();
    for (key, value) in mapping {
        let key = name(&key).map_err(|error| failed(&error))?;
        match SECTIONS.iter().find(|(section, _)| *section == key) {
            Some((_, prefix)) => {
                let Value::Mapping(section) = value else {
                    return Err(failed(&format!("{key} is not a mapping")));
                };
                for (inner, value) in section {
                    let inner = name(&inner).map_err(|error| failed(&error))?;
                    let flag = format!("{prefix}{inner}");
                    let flag = RENAMED
                        .iter()
                        .find(|(old, _)| *old == flag)
                        .map_or(flag, |(_, new)| (*new).to_owned());
                    if Flag::named(&flag).is_none() {
                        // A key that limits who may connect must not be ignored.
                        return Err(failed(&format!("{key}.{inner} is not supported")));
                    }
                    take(&flag, &format!("{key}.{inner}"), &value, (&mut given, warnings))
                        .map_err(|error| failed(&error))?;
                }
            }
            None => take(&key, &key, &value, (&mut given, warnings)).map_err(|error| failed(&error))?,
        }
    }
    Ok(given)
}

fn name(key: &Value) -> Result<String, String> {
    key.as_str()
        .map(ToOwned::to_owned)
        .ok_or_else(|| "has a key that is no text".to_owned())
}

fn take(
    flag: &str,
    key: &str,
    value: &Value,
    (given, warnings): (&mut Vec<(&'static Flag, Given)>, &mut Vec<String>),
) -> Result<(), String> {
    let origin = format!("{key} in the configuration file");
    let Some(flag) = Flag::named(flag).filter(|flag| ![CONFIG_FILE, "version", "check"].contains(&flag.name)) else {
        warnings.push(format!("{origin} is unknown"));
        return Ok(());
    };
    let Some(text) = text(target(flag), value).map_err(|error| format!("{key} {error}"))? else {
        return Ok(());
    };
    given.push((
        flag,
        Given::new(flag, origin, &text).map_err(|error| error.to_string())?,
    ));
    Ok(())
}

/// The name that a flag has today.
fn target(flag: &Flag) -> &'static str {
    match flag.treatment {
        Treatment::Renamed(new) => new,
        _ => flag.name,
    }
}

/// Returns a value as a flag has it; `None` for one that is not set.
fn text(flag: &str, value: &Value) -> Result<Option<String>, String> {
    Ok(match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(bool) => Some(bool.to_string()),
        Value::Number(number) if DURATIONS.contains(&flag) => Some(format!("{number}ns")),
        Value::Number(number) => Some(number.to_string()),
        Value::Sequence(items) => {
            let items = items
                .iter()
                .map(|item| text(flag, item))
                .collect::<Result<Vec<_>, _>>()?;
            Some(items.into_iter().flatten().collect::<Vec<_>>().join(","))
        }
        Value::Mapping(_) | Value::Tagged(_) => return Err("is no value of a flag".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> (Vec<(&'static str, String)>, Vec<String>) {
        let mut warnings = Vec::new();
        let given = read("c.yaml", text, &mut warnings).unwrap();
        let given = given.into_iter().map(|(flag, given)| (flag.name, given.value));
        (given.collect(), warnings)
    }

    #[test]
    fn keys_are_flags() {
        let text = "
            name: a
            snapshot-count: 5000
            listen-client-urls: http://127.0.0.1:1,http://127.0.0.1:2
            log-outputs: [stderr, stdout]
            unsafe-no-fsync: true
            watch-progress-notify-interval: 5000000000
            experimental-downgrade-check-time: 5000000000
            cors:
            no-such-key: 1
            client-transport-security:
              cert-file: c
              client-cert-auth: true
              allowed-hostname: h
            peer-transport-security:
              trusted-ca-file: ca
              allowed-cn: x";
        let (given, warnings) = values(text);
        let expected = [
            ("name", "a"),
            ("snapshot-count", "5000"),
            ("listen-client-urls", "http://127.0.0.1:1,http://127.0.0.1:2"),
            ("log-outputs", "stderr,stdout"),
            ("unsafe-no-fsync", "true"),
            ("watch-progress-notify-interval", "5000000000ns"),
            ("experimental-downgrade-check-time", "5000000000ns"),
            ("cert-file", "c"),
            ("client-cert-auth", "true"),
            ("client-cert-allowed-hostname", "h"),
            ("peer-trusted-ca-file", "ca"),
            ("peer-cert-allowed-cn", "x"),
        ];
        assert_eq!(given, expected.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(warnings, ["no-such-key in the configuration file is unknown"]);
        assert_eq!(values("").0, []);
        assert!(DURATIONS.iter().all(|name| Flag::named(name).is_some()));
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        for (text, error) in [
            ("- a", "--config-file \"c.yaml\": is not a mapping of flags to values"),
            ("name: {a: b}", "--config-file \"c.yaml\": name is no value of a flag"),
            (
                "unsafe-no-fsync: maybe",
                "--config-file \"c.yaml\": unsafe-no-fsync in the configuration file must be true or false, not \"maybe\"",
            ),
            (
                "client-transport-security: {allowed-cn: [a]}",
                "--config-file \"c.yaml\": client-transport-security.allowed-cn is not supported",
            ),
            (
                "client-transport-security: x",
                "--config-file \"c.yaml\": client-transport-security is not a mapping",
            ),
        ] {
            assert_eq!(read("c.yaml", text, &mut Vec::new()).unwrap_err().to_string(), error);
        }
        let error = read("c.yaml", "a: [", &mut Vec::new()).unwrap_err().to_string();
        assert!(
            error.starts_with("--config-file \"c.yaml\": ") && error.contains("line 2"),
            "{error}"
        );
    }
}
