//! The pages of the resources: fields of their definitions, reasons of their conditions.

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use plan::status::documented_reasons::Reason;
use serde_json::Value;

use crate::markdown::{code, codes, prose, table};
use crate::template::fill;

/// Fields whose own fields are described by Kubernetes.
const OF_KUBERNETES: [&str; 5] = [
    "resources",
    "tolerations[]",
    "topologySpreadConstraints[]",
    "selector",
    "conditions[]",
];

/// Fields of references to objects, which have no rows of their own.
const OF_REFERENCES: [&str; 4] = ["group", "key", "kind", "name"];

/// Fields whose own fields are on the page of another resource.
const OF_OTHER_PAGES: [&str; 1] = ["template.spec"];

/// Returns the page of `KubeBrainCluster`.
pub(crate) fn page() -> anyhow::Result<String> {
    let reasons = plan::status::documented_reasons::REASONS;
    of(
        crds::KubeBrainCluster::crd(),
        reasons,
        include_str!("../templates/resource.md"),
    )
}

/// Returns the page of `KubeBrainBackup`.
pub(crate) fn backup_page() -> anyhow::Result<String> {
    let template = include_str!("../templates/backup-resource.md");
    of(crds::KubeBrainBackup::crd(), plan::backup::REASONS, template)
}

/// Returns the page of `KubeBrainBackupSchedule`.
pub(crate) fn backup_schedule_page() -> anyhow::Result<String> {
    let template = include_str!("../templates/backup-schedule-resource.md");
    of(
        crds::KubeBrainBackupSchedule::crd(),
        plan::backup_schedule::REASONS,
        template,
    )
}

fn of(definition: CustomResourceDefinition, reasons: &[Reason], template: &'static str) -> anyhow::Result<String> {
    let definition = serde_json::to_value(definition).context("serialise the definition")?;
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let (mut spec, mut status) = (Vec::new(), Vec::new());
    walk(&schema["spec"], "", &mut spec);
    walk(&schema["status"], "", &mut status);
    let spec = spec.iter().map(Field::row);
    let status = status
        .iter()
        .map(|field| [code(&field.path), prose(&field.meaning().0)]);
    let reasons = reasons.iter().map(|reason| {
        [
            code(reason.name),
            reason.conditions.to_owned(),
            reason.meaning.to_owned(),
        ]
    });
    fill(
        template,
        [
            ("reasons", table(["reason", "conditions", "meaning"], reasons)),
            ("spec", table(["field", "type", "default", "meaning"], spec)),
            ("status", table(["field", "meaning"], status)),
        ],
    )
}

struct Field<'a> {
    path: String,
    schema: &'a Value,
    is_required: bool,
}

/// Collects the fields of an object and of the objects in it.
fn walk<'a>(schema: &'a Value, parent: &str, found: &mut Vec<Field<'a>>) {
    let required = schema["required"].as_array();
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let is_required = required.is_some_and(|required| required.iter().any(|other| other == name));
        let items = Some(&schema["items"]).filter(|items| items["properties"].is_object());
        let name = format!("{name}{}", if items.is_some() { "[]" } else { "" });
        let path = format!("{parent}{name}");
        let inner = items.unwrap_or(schema);
        let mut fields = inner["properties"]
            .as_object()
            .into_iter()
            .flat_map(|fields| fields.keys());
        let is_reference = fields.all(|field| OF_REFERENCES.contains(&field.as_str()));
        let within = format!("{path}.");
        let is_elsewhere = OF_OTHER_PAGES.contains(&path.as_str());
        found.push(Field {
            path,
            schema,
            is_required,
        });
        if !is_reference && !is_elsewhere && !OF_KUBERNETES.contains(&name.as_str()) {
            walk(inner, &within, found);
        }
    }
}

impl Field<'_> {
    fn row(&self) -> [String; 4] {
        let (meaning, default) = self.meaning();
        [code(&self.path), self.kind(), self.default(default), prose(&meaning)]
    }

    fn kind(&self) -> String {
        let schema = self.schema;
        if let Some(choices) = schema["enum"].as_array() {
            return codes(choices.iter().filter_map(Value::as_str));
        }
        let is_quantity = schema["x-kubernetes-int-or-string"] == true;
        let is_map = schema["additionalProperties"].is_object();
        match schema["type"].as_str() {
            _ if is_quantity => "quantity",
            Some("object") if is_map => "map",
            Some("array") => "list",
            kind => kind.unwrap_or("any"),
        }
        .to_owned()
    }

    fn default(&self, described: Option<String>) -> String {
        match &self.schema["default"] {
            Value::String(text) => code(text),
            Value::Bool(_) | Value::Number(_) => code(&self.schema["default"].to_string()),
            // Defaults of an object are those of its fields.
            _ if self.is_required => "required".to_owned(),
            _ => described.map(|text| self.described(&text)).unwrap_or_default(),
        }
    }

    fn described(&self, default: &str) -> String {
        let choices = self.schema["enum"].as_array();
        let is_choice = choices.is_some_and(|choices| choices.iter().any(|choice| choice == default));
        if is_choice { code(default) } else { prose(default) }
    }

    /// Returns the description without the sentence that says the default, and this.
    fn meaning(&self) -> (String, Option<String>) {
        let text = self.schema["description"].as_str().unwrap_or_default();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((before, after)) = text.split_once("Default: ") else {
            return (text, None);
        };
        let (default, after) = after.split_once(". ").unwrap_or((after.trim_end_matches('.'), ""));
        (
            format!("{before}{after}").trim_end().to_owned(),
            Some(default.to_owned()),
        )
    }
}
