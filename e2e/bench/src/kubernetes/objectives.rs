//! Kubernetes' objectives for the latency of its API: the 99th percentile of each resource and verb, without webhooks and without waits for
//! priority and fairness.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use testkit::goal::Goal;

use super::metrics::{self, Scrape};

/// Distributions of latencies, for these objectives only.
const METRIC: &str = "apiserver_request_sli_duration_seconds";
/// Subresources whose requests last as long as their clients want.
const STREAMS: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// An objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Objective {
    /// Requests that change one object, or read one.
    SingleObject,
    /// Lists of a namespace, or of all.
    Lists,
}

impl Objective {
    /// All of them.
    pub(super) const ALL: [Self; 2] = [Self::SingleObject, Self::Lists];

    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SingleObject => "requests for one object",
            Self::Lists => "lists",
        }
    }

    fn seconds(self) -> f64 {
        match self {
            Self::SingleObject => 1.0,
            Self::Lists => 30.0,
        }
    }

    /// The one that requests with these labels belong to. `None`: there is none for them.
    fn of(labels: &BTreeMap<String, String>) -> Option<Self> {
        let label = |name: &str| labels.get(name).map_or("", String::as_str);
        if label("resource").is_empty() || STREAMS.contains(&label("subresource")) {
            return None;
        }
        match (label("verb"), label("scope")) {
            ("POST" | "PUT" | "PATCH" | "APPLY" | "DELETE", _) | ("GET" | "LIST", "resource") => {
                Some(Self::SingleObject)
            }
            ("LIST", "namespace" | "cluster") => Some(Self::Lists),
            _ => None,
        }
    }
}

/// The slowest requests of an objective.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SlowestRequests {
    pub(super) objective: Objective,
    /// Seconds.
    pub(super) p99: f64,
    /// Verb and resource.
    pub(super) kind: String,
    pub(super) count: f64,
}

/// The slowest kind of requests of each objective between two scrapes.
pub(super) fn slowest(before: &Scrape, after: &Scrape) -> Vec<SlowestRequests> {
    let key = |labels: &BTreeMap<String, String>| Some((Objective::of(labels)?, kind(labels)));
    let mut slowest: BTreeMap<Objective, SlowestRequests> = BTreeMap::new();
    for ((objective, kind), histogram) in metrics::growth(before, after, METRIC, key) {
        let Some(p99) = histogram.quantile(0.99) else { continue };
        if slowest.get(&objective).is_none_or(|other| other.p99 < p99) {
            let count = histogram.count();
            slowest.insert(
                objective,
                SlowestRequests {
                    objective,
                    p99,
                    kind,
                    count,
                },
            );
        }
    }
    slowest.into_values().collect()
}

fn kind(labels: &BTreeMap<String, String>) -> String {
    let label = |name: &str| labels.get(name).map_or("", String::as_str);
    let slash = if label("subresource").is_empty() { "" } else { "/" };
    format!("{} {}{slash}{}", label("verb"), label("resource"), label("subresource"))
}

/// The slowest requests of all phases of all stores.
#[derive(Debug, Default)]
pub(super) struct ObjectivesReport(Vec<(&'static str, &'static str, SlowestRequests)>);

impl ObjectivesReport {
    /// Adds those of one phase of one store.
    pub(super) fn add(&mut self, phase: &'static str, store: &'static str, slowest: Vec<SlowestRequests>) {
        self.0
            .extend(slowest.into_iter().map(|slowest| (phase, store, slowest)));
        self.0.sort_by_key(|(_, _, slowest)| slowest.objective); // stable: phases stay in their order
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for objective in Objective::ALL {
            writeln!(text, "p99 of {}, the slowest resource and verb:", objective.name()).ok(); // writing to a String cannot fail
            for (phase, store, slowest) in self.0.iter().filter(|(_, _, slowest)| slowest.objective == objective) {
                let SlowestRequests { p99, kind, count, .. } = slowest;
                let goal = Goal::AtMost(objective.seconds()).beside(*p99);
                writeln!(
                    text,
                    "  {phase:<8} {store:<10} {p99:>8.3} s {goal}  {kind}, {count} requests"
                )
                .ok();
            }
        }
        text
    }

    /// For a page of documentation.
    pub(super) fn markdown(&self) -> String {
        let mut table =
            "| p99 of | phase | store | s | at most | slowest | requests |\n|---|---|---|---:|---:|---|---:|\n"
                .to_owned();
        for (phase, store, slowest) in &self.0 {
            let (name, most) = (slowest.objective.name(), slowest.objective.seconds());
            let SlowestRequests { p99, kind, count, .. } = slowest;
            // writing to a String cannot fail
            writeln!(
                table,
                "| {name} | {phase} | {store} | {p99:.3} | {most} | {kind} | {count} |"
            )
            .ok();
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(verb: &str, resource: &str, scope: &str, [fast, slow]: [u32; 2]) -> String {
        let labels = format!("verb=\"{verb}\",resource=\"{resource}\",subresource=\"\",scope=\"{scope}\"");
        let (name, all) = (METRIC, fast + slow);
        format!(
            "{name}_bucket{{{labels},le=\"0.1\"}} {fast}\n{name}_bucket{{{labels},le=\"2\"}} {all}\n\
             {name}_bucket{{{labels},le=\"+Inf\"}} {all}\n{name}_sum{{{labels}}} {all}\n"
        )
    }

    #[test]
    fn the_slowest_verb_and_resource_of_each_objective_is_found() {
        let before = Scrape::parse(&requests("POST", "pods", "resource", [0, 50])).unwrap();
        let after = [
            requests("POST", "pods", "resource", [100, 50]),
            requests("PATCH", "nodes", "resource", [0, 10]),
            requests("LIST", "pods", "cluster", [4, 0]),
            requests("WATCH", "pods", "cluster", [0, 4]),
            requests("DELETECOLLECTION", "pods", "namespace", [0, 4]),
            requests("GET", "", "", [0, 4]),
        ];
        let after = Scrape::parse(&after.concat()).unwrap();
        let found = slowest(&before, &after);
        let kinds: Vec<_> = found
            .iter()
            .map(|it| (it.objective, it.kind.as_str(), it.count))
            .collect();
        assert_eq!(
            kinds,
            [
                (Objective::SingleObject, "PATCH nodes", 10.0),
                (Objective::Lists, "LIST pods", 4.0)
            ]
        );
        assert!(found[0].p99 > 1.0 && found[1].p99 < 0.1);

        let mut report = ObjectivesReport::default();
        report.add("create", "etcd", found);
        let text = report.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[1].contains("1.981 s [MISSED: at most 1]  PATCH nodes, 10 requests"),
            "{text}"
        );
        assert!(
            lines[3].contains("0.099 s [goal: at most 30]  LIST pods, 4 requests"),
            "{text}"
        );
        let table = report.markdown();
        assert!(
            table.ends_with("| lists | create | etcd | 0.099 | 30 | LIST pods | 4 |\n"),
            "{table}"
        );
    }

    #[test]
    fn requests_that_last_as_long_as_clients_want_have_no_objective() {
        let labels = |subresource: &str| {
            let all = [
                ("verb", "GET"),
                ("resource", "pods"),
                ("scope", "resource"),
                ("subresource", subresource),
            ];
            all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        };
        assert_eq!(Objective::of(&labels("status")), Some(Objective::SingleObject));
        assert_eq!(Objective::of(&labels("log")), None);
    }
}
