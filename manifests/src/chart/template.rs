//! Renders objects whose strings contain Helm templates as the text of a template.
//!
//! A string that contains `{{ … }}` is rendered unchanged. A value that is not a string is written as a string with a mark in front. The
//! template replaces its whole line, or the line of its field.

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Name of the operator's objects in a release.
pub(crate) const NAME: &str = r#"{{ include "kubebrain-operator.fullname" $ }}"#;

/// A key whose value is an expression for a map to merge into the surrounding one.
pub(crate) const MERGED: &str = "zzMERGED";

const SCALAR: &str = "SCALAR ";
const BLOCK: &str = "BLOCK ";
const WITH: &str = "WITH ";
const EACH: &str = "EACH ";
const PORTS: &str = "PORTS ";

/// A number or a boolean.
pub(crate) fn scalar(expression: &str) -> Value {
    Value::String(format!("{SCALAR}{expression}"))
}

/// A field with a value of any type; the field is omitted if the value is empty.
pub(crate) fn block(expression: &str) -> Value {
    Value::String(format!("{BLOCK}{expression}"))
}

/// An entry of a list that exists only if `expression` has a value. `text` refers to the value as `.`.
pub(crate) fn item_with(expression: &str, text: &str) -> String {
    format!("{WITH}{expression} THEN {text}")
}

/// An entry for each string of a list.
pub(crate) fn each(expression: &str) -> String {
    format!("{EACH}{expression}")
}

/// A TCP port of a NetworkPolicy for each number of a list.
pub(crate) fn each_port(expression: &str) -> String {
    format!("{PORTS}{expression}")
}

/// Renders the documents as one template.
///
/// # Errors
/// An object fails to serialise, or has a mark in a place where it cannot be replaced.
pub(crate) fn documents(objects: &[Value]) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        for line in serde_yaml::to_string(object).context("serialise as YAML")?.lines() {
            text.push_str(&template(line)?);
            text.push('\n');
        }
    }
    Ok(text)
}

fn template(line: &str) -> anyhow::Result<String> {
    let bare = line.trim_start();
    let indent = " ".repeat(line.len() - bare.len());
    let ours = match bare.split_once(": ") {
        Some((MERGED, expression)) => Some(format!(
            "{indent}{{{{- with {expression} }}}}\n{indent}{{{{- toYaml . | nindent {} }}}}\n{indent}{{{{- end }}}}",
            indent.len()
        )),
        // The first field of an entry cannot be omitted without the others.
        Some((field, value)) if !field.starts_with("- ") => field_of(field, value, &indent),
        _ => None,
    };
    let ours = ours.or_else(|| {
        bare.strip_prefix("- ")
            .and_then(|item| item_of(unquoted(item), &indent))
    });
    let text = ours.unwrap_or_else(|| escaped(line));
    for mark in [MERGED, SCALAR, BLOCK, WITH, EACH, PORTS] {
        ensure!(!text.contains(mark), "cannot make a template of {line:?}");
    }
    Ok(text)
}

/// Escapes the Prometheus templates in a line, so that Helm renders them as text.
fn escaped(line: &str) -> String {
    let mut parts = line.split("{{ $labels.");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once(" }}").unwrap_or((part, ""));
        text.push_str("{{ `{{ $labels.");
        text.push_str(label);
        text.push_str(" }}` }}");
        text.push_str(rest);
    }
    text
}

fn field_of(field: &str, value: &str, indent: &str) -> Option<String> {
    if let Some(expression) = value.strip_prefix(SCALAR) {
        return Some(format!("{indent}{field}: {{{{ {expression} }}}}"));
    }
    let expression = value.strip_prefix(BLOCK)?;
    let inner = indent.len() + 2;
    Some(format!(
        "{indent}{{{{- with {expression} }}}}\n{indent}{field}:\n{indent}  {{{{- toYaml . | nindent {inner} }}}}\n{indent}{{{{- end }}}}"
    ))
}

fn item_of(item: &str, indent: &str) -> Option<String> {
    if let Some(rest) = item.strip_prefix(WITH) {
        let (expression, text) = rest.split_once(" THEN ")?;
        return Some(format!(
            "{indent}{{{{- with {expression} }}}}\n{indent}- {text}\n{indent}{{{{- end }}}}"
        ));
    }
    if let Some(expression) = item.strip_prefix(EACH) {
        return Some(format!(
            "{indent}{{{{- range {expression} }}}}\n{indent}- {{{{ . | quote }}}}\n{indent}{{{{- end }}}}"
        ));
    }
    let expression = item.strip_prefix(PORTS)?;
    Some(format!(
        "{indent}{{{{- range {expression} }}}}\n{indent}- port: {{{{ . }}}}\n{indent}  protocol: TCP\n{indent}{{{{- end }}}}"
    ))
}

/// Removes the quotes of a single-quoted scalar; returns anything else unchanged.
fn unquoted(scalar: &str) -> &str {
    scalar
        .strip_prefix('\'')
        .and_then(|rest| rest.strip_suffix('\''))
        .unwrap_or(scalar)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_stay_quoted_and_marks_are_replaced() {
        let object = json!({
            "labels": {"a": NAME, MERGED: ".Values.labels"},
            "list": [each(".Values.more"), item_with(".Values.some", r#"--some={{ join "," . }}"#)],
            "none": block(".Values.none"),
            "number": scalar(".Values.number"),
            "prometheus": "{{ $labels.a }} and {{ $labels.b }}.",
        });
        let expected = r#"---
labels:
  a: '{{ include "kubebrain-operator.fullname" $ }}'
  {{- with .Values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
list:
{{- range .Values.more }}
- {{ . | quote }}
{{- end }}
{{- with .Values.some }}
- --some={{ join "," . }}
{{- end }}
{{- with .Values.none }}
none:
  {{- toYaml . | nindent 2 }}
{{- end }}
number: {{ .Values.number }}
prometheus: '{{ `{{ $labels.a }}` }} and {{ `{{ $labels.b }}` }}.'
"#;
        assert_eq!(documents(&[object]).unwrap(), expected);
    }

    #[test]
    fn a_mark_that_cannot_be_replaced_is_an_error() {
        for bad in [
            json!({"text": "BLOCK x: SCALAR y"}),
            json!([{"first": block(".Values.first"), "second": 2}]),
        ] {
            let error = documents(&[bad]).unwrap_err();
            assert!(error.to_string().contains("cannot make a template"), "{error}");
        }
    }
}
