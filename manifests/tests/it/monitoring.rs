//! Alerts and the dashboard: they use metrics and labels that the programs have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::files::{objects, text};

/// A metric as its program declares it.
#[derive(Debug)]
struct Declared {
    is_histogram: bool,
    labels: BTreeSet<String>,
}

/// Labels that Prometheus adds to scraped series, and the label of histogram buckets.
const SCRAPED: [&str; 4] = ["job", "instance", "namespace", "le"];

/// Sources that declare the metrics of the brain and of the operator. The operator's source omits the prefix of most names.
const BRAIN: [&str; 6] = [
    include_str!("../../../brain/telemetry/src/metrics/archive.rs"),
    include_str!("../../../brain/telemetry/src/metrics/groups.rs"),
    include_str!("../../../brain/telemetry/src/metrics/grpc.rs"),
    include_str!("../../../brain/telemetry/src/metrics/peers.rs"),
    include_str!("../../../brain/telemetry/src/metrics/process.rs"),
    include_str!("../../../brain/engine-tikv/src/metrics.rs"),
];
const OPERATOR: &str = include_str!("../../../operator/src/metrics.rs");

/// Returns the texts between quotes in a source, each with the text before it.
fn strings(source: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = source.split('"').collect();
    parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Returns the metrics that brains and operators declare, by name.
fn declared() -> BTreeMap<String, Declared> {
    let mut all: BTreeMap<String, Declared> = BTreeMap::new();
    for source in BRAIN {
        // The texts in a declaration are the name, the help and the labels of the metric.
        let mut name = None;
        let labels = if source.contains("grpc_server") {
            &["grpc_method", "grpc_service", "grpc_type"][..]
        } else {
            &[]
        };
        for (before, text) in strings(source) {
            let is_name = ["etcd_", "kubebrain_", "grpc_server_", "process_", "os_"]
                .iter()
                .any(|prefix| text.starts_with(prefix));
            if is_name {
                name = Some(text.to_owned());
                let is_histogram = ["r.histogram", "HistogramOpts"]
                    .iter()
                    .any(|made| before.contains(made));
                let mut labels: BTreeSet<String> = labels.iter().map(|label| (*label).to_owned()).collect();
                if text == "grpc_server_handled_total" {
                    labels.insert("grpc_code".to_owned());
                }
                all.insert(text.to_owned(), Declared { is_histogram, labels });
            } else if let Some(name) = &name
                && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
                && let Some(declared) = all.get_mut(name)
            {
                declared.labels.insert(text.to_owned());
            }
        }
    }
    let labels = ["namespace", "name", "type", "phase", "secret", "result"].map(str::to_owned);
    for (_, text) in strings(OPERATOR) {
        for name in [text.to_owned(), format!("kubebrain_operator_{text}")] {
            let labels = BTreeSet::from(labels.clone());
            all.entry(name).or_insert(Declared {
                is_histogram: false,
                labels,
            });
        }
    }
    all
}

/// Returns the metrics in an expression, and the names of the labels that it selects or groups by.
fn used(expression: &str) -> (Vec<&str>, Vec<&str>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut metrics, mut labels, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(skipped) = expression[at..].find(is_word) {
        let start = at + skipped;
        let len = expression[start..]
            .find(|c| !is_word(c))
            .unwrap_or(expression.len() - start);
        let (word, rest) = (&expression[start..start + len], &expression[start + len..]);
        at = start + len;
        if ["etcd_", "kubebrain_", "grpc_server_", "process_", "os_"]
            .iter()
            .any(|prefix| word.starts_with(prefix))
        {
            metrics.push(word);
        } else if ["by", "on"].contains(&word) {
            let list = rest.trim_start().strip_prefix('(').unwrap().split(')').next().unwrap();
            labels.extend(list.split(',').map(str::trim));
            at += rest.find(')').unwrap();
        } else if rest.starts_with(['=', '!']) && rest.contains('"') {
            labels.push(word);
            // Skip the value of a selector: it names no metric.
            let open = rest.find('"').unwrap() + 1;
            at += open + rest[open..].find('"').unwrap() + 1;
        }
    }
    (metrics, labels)
}

#[track_caller]
fn check(expression: &str, all: &BTreeMap<String, Declared>) {
    let (metrics, labels) = used(expression);
    assert!(!metrics.is_empty(), "{expression}");
    let mut known: BTreeSet<&str> = SCRAPED.into();
    for metric in metrics {
        let of_histogram = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| metric.strip_suffix(suffix));
        let found = all.get(metric).filter(|found| !found.is_histogram);
        let found = found.or_else(|| all.get(of_histogram?).filter(|found| found.is_histogram));
        let found = found.unwrap_or_else(|| panic!("nothing exposes {metric}: {expression}"));
        known.extend(found.labels.iter().map(String::as_str));
    }
    for label in labels {
        assert!(known.contains(label), "no metric has the label {label}: {expression}");
    }
}

fn alerts() -> Vec<Value> {
    let groups = &objects("monitoring/rules.yaml")[0]["groups"];
    let groups = groups.as_array().unwrap().iter();
    let rules: Vec<Value> = groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect();
    assert!(rules.len() > 25, "{}", rules.len());
    rules
}

#[test]
fn alerts_select_metrics_and_labels_that_exist() {
    let all = declared();
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        check(expression, &all);
        let summary = alert["annotations"]["summary"].as_str().unwrap();
        let (_, labels) = used(expression);
        for named in summary.split("{{ $labels.").skip(1) {
            let label = named.split(" }}").next().unwrap();
            let is_kept = labels.contains(&label) || SCRAPED.contains(&label);
            assert!(is_kept, "{label} in the summary of {expression}");
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&text("monitoring/dashboard.json")).unwrap()
}

#[test]
fn panels_select_metrics_and_labels_that_exist() {
    let (all, dashboard) = (declared(), dashboard());
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut expressions = 0;
    for target in targets {
        let expression = target["expr"].as_str().unwrap();
        let is_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| expression.contains(prefix));
        let job = if is_of(&["kubebrain_archive_"]) {
            r#"job="$archive""#
        } else if is_of(&["kubebrain_backup_", "kubebrain_cluster_condition"]) {
            r#"job="$operator""#
        } else {
            r#"job="$job""#
        };
        assert!(expression.contains(job), "{expression}");
        check(expression, &all);
        expressions += 1;
    }
    assert!(expressions > 30);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
}

#[test]
fn alerts_on_names_of_etcd_select_brains() {
    for alert in alerts() {
        let expression = alert["expr"].as_str().unwrap();
        let (metrics, _) = used(expression);
        assert!(
            metrics.iter().any(|metric| metric.starts_with("kubebrain_")),
            "an etcd would raise {expression}"
        );
    }
}

#[test]
fn alerts_have_a_severity_a_time_and_a_summary() {
    for alert in alerts() {
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{alert}");
        assert!(alert["for"].is_string() && alert["alert"].is_string(), "{alert}");
        assert!(
            alert["annotations"]["summary"].as_str().unwrap().ends_with('.'),
            "{alert}"
        );
    }
}

#[test]
fn panels_are_beside_and_below_each_other() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|field| panel["gridPos"][field].as_u64().unwrap());
        assert!(x + w <= 24, "{}", panel["title"]);
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} covers another panel", panel["title"]);
        }
    }
}

#[test]
fn panels_ask_the_data_source_of_the_dashboard() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<&str> = variables
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["datasource", "job", "archive", "operator"]);
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    for variable in &variables[1..] {
        assert_eq!(variable["datasource"], source);
    }
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        let ids: BTreeSet<&str> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), targets.len(), "{}", panel["title"]);
        for asked in targets.iter().chain([panel]) {
            assert_eq!(asked["datasource"], source, "{}", panel["title"]);
        }
    }
}

#[test]
#[should_panic(expected = "nothing exposes etcd_server_no_such_total")]
fn metric_that_does_not_exist_is_noticed() {
    check("rate(etcd_server_no_such_total[5m])", &declared());
}

#[test]
#[should_panic(expected = "no metric has the label color")]
fn label_that_does_not_exist_is_noticed() {
    check(r#"etcd_server_has_leader{color="red"}"#, &declared());
}
