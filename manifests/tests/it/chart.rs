//! The chart has the objects of the plain YAML. It is rendered here by the few constructs of Helm that it uses, so that a difference is
//! noticed without Helm; end-to-end tests compare what Helm itself renders.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::files::{below, documents, objects, only, text};

const CHART: &str = "helm/kubebrain-operator";

/// The values that expressions in templates refer to.
struct Scope<'a> {
    values: &'a Value,
    /// `.`
    dot: Value,
    /// `$namespace`
    namespace: Value,
}

impl Scope<'_> {
    fn with_dot(&self, dot: Value) -> Self {
        let namespace = self.namespace.clone();
        Self {
            dot,
            namespace,
            ..*self
        }
    }

    /// Returns the value that a path names.
    #[track_caller]
    fn value(&self, expression: &str) -> &Value {
        let path = expression
            .strip_prefix("$.Values.")
            .unwrap_or_else(|| panic!("teach this test what {expression} means"));
        let value = self.values.pointer(&format!("/{}", path.replace('.', "/")));
        value.unwrap_or_else(|| panic!("there is no value {path}"))
    }

    /// Returns the text of an expression inside a line.
    fn expanded(&self, expression: &str) -> String {
        match expression {
            r#"include "kubebrain-operator.fullname" $"# => "kubebrain-operator".to_owned(),
            r#"include "kubebrain-operator.image" $"# => {
                let chart = &objects(&format!("{CHART}/Chart.yaml"))[0];
                let repository = plain(self.value("$.Values.image.repository"));
                format!("{repository}:{}", plain(&chart["appVersion"]))
            }
            "$.Release.Namespace" => "kubebrain-system".to_owned(),
            "$namespace" => plain(&self.namespace),
            "." => plain(&self.dot),
            ". | quote" => json!(plain(&self.dot)).to_string(),
            r#"join "," ."# => {
                let parts: Vec<String> = self.dot.as_array().unwrap().iter().map(plain).collect();
                parts.join(",")
            }
            path => plain(self.value(path)),
        }
    }

    /// Expands the expressions inside a line.
    fn line(&self, line: &str) -> String {
        let (mut all, mut rest) = (String::new(), line);
        while let Some((before, after)) = rest.split_once("{{ ") {
            all.push_str(before);
            if let Some(literal) = after.strip_prefix('`') {
                let (literal, after) = literal.split_once("` }}").unwrap();
                all.push_str(literal);
                rest = after;
            } else {
                let (expression, after) = after.split_once(" }}").unwrap();
                all.push_str(&self.expanded(expression));
                rest = after;
            }
        }
        all + rest + "\n"
    }

    fn render(&self, mut lines: &[&str]) -> String {
        let mut all = String::new();
        while let [line, after @ ..] = lines {
            lines = after;
            let Some(action) = line.trim_start().strip_prefix("{{- ") else {
                all.push_str(&self.line(line));
                continue;
            };
            let action = action.strip_suffix(" }}").unwrap();
            if let Some(indent) = action.strip_prefix("toYaml . | nindent ") {
                let indent = " ".repeat(indent.parse().unwrap());
                for line in serde_yaml::to_string(&self.dot).unwrap().lines() {
                    all.push_str(&format!("{indent}{line}\n"));
                }
                continue;
            }
            let (inside, after) = block(lines);
            lines = after;
            let (word, condition) = action.split_once(' ').unwrap();
            match (word, condition.split_once(' ')) {
                ("if", None) if is_true(self.value(condition)) => all.push_str(&self.render(inside)),
                ("if", Some(("not", path))) if !is_true(self.value(path)) => all.push_str(&self.render(inside)),
                ("if", None | Some(("not", _))) => {}
                ("with", None) => {
                    let dot = self.value(condition);
                    if is_true(dot) {
                        all.push_str(&self.with_dot(dot.clone()).render(inside));
                    }
                }
                ("range", None) => {
                    for dot in self.value(condition).as_array().unwrap() {
                        all.push_str(&self.with_dot(dot.clone()).render(inside));
                    }
                }
                ("range", Some(("$namespace", path))) => {
                    for namespace in self.value(path.strip_prefix(":= ").unwrap()).as_array().unwrap() {
                        let mut scope = self.with_dot(namespace.clone());
                        scope.namespace = namespace.clone();
                        all.push_str(&scope.render(inside));
                    }
                }
                _ => panic!("teach this test what {action} means"),
            }
        }
        all
    }
}

/// Returns the lines before the end of a block, and those after it.
fn block<'a, 'b>(lines: &'b [&'a str]) -> (&'b [&'a str], &'b [&'a str]) {
    let mut open = 1;
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        if ["{{- if ", "{{- with ", "{{- range "]
            .iter()
            .any(|start| line.starts_with(start))
        {
            open += 1;
        } else if line == "{{- end }}" {
            open -= 1;
        }
        if open == 0 {
            return (&lines[..at], &lines[at + 1..]);
        }
    }
    panic!("a block does not end: {lines:?}");
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Sets values as Helm does: maps are merged.
fn merge(into: &mut Value, from: &Value) {
    match from {
        Value::Object(map) => map.iter().for_each(|(name, value)| merge(&mut into[name], value)),
        value => *into = value.clone(),
    }
}

/// Objects by kind, namespace and name.
type Objects = BTreeMap<[String; 3], Value>;

fn by_name(objects: Vec<Value>) -> Objects {
    let mut all = Objects::new();
    // Helm makes the namespace by a flag of its own.
    for object in objects.into_iter().filter(|object| object["kind"] != "Namespace") {
        let metadata = &object["metadata"];
        let key = [&object["kind"], &metadata["namespace"], &metadata["name"]].map(plain);
        assert!(all.insert(key.clone(), object).is_none(), "{key:?} is there twice");
    }
    all
}

/// Returns the objects of the chart with these values, without what keeps the definition when a release is uninstalled.
fn rendered(values: &Value) -> Objects {
    let mut all = objects(&format!("{CHART}/values.yaml")).remove(0);
    merge(&mut all, values);
    let scope = Scope {
        values: &all,
        dot: Value::Null,
        namespace: Value::Null,
    };
    let templates = below(&format!("{CHART}/templates")).into_iter();
    let objects = templates.filter(|name| name.ends_with(".yaml")).flat_map(|name| {
        let text = text(&name);
        documents(&scope.render(&text.lines().collect::<Vec<_>>()))
    });
    let mut objects: Vec<Value> = objects.collect();
    for definition in objects
        .iter_mut()
        .filter(|object| object["kind"] == "CustomResourceDefinition")
    {
        let annotations = definition["metadata"].as_object_mut().unwrap().remove("annotations");
        assert_eq!(annotations, Some(json!({"helm.sh/resource-policy": "keep"})));
    }
    by_name(objects)
}

#[track_caller]
fn same(rendered: &Objects, expected: &Objects) {
    assert_eq!(rendered.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, object) in rendered {
        assert_eq!(object, &expected[key], "{key:?}");
    }
}

#[test]
fn the_chart_has_the_objects_of_the_plain_yaml() {
    same(&rendered(&json!({})), &by_name(objects("yaml/install.yaml")));
}

#[test]
fn the_chart_has_the_objects_of_the_components() {
    let mut expected = objects("yaml/install.yaml");
    for component in ["admission-policies", "monitoring", "network-policy"] {
        expected.extend(objects(&format!("yaml/components/{component}/objects.yaml")));
    }
    let values = json!({
        "admissionPolicies": {"children": {"enabled": true}, "podTemplates": {"enabled": true}},
        "networkPolicy": {"enabled": true},
        "podMonitor": {"enabled": true},
        "prometheusRule": {"enabled": true},
    });
    same(&rendered(&values), &by_name(expected));
}

#[test]
fn the_chart_for_some_namespaces_has_their_roles() {
    for (directory, namespaces) in [
        ("yaml/one-namespace", &["brains"][..]),
        ("yaml/several-namespaces", &["brains-a", "brains-b"]),
    ] {
        let files = [
            "yaml/crd/crd.yaml",
            "yaml/operator/rbac.yaml",
            "yaml/operator/operator.yaml",
        ];
        let mut expected: Vec<Value> = files.into_iter().flat_map(objects).collect();
        expected.extend(objects(&format!("{directory}/rbac.yaml")));
        let kustomization = only(&format!("{directory}/kustomization.yaml"), "Kustomization");
        let patch = kustomization["patches"][0]["patch"].as_str().unwrap();
        let patch: Value = serde_json::from_str(patch).unwrap();
        assert_eq!(patch[0]["path"], "/spec/template/spec/containers/0/args/-");
        let deployment = expected
            .iter_mut()
            .find(|object| object["kind"] == "Deployment")
            .unwrap();
        let arguments = deployment.pointer_mut("/spec/template/spec/containers/0/args").unwrap();
        arguments.as_array_mut().unwrap().push(patch[0]["value"].clone());
        let values = json!({"watchNamespaces": namespaces, "aggregatedRoles": {"create": false}});
        same(&rendered(&values), &by_name(expected));
    }
}
