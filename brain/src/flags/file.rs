//! The configuration file: etcd's YAML, whose keys are names of flags.

use super::table::{Flag, Kind, Treatment};
use super::yaml::{self, Node};
use super::{FlagError, Given, number};

/// The flag that names the file.
pub(super) const CONFIG_FILE: &str = "config-file";

/// Sections of etcd's file, and what their keys begin with as flags.
const SECTIONS: [(&str, &str); 4] = [
    ("client-transport-security", ""),
    ("peer-transport-security", "peer-"),
    ("socket-options", "socket-"),
    ("discovery-config", "discovery-"),
];

/// Keys of the sections whose flags have other names.
const RENAMED: [(&str, &str); 5] = [
    ("peer-allowed-cn", "peer-cert-allowed-cn"),
    ("peer-allowed-hostname", "peer-cert-allowed-hostname"),
    ("allowed-cn", "client-cert-allowed-cn"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
    ("crl-file", "client-crl-file"),
];

/// Flags that are no keys of the file.
const NO_KEYS: [&str; 4] = [CONFIG_FILE, "version", "check", "discovery-fallback"];

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

/// Returns the flags that the text of a file gives. Keys that are no flag cause a warning; keys are taken in any case, as in Go.
pub(super) fn read(
    path: &str,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<(&'static Flag, Given)>, FlagError> {
    let failed = |why: &dyn std::fmt::Display| FlagError(format!("--{CONFIG_FILE} {path:?}: {why}"));
    let entries = match yaml::read(text).map_err(|error| failed(&error))? {
        Node::Map(entries) => entries,
        Node::Null => Vec::new(),
        _ => return Err(failed(&"is not a mapping of flags to values")),
    };
    let mut found = Found {
        given: Vec::new(),
        warnings,
    };
    for (key, value) in entries {
        match SECTIONS.iter().find(|(section, _)| section.eq_ignore_ascii_case(&key)) {
            Some((_, prefix)) => found.take_section(&key, prefix, value),
            None => found.take(&key, &key, &value),
        }
        .map_err(|error| failed(&error))?;
    }
    Ok(found.given)
}

/// The flags and warnings that were found in a file.
struct Found<'a> {
    given: Vec<(&'static Flag, Given)>,
    warnings: &'a mut Vec<String>,
}

impl Found<'_> {
    fn take_section(&mut self, section: &str, prefix: &str, value: Node) -> Result<(), String> {
        let entries = match value {
            Node::Map(entries) => entries,
            Node::Null => return Ok(()),
            _ => return Err(format!("{section} is not a mapping")),
        };
        for (inner, value) in entries {
            let flag = format!("{prefix}{}", inner.to_ascii_lowercase());
            let flag = RENAMED
                .iter()
                .find(|(old, _)| *old == flag)
                .map_or(flag, |(_, new)| (*new).to_owned());
            self.take(&flag, &format!("{section}.{inner}"), &value)?;
        }
        Ok(())
    }

    fn take(&mut self, flag: &str, key: &str, value: &Node) -> Result<(), String> {
        let origin = format!("{key} in the configuration file");
        let flag = Flag::named(&flag.to_ascii_lowercase()).filter(|flag| !NO_KEYS.contains(&flag.name));
        let Some(flag) = flag else {
            if *value != Node::Null {
                self.warnings.push(format!("{origin} has no effect: unknown key"));
            }
            return Ok(());
        };
        let Some(text) = text(flag, value).map_err(|error| format!("{key} {error}"))? else {
            return Ok(());
        };
        let given = Given::new(flag, origin, &text).map_err(|error| error.to_string())?;
        self.given.push((flag, given));
        Ok(())
    }
}

/// The name that a flag has today.
fn target(flag: &Flag) -> &'static str {
    match flag.treatment {
        Treatment::Renamed(new) => new,
        _ => flag.name,
    }
}

/// Returns a value as a flag has it; `None` for one that is not set.
fn text(flag: &Flag, value: &Node) -> Result<Option<String>, String> {
    let is_duration = DURATIONS.contains(&target(flag));
    Ok(match value {
        Node::Null => None,
        // In JSON such a text sets nothing.
        Node::Text(text) if text.is_empty() => None,
        Node::Text(text) if flag.kind == Kind::Bool => {
            Some(yaml::word(text).map_or_else(|| text.clone(), |bool| bool.to_string()))
        }
        Node::Text(text) | Node::Number(text) => Some(match number::parse(text) {
            Some(nanos) if is_duration => format!("{nanos}ns"),
            _ => text.clone(),
        }),
        Node::Bool(bool) => Some(bool.to_string()),
        Node::List(items) => {
            let items = items
                .iter()
                .map(|item| self::text(flag, item))
                .collect::<Result<Vec<_>, _>>()?;
            Some(items.into_iter().flatten().collect::<Vec<_>>().join(","))
        }
        Node::Map(_) => return Err("is not the value of a flag".to_owned()),
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
        assert_eq!(
            warnings,
            ["no-such-key in the configuration file has no effect: unknown key"]
        );
        assert_eq!(values("").0, []);
        assert!(DURATIONS.iter().all(|name| Flag::named(name).is_some()));
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        for (text, error) in [
            ("- a", "--config-file \"c.yaml\": is not a mapping of flags to values"),
            (
                "name: {a: b}",
                "--config-file \"c.yaml\": name is not the value of a flag",
            ),
            (
                "unsafe-no-fsync: maybe",
                "--config-file \"c.yaml\": unsafe-no-fsync in the configuration file must be true or false, not \"maybe\"",
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

    #[test]
    fn keys_and_values_are_taken_as_by_etcd() {
        for (yaml, expected) in [
            (
                "client-transport-security: {client-cert-auth: yes}",
                ("client-cert-auth", "true"),
            ),
            ("unsafe-no-fsync: off", ("unsafe-no-fsync", "false")),
            ("Name: a", ("name", "a")),
            ("DATA-DIR: /d", ("data-dir", "/d")),
            ("Peer-Transport-Security: {Cert-File: c}", ("peer-cert-file", "c")),
            ("snapshot-count: 1_000", ("snapshot-count", "1_000")),
            ("quota-backend-bytes: 8e9", ("quota-backend-bytes", "8000000000")),
            (
                "watch-progress-notify-interval: 5e9",
                ("watch-progress-notify-interval", "5000000000ns"),
            ),
            (
                "watch-progress-notify-interval: 5_000",
                ("watch-progress-notify-interval", "5000ns"),
            ),
            ("name: 7", ("name", "7")),
            ("client-transport-security: {crl-file: c}", ("client-crl-file", "c")),
            (
                "client-transport-security: {allowed-cn: [a, b]}",
                ("client-cert-allowed-cn", "a,b"),
            ),
            ("socket-options: {reuse-port: true}", ("socket-reuse-port", "true")),
            ("discovery-config: {endpoints: [e]}", ("discovery-endpoints", "e")),
        ] {
            let (given, warnings) = values(yaml);
            assert_eq!(given, [(expected.0, expected.1.to_owned())], "{yaml}");
            assert_eq!(warnings, Vec::<String>::new(), "{yaml}");
        }
        for yaml in ["name: ''", "cors:", "client-transport-security:", "wal-dir: ~"] {
            assert_eq!(values(yaml), (vec![], vec![]), "{yaml}");
        }
        for yaml in [
            "discovery-fallback: proxy",
            "proxy: off",
            "client-transport-security: {skip-client-san-verification: true}",
        ] {
            let (given, warnings) = values(yaml);
            assert_eq!((given.len(), warnings.len()), (0, 1), "{yaml}");
        }
    }
}
