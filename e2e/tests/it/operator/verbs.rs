//! The operator's requests to the API server in the whole run, by the audit log: nothing that it may not do, and all that it may do
//! but for what happens seldom.
//!
//! This test's name is the last of those of the operator, and it runs when the others have ended.

use std::collections::BTreeSet;
use std::fs;

use e2e_cluster::apiserver::{OPERATOR, audit_log};
use serde_json::Value;

use crate::harness::{Harness, exclusive};

/// API group, resource with its subresource, verb.
type Right = (String, String, String);

/// Rights for cases that no test provokes.
const UNPROVOKED_RIGHTS: [(&str, &str, &str); 3] = [
    // an authority that was made twice at the same time, so that one of them is not recorded
    ("", "secrets", "delete"),
    // a cluster that gets another service account, which needs an operator with --allow-unsafe-pods
    ("", "serviceaccounts", "delete"),
    // a wipe that failed for good is started again after minutes
    ("batch", "jobs", "delete"),
];

/// Returns true if every test of the operator runs, by the arguments of this process.
fn is_whole_run() -> bool {
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--skip" {
            args.next();
        } else if !arg.starts_with('-') && arg != "operator::" {
            return false;
        }
    }
    true
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Requests of the operator, as recorded in the audit log.
fn requests(harness: &Harness) -> Vec<Value> {
    let log = fs::read_to_string(audit_log(harness.cluster.home())).unwrap();
    // the last line may be half written
    let requests = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    requests.collect()
}

fn right(request: &Value) -> Right {
    let object = &request["objectRef"];
    let resource = match object["subresource"].as_str() {
        Some(subresource) => format!("{}/{subresource}", text(&object["resource"])),
        None => text(&object["resource"]),
    };
    (text(&object["apiGroup"]), resource, text(&request["verb"]))
}

/// Rights that a role gives.
fn given(harness: &Harness, role: &[&str]) -> BTreeSet<Right> {
    let role = harness
        .cluster
        .kubectl()
        .run([&["get", "--output", "json"], role].concat())
        .unwrap();
    let role: Value = serde_json::from_str(&role).unwrap();
    let mut given = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let list = |field: &str| -> Vec<String> { rule[field].as_array().unwrap().iter().map(text).collect() };
        for group in list("apiGroups") {
            for resource in list("resources") {
                for verb in list("verbs") {
                    given.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    given
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_was_denied_nothing() {
    let it = exclusive().await;
    tokio::task::block_in_place(|| it.operator());
    let requests = requests(&it);
    assert!(requests.iter().all(|request| request["user"]["username"] == OPERATOR));
    let denied: Vec<_> = requests
        .iter()
        .filter(|request| request["annotations"]["authorization.k8s.io/decision"] == "forbid")
        .map(|request| (right(request), text(&request["requestURI"])))
        .collect();
    assert!(denied.is_empty(), "denied: {denied:#?}");
    let mut unused = given(&it, &["clusterrole", "kubebrain-operator"]);
    let election = [
        "--namespace",
        "kubebrain-system",
        "role",
        "kubebrain-operator-leader-election",
    ];
    unused.extend(given(&it, &election));
    for request in &requests {
        let (group, resource, verb) = right(request);
        if request["responseStatus"]["code"] == 201 {
            // an apply that makes the object needs this right as well
            unused.remove(&(group.clone(), resource.clone(), "create".to_owned()));
        }
        unused.remove(&(group, resource, verb));
    }
    // asked by admission in the operator's name, which the audit log does not show
    unused.remove(&(
        "kubebrain.io".to_owned(),
        "kubebrainclusters/finalizers".to_owned(),
        "update".to_owned(),
    ));
    // objects are read where the watch of their kind is behind, which it seldom is
    unused.retain(|(_, _, verb)| verb != "get");
    for (group, resource, verb) in UNPROVOKED_RIGHTS {
        unused.remove(&(group.to_owned(), resource.to_owned(), verb.to_owned()));
    }
    if is_whole_run() {
        assert!(unused.is_empty(), "rights that no test used: {unused:#?}");
    }
}
