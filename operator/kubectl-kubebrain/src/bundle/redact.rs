//! Removes secrets from what a support bundle holds.
//!
//! Two ways complete each other. Places that can hold a secret lose their values: data of Secrets and ConfigMaps, variables, annotations of
//! other tools, arguments of containers of others, headers and commands of probes. And values that Secrets of the namespace hold are replaced
//! wherever they occur, so that a program that logs its password does not spread it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use plan::archive::ARCHIVE_CONTAINER;
use plan::backup::BACKUP_CONTAINER;
use plan::bootstrap::BOOTSTRAP_CONTAINER;
use plan::objects::BRAIN_CONTAINER;
use regex::Regex;
use serde_json::{Map, Value, json};

/// Text in place of what is removed.
pub(super) const REDACTED: &str = "REDACTED";
/// Containers of KubeBrain. Their arguments name secrets, but hold none.
const OWN_CONTAINERS: [&str; 6] = [
    BRAIN_CONTAINER,
    ARCHIVE_CONTAINER,
    BACKUP_CONTAINER,
    BOOTSTRAP_CONTAINER,
    "wipe",
    "operator",
];
/// Beginnings of annotations that are kept.
const KEPT_ANNOTATIONS: [&str; 8] = [
    "kubebrain.io/",
    "batch.kubernetes.io/",
    "deployment.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "kubectl.kubernetes.io/default-container",
    "kubectl.kubernetes.io/restartedAt",
];
/// Parts of names of fields whose texts are removed. Names are compared in lower case.
const SECRET_FIELDS: [&str; 7] = [
    "password",
    "passwd",
    "secretkey",
    "secretaccesskey",
    "accesskey",
    "accountkey",
    "privatekey",
];
/// Keys of Secrets whose values are public: they occur where they say something.
const PUBLIC_KEYS: [&str; 8] = [
    "ca.crt",
    "tls.crt",
    "username",
    "namespace",
    "AWS_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_TENANT_ID",
    "type",
];
/// Shorter values of Secrets are not looked for: they would occur by chance.
const MIN_KNOWN_CHARS: usize = 8;
/// Longer ones are looked for by their lines.
const MAX_KNOWN_BYTES: usize = 64 * 1024;
/// Longer ones do not occur in URLs.
const MAX_ENCODED_BYTES: usize = 4 * 1024;
/// Characters that encoders of URLs keep besides letters, digits and `-._~`: none, those of JavaScript, and those of Go in users and in paths.
const KEPT_BY_ENCODERS: [&str; 4] = ["", "!'()*", "$&+,;=", "$&+,;=:@/"];

pub(super) struct Redactor {
    patterns: Vec<(Regex, String)>,
    /// Values of Secrets, the longest first.
    known: Vec<String>,
}

impl Redactor {
    pub(super) fn new() -> Result<Self, regex::Error> {
        let patterns = [
            (
                r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
                REDACTED.to_owned(),
            ),
            // The user in a URL.
            (
                r#"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@"']+@"#,
                format!("${{1}}{REDACTED}@"),
            ),
            (
                r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}",
                format!("${{1}} {REDACTED}"),
            ),
            (r#"(--user[= ]"?[^:\s"]+:)[^\s"]+"#, format!("${{1}}{REDACTED}")),
            (
                r#"(?i)((?:passwd|password|secret[_-]?key|secret[_-]?access[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|token|signature|[?&]sig)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'&,;\\]+"#,
                format!("${{1}}{REDACTED}"),
            ),
            // A JSON Web Token, signed or encrypted.
            (r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){2,4}", REDACTED.to_owned()),
        ];
        let patterns: Result<Vec<_>, _> = patterns
            .into_iter()
            .map(|(pattern, replacement)| Ok((Regex::new(pattern)?, replacement)))
            .collect();
        Ok(Self {
            patterns: patterns?,
            known: Vec::new(),
        })
    }

    /// Learns the values of Secrets.
    pub(super) fn learn(&mut self, secrets: &[Secret]) {
        let mut known = BTreeSet::new();
        for secret in secrets {
            let data = secret.data.iter().flatten();
            for (_, value) in data.filter(|(key, _)| !PUBLIC_KEYS.contains(&key.as_str())) {
                known.extend(forms_of(&value.0));
                // As it is in the object of the API server.
                if let Ok(Value::String(encoded)) = serde_json::to_value(value) {
                    known.insert(encoded);
                }
            }
        }
        self.known.extend(known.into_iter().filter(|value| {
            let is_public = value.starts_with("-----BEGIN CERTIFICATE") || value.starts_with("-----END");
            value.chars().count() >= MIN_KNOWN_CHARS && value.len() <= MAX_KNOWN_BYTES && !is_public
        }));
        self.known
            .sort_by(|one, other| other.len().cmp(&one.len()).then(one.cmp(other)));
    }

    /// Returns a text without secrets.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.known {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REDACTED);
            }
        }
        for (pattern, replacement) in &self.patterns {
            text = pattern.replace_all(&text, replacement.as_str()).into_owned();
        }
        text
    }

    /// Removes secrets from an object of the API server, or from a list of objects.
    pub(super) fn object(&self, object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        if ["Secret", "ConfigMap"].iter().any(|kind| object["kind"] == *kind) {
            for field in ["data", "stringData", "binaryData"] {
                for (_, value) in object
                    .get_mut(field)
                    .and_then(Value::as_object_mut)
                    .into_iter()
                    .flatten()
                {
                    *value = json!(REDACTED);
                }
            }
        }
        self.walk(object);
    }

    fn walk(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|value| self.walk(value)),
            Value::Object(fields) => {
                if is_foreign_container(fields) {
                    hide(fields.get_mut("args"));
                    hide(fields.get_mut("command"));
                }
                for (key, value) in fields.iter_mut() {
                    match key.as_str() {
                        "annotations" => hide_annotations(value),
                        "env" | "httpHeaders" => {
                            for entry in value.as_array_mut().into_iter().flatten() {
                                hide(entry.get_mut("value"));
                            }
                        }
                        "exec" => hide(value.get_mut("command")),
                        key if is_secret(key) && value.is_string() => *value = json!(REDACTED),
                        _ => {}
                    }
                    self.walk(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Returns the forms in which a value may occur in a text: as it is, its lines, and both as JSON and URLs have them.
fn forms_of(value: &[u8]) -> BTreeSet<String> {
    let Ok(text) = std::str::from_utf8(value) else {
        return BTreeSet::new();
    };
    let parts = text.lines().chain([text]).map(str::trim);
    let escaped = |part: &str| {
        let quoted = json!(part).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let mut forms = BTreeSet::new();
    for part in parts {
        forms.extend([part.to_owned(), escaped(part)]);
        forms.extend(percent_encoded(part));
    }
    forms
}

/// Returns a text as encoders of URLs write it. They differ in the characters that they keep, and in the case of digits.
fn percent_encoded(text: &str) -> Vec<String> {
    if text.len() > MAX_ENCODED_BYTES {
        return Vec::new();
    }
    let encode = |kept: &str, is_upper: bool| {
        let mut encoded = String::new();
        for byte in text.bytes() {
            let c = char::from(byte);
            if c.is_ascii_alphanumeric() || "-._~".contains(c) || kept.contains(c) {
                encoded.push(c);
            } else if is_upper {
                encoded.push_str(&format!("%{byte:02X}"));
            } else {
                encoded.push_str(&format!("%{byte:02x}"));
            }
        }
        encoded
    };
    let mut forms = Vec::new();
    for is_upper in [true, false] {
        forms.extend(KEPT_BY_ENCODERS.map(|kept| encode(kept, is_upper)));
        // As forms and queries have it.
        forms.push(encode("", is_upper).replace("%20", "+"));
    }
    forms
}

/// Returns true for the name of a container of KubeBrain.
pub(super) fn is_own(container: &str) -> bool {
    OWN_CONTAINERS.contains(&container)
}

fn is_foreign_container(fields: &Map<String, Value>) -> bool {
    let text = |field: &str| fields.get(field).and_then(Value::as_str);
    let name = text("name").filter(|_| text("image").is_some());
    name.is_some_and(|name| !is_own(name))
}

fn is_secret(field: &str) -> bool {
    let field: String = field
        .to_lowercase()
        .chars()
        .filter(|c| !['-', '_'].contains(c))
        .collect();
    field.ends_with("token") || SECRET_FIELDS.iter().any(|part| field.contains(part))
}

fn hide_annotations(annotations: &mut Value) {
    for (key, value) in annotations.as_object_mut().into_iter().flatten() {
        if !KEPT_ANNOTATIONS.iter().any(|kept| key.starts_with(kept)) {
            *value = json!(REDACTED);
        }
    }
}

/// Removes a text, or the texts of a list.
fn hide(value: Option<&mut Value>) {
    match value {
        Some(Value::Array(list)) => list.iter_mut().for_each(|entry| *entry = json!(REDACTED)),
        Some(value) if !value.is_null() => *value = json!(REDACTED),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(Redactor::new().unwrap().text(text), expected);
    }

    #[test]
    fn secrets_in_texts_are_removed() {
        check("GET https://jane:pw@host/x", "GET https://REDACTED@host/x");
        check("authorization: Bearer abcdefgh.ij", "authorization: Bearer REDACTED");
        check(r#"{"password":"pw","x":1}"#, r#"{"password":"REDACTED","x":1}"#);
        check(r#"{\"token\": \"pw\"}"#, r#"{\"token\": \"REDACTED\"}"#);
        check("--user=root:pw --x", "--user=root:REDACTED --x");
        check("AWS_SECRET_ACCESS_KEY=pw", "AWS_SECRET_ACCESS_KEY=REDACTED");
        check("https://h/b?a=1&sig=pw&x=2", "https://h/b?a=1&sig=REDACTED&x=2");
        check(
            "a -----BEGIN EC PRIVATE KEY-----\nxyz\n-----END EC PRIVATE KEY----- b",
            "a REDACTED b",
        );
        check("a -----BEGIN PRIVATE KEY-----\nxyz", "a REDACTED");
        check(
            "session eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.c2ln-_ ended",
            "session REDACTED ended",
        );
        check("eyJhbGciOiJkaXIifQ..aXY.dGV4dA.dGFn,", "REDACTED,");
    }

    #[test]
    fn values_of_secrets_are_removed_as_urls_have_them() {
        let mut redactor = Redactor::new().unwrap();
        let value = ByteString(b"pa ss/w@rd!".to_vec());
        redactor.learn(&[Secret {
            data: Some([("password".to_owned(), value)].into()),
            ..Secret::default()
        }]);
        for form in [
            "pa ss/w@rd!",
            "pa%20ss%2Fw%40rd%21",
            "pa%20ss%2fw%40rd%21",
            "pa%20ss%2Fw%40rd!",
            "pa%20ss/w@rd%21",
            "pa+ss%2Fw%40rd%21",
        ] {
            assert_eq!(redactor.text(&format!("GET /?q={form}&x")), "GET /?q=REDACTED&x");
        }
    }

    #[test]
    fn other_texts_stay() {
        for text in [
            "encryption.keySecretRef: Secret key does not exist",
            "etcd_server_has_leader{job=\"a\"} 1",
            "https://10.0.0.1:2379/health",
            "basic auth is off",
            "eyJ begins a JWT",
            "-----BEGIN CERTIFICATE-----",
        ] {
            check(text, text);
        }
    }
}
