//! Objects for the tests of health and actions, both Argo CD's own tests and ours.

use serde_json::{Value, json};

/// Expected health of an object.
pub(super) struct Health {
    name: &'static str,
    /// Health status as Argo CD names it.
    pub(super) status: &'static str,
    /// Message of the health status.
    pub(super) message: &'static str,
    spec: Value,
    /// Observed generation; the object is at generation 3.
    seen: Option<i64>,
    /// Type, status, reason, message.
    conditions: Option<Vec<[&'static str; 4]>>,
}

impl Health {
    /// Returns the path of the object, relative to the directory of health.lua.
    pub(super) fn path(&self) -> String {
        format!("testdata/{}.yaml", self.name)
    }

    /// Returns the case in the format of health_test.yaml.
    pub(super) fn test(&self) -> Value {
        json!({
            "healthStatus": {"status": self.status, "message": self.message},
            "inputPath": self.path(),
        })
    }

    /// Returns the object.
    pub(super) fn object(&self) -> Value {
        let mut object = cluster(&self.spec);
        let Some(conditions) = &self.conditions else {
            return object;
        };
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|[kind, status, reason, message]| {
                json!({
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "2026-11-21T00:00:00Z",
                    "observedGeneration": self.seen,
                })
            })
            .collect();
        object["status"] = json!({"conditions": conditions});
        if let Some(seen) = self.seen {
            object["status"]["observedGeneration"] = json!(seen);
        }
        object
    }
}

fn cluster(more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": "tenant-a", "namespace": "brains", "generation": 3},
        "spec": {
            "replicas": 3,
            "version": "0.1.0",
            "storage": {"type": "TiKV", "tikv": {"pdEndpoints": ["pd.tikv.svc:2379"]}},
        },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

const READY: [&str; 4] = ["Ready", "True", "AsExpected", "3 of 3 members are ready"];
const IDLE: [&str; 4] = [
    "Progressing",
    "False",
    "Reconciled",
    "Everything is as the spec wants it",
];
const SERVING: [&str; 4] = ["Available", "True", "LeaderElected", "tenant-a-1 leads"];
const FINE: [&str; 4] = ["Degraded", "False", "AsExpected", "No member is missing"];
const ROLLING: [&str; 4] = ["Progressing", "True", "RollingUpdate", "1 of 3 members is up to date"];

/// Returns all cases.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(super) fn health() -> Vec<Health> {
    let case = |name, status, message, conditions: &[[&'static str; 4]]| Health {
        name,
        status,
        message,
        spec: json!({}),
        seen: Some(3),
        conditions: Some(conditions.to_vec()),
    };
    vec![
        case("healthy", "Healthy", READY[3], &[SERVING, IDLE, FINE, READY]),
        Health {
            conditions: None,
            ..case(
                "new",
                "Progressing",
                "The operator has not reconciled the cluster yet",
                &[],
            )
        },
        Health {
            seen: Some(2),
            ..case(
                "spec-not-seen",
                "Progressing",
                "The operator has not seen the newest spec yet",
                &[SERVING, IDLE, FINE, READY],
            )
        },
        Health {
            seen: None,
            ..case(
                "generation-missing",
                "Progressing",
                "The operator has not seen the newest spec yet",
                &[READY],
            )
        },
        Health {
            spec: json!({"paused": true}),
            ..case(
                "paused",
                "Suspended",
                "spec.paused is true: nothing is changed",
                &[SERVING, IDLE, FINE, READY],
            )
        },
        Health {
            spec: json!({"replicas": 0}),
            ..case(
                "no-replicas",
                "Suspended",
                "replicas is 0: the data is kept",
                &[
                    ["Available", "False", "Suspended", "replicas is 0: the data is kept"],
                    IDLE,
                    FINE,
                    ["Ready", "False", "Suspended", "replicas is 0: the data is kept"],
                ],
            )
        },
        case(
            "rolling",
            "Progressing",
            ROLLING[3],
            &[SERVING, ROLLING, FINE, ["Ready", "False", "RollingUpdate", ROLLING[3]]],
        ),
        // A rolling update always has a missing member; this needs no alert.
        case(
            "rolling-with-a-member-missing",
            "Progressing",
            ROLLING[3],
            &[
                SERVING,
                ROLLING,
                ["Degraded", "True", "MembersUnhealthy", "tenant-a-0 is not ready"],
                ["Ready", "False", "RollingUpdate", ROLLING[3]],
            ],
        ),
        case(
            "degraded",
            "Degraded",
            "tenant-a-0 is not ready",
            &[
                SERVING,
                IDLE,
                ["Degraded", "True", "MembersUnhealthy", "tenant-a-0 is not ready"],
                ["Ready", "False", "MembersUnhealthy", "tenant-a-0 is not ready"],
            ],
        ),
        case(
            "stalled",
            "Degraded",
            "the image cannot be pulled: correct spec.image or spec.version",
            &[
                SERVING,
                ROLLING,
                [
                    "Stalled",
                    "True",
                    "DeadlineExceeded",
                    "the image cannot be pulled: correct spec.image or spec.version",
                ],
                ["Ready", "False", "RollingUpdate", ROLLING[3]],
            ],
        ),
        case(
            "no-leader",
            "Progressing",
            "no member leads",
            &[
                ["Available", "False", "NoLeader", "no member leads"],
                IDLE,
                FINE,
                ["Ready", "False", "NoLeader", "no member leads"],
            ],
        ),
        case(
            "first-pass",
            "Progressing",
            "The operator has not judged the cluster yet",
            &[["Available", "Unknown", "NotProbed", "no member was asked yet"]],
        ),
    ]
}

const RUNNING: &str = "testdata/running.yaml";
const PAUSED: &str = "testdata/paused.yaml";
const RESUMED: &str = "testdata/resumed.yaml";

/// Returns the objects before and after actions, by path.
pub(super) fn action_objects() -> Vec<(&'static str, Value)> {
    vec![
        (RUNNING, cluster(&json!({}))),
        (PAUSED, cluster(&json!({"paused": true}))),
        (RESUMED, cluster(&json!({"paused": false}))),
    ]
}

/// Returns action_test.yaml. Actions that write the time have no fixed result; other tests cover them.
pub(super) fn action_tests() -> Value {
    let found = |path: &str, disabled: [bool; 4]| {
        let names = ["restart", "transfer-leader", "pause", "resume"];
        let result: Vec<Value> = names
            .iter()
            .zip(disabled)
            .map(|(name, disabled)| json!({"name": name, "disabled": disabled}))
            .collect();
        json!({"inputPath": path, "result": result})
    };
    json!({
        "discoveryTests": [
            found(RUNNING, [false, false, false, true]),
            found(PAUSED, [true, true, true, false]),
        ],
        "actionTests": [
            {"action": "pause", "inputPath": RUNNING, "expectedOutputPath": PAUSED},
            {"action": "resume", "inputPath": PAUSED, "expectedOutputPath": RESUMED},
        ],
    })
}
