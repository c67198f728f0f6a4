//! Output and writes of the commands, with an API server in memory.

use clap::CommandFactory as _;
use crds::KubeBrainCluster;
use fake_api::{CLUSTERS, FakeApi, RecordedRequest, ScriptedReply, failure};
use k8s_openapi::jiff::Timestamp;
use plan::testing::{FakeCluster, answer};
use serde_json::{Value, json};

use super::*;
use crate::members::MemberAnswers;

pub(crate) fn target(api: &FakeApi) -> TargetNamespace {
    TargetNamespace {
        client: api.client(),
        namespace: "brains".to_owned(),
    }
}

/// A server with this cluster and nothing else.
pub(crate) fn serving(api: FakeApi, cluster: &Value) -> FakeApi {
    api.put(&format!("{CLUSTERS}/dev"), cluster.clone());
    api
}

/// Three members on TiKV in the middle of an upgrade.
pub(crate) fn three() -> Value {
    let member = |number: u32, role: &str, version: &str| {
        json!({
            "name": format!("dev-{number}"), "memberID": format!("{:x}", number + 1), "role": role, "ready": role != "Unknown",
            "node": format!("node-{number}"), "version": version,
        })
    };
    let mut silent = member(2, "Unknown", "0.2.0");
    silent["message"] = json!("it does not answer\u{1b}[2J");
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": "dev", "namespace": "brains", "uid": "cluster-uid", "generation": 2},
        "spec": {
            "replicas": 3,
            "version": "0.2.0",
            "storage": {"type": "TiKV", "tikv": {"pdEndpoints": ["pd:2379"]}},
            "leaderElection": {"backend": "Lease"},
        },
        "status": {
            "observedGeneration": 2,
            "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1,
            "version": "0.1.0",
            "leader": {"member": "dev-0", "epoch": 7, "since": "2026-11-21T00:00:00Z"},
            "members": [member(0, "Leader", "0.1.0"), member(1, "Follower", "0.1.0"), silent],
            "storage": {"type": "TiKV", "clusterID": "42", "keyPrefix": "brains/dev", "pdEndpoints": ["pd:2379"]},
            "rollout": {"generation": 2, "step": "ReplaceFollower", "waitingFor": "dev-2 is not ready"},
            "ca": {"generation": 1, "phase": "Stable", "notAfter": "2036-11-21T00:00:00Z"},
            "certificates": [
                {"secretName": "dev-server-tls", "notAfter": "2027-02-19T00:00:00Z", "renewalTime": "2027-01-20T00:00:00Z"},
                {"secretName": "dev-peer-tls", "notAfter": "2026-11-21T01:00:00Z"},
            ],
            "conditions": [
                {
                    "type": "Ready", "status": "False", "reason": "RollingUpdate", "message": "members are being replaced",
                    "lastTransitionTime": "2026-11-21T00:00:00Z",
                },
                {
                    "type": "Progressing", "status": "True", "reason": "RollingUpdate", "message": "members are being replaced",
                    "lastTransitionTime": "2026-11-21T00:00:00Z",
                },
            ],
        },
    })
}

fn read(value: Value) -> KubeBrainCluster {
    serde_json::from_value(value).unwrap()
}

/// Returns three members that are queried through the API server; the second one lags, the third one does not answer.
fn said() -> MemberAnswers {
    let mut answers = std::collections::BTreeMap::new();
    for (member, revision) in [(1, 1000), (2, 990)] {
        let mut answer = answer(member, 1);
        answer.revision = revision;
        answers.insert(answer.name.clone(), Ok(answer));
    }
    answers.insert("dev-2".to_owned(), Err("it does not answer".to_owned()));
    MemberAnswers {
        answers,
        not_asked: None,
    }
}

pub(crate) async fn says(api: &FakeApi, command: Command) -> Result<String, String> {
    let mut out = Vec::new();
    let done = Box::pin(execute(&target(api), command, &mut out)).await;
    let text = String::from_utf8(out).unwrap();
    done.map(|()| text).map_err(|error| format!("{error:#}"))
}

fn name() -> String {
    "dev".to_owned()
}

fn status_of(output: OutputFormat) -> Command {
    Command::Status {
        name: Some(name()),
        all_namespaces: false,
        output,
    }
}

#[tokio::test(start_paused = true)]
async fn status_without_a_name_lists_clusters() {
    let api = serving(FakeApi::new(), &three());
    let mut other = three();
    other["metadata"] = json!({"name": "other", "namespace": "elsewhere", "uid": "u"});
    other.as_object_mut().unwrap().remove("status");
    api.put(
        "/apis/kubebrain.io/v1alpha1/namespaces/elsewhere/kubebrainclusters/other",
        other,
    );
    let list = |all_namespaces| Command::Status {
        name: None,
        all_namespaces,
        output: OutputFormat::Table,
    };
    let expected = "\
NAME   READY   REASON          MEMBERS   LEADER   VERSION
dev    False   RollingUpdate   2/3       dev-0    0.1.0
";
    assert_eq!(says(&api, list(false)).await.unwrap(), expected);
    let expected = "\
NAMESPACE   NAME    READY     REASON          MEMBERS   LEADER   VERSION
brains      dev     False     RollingUpdate   2/3       dev-0    0.1.0
elsewhere   other   Unknown   -               0/3       -        -
";
    assert_eq!(says(&api, list(true)).await.unwrap(), expected);
}

#[test]
fn another_user_may_be_acted_as() {
    let parse = |more: &[&str]| {
        let all = ["kubectl-kubebrain", "status", "-A"]
            .into_iter()
            .chain(more.iter().copied());
        Arguments::try_parse_from(all)
    };
    assert!(parse(&["--as", "jane", "--as-group", "a", "--as-group", "b"]).is_ok());
    assert!(parse(&["--as-group", "a"]).is_err());
    assert!(parse(&["dev"]).is_err(), "-A lists, and names none");
}

#[tokio::test(start_paused = true)]
async fn plan_works_where_the_prometheus_operator_is_not_installed() {
    let api = FakeApi::scripted(|asked| match asked.path.contains("monitoring.coreos.com") {
        true => ScriptedReply::With(404, json!("404 page not found")),
        false => ScriptedReply::Pass,
    });
    let report = planned(&settled(api, |_| {})).await.unwrap();
    assert_eq!(report["steps"], json!([]), "{report}");
}

#[tokio::test(start_paused = true)]
async fn plan_asks_for_an_object_without_its_label_by_its_name() {
    let api = settled(FakeApi::new(), |_| {});
    let path = "/api/v1/namespaces/brains/secrets/dev-ca";
    let mut secret = api.get(path).unwrap();
    secret["metadata"]["labels"] = json!({});
    api.put(path, secret);
    let report = planned(&api).await.unwrap();
    assert_eq!(report["waitsFor"], json!([]), "{report}");
}

#[test]
fn arguments_are_well_formed() {
    Arguments::command().debug_assert();
    let parsed = Arguments::try_parse_from([
        "kubectl-kubebrain",
        "wait",
        "rollout",
        "dev",
        "--timeout",
        "30s",
        "-n",
        "a",
    ]);
    let Command::Wait {
        what: AwaitedState::Rollout { timeout, .. },
    } = parsed.unwrap().command
    else {
        panic!("another command");
    };
    assert_eq!(timeout, Duration::from_secs(30));
}

#[test]
fn status_shows_members_certificates_and_conditions() {
    let view = status::of(read(three()), &said(), Some(Ok("dev-0_1".to_owned())));
    let expected = "\
Cluster:  brains/dev
Version:  0.1.0, becoming 0.2.0
Members:  2 of 3 ready
Leader:   dev-0, epoch 7, since 2026-11-21T00:00:00Z
Lock:     Lease, held by dev-0_1
Storage:  TiKV, cluster 42, prefix brains/dev, PD pd:2379
CA:       generation 1, Stable, expires 2036-11-21T00:00:00Z
Rollout:  ReplaceFollower, waiting: dev-2 is not ready

MEMBER   ROLE       READY   NODE     VERSION   LAG   MESSAGE
dev-0    Leader     True    node-0   0.1.0     0     -
dev-1    Follower   True    node-1   0.1.0     10    -
dev-2    Unknown    False   node-2   0.2.0     -     it does not answer [2J

CERTIFICATE      ENDS                   LEFT   RENEWED AT
dev-server-tls   2027-02-19T00:00:00Z   90d    2027-01-20T00:00:00Z
dev-peer-tls     2026-11-21T01:00:00Z   60m    -

CONDITION     STATUS   REASON          MESSAGE
Ready         False    RollingUpdate   members are being replaced
Progressing   True     RollingUpdate   members are being replaced
";
    assert_eq!(view.table("2026-11-21T00:00:00Z".parse().unwrap()), expected);
}

#[test]
fn status_of_a_new_cluster_shows_what_there_is() {
    let mut cluster = three();
    cluster.as_object_mut().unwrap().remove("status");
    cluster["spec"]["leaderElection"] = json!(null);
    let none = MemberAnswers {
        answers: std::collections::BTreeMap::new(),
        not_asked: None,
    };
    let view = status::of(read(cluster), &none, None);
    let expected = "\
Cluster:  brains/dev
Version:  -, becoming 0.2.0
Members:  0 of 3 ready
Leader:   none is known
Lock:     Storage

Note: the operator has not observed the newest spec yet
";
    assert_eq!(view.table(Timestamp::UNIX_EPOCH), expected);
}

#[tokio::test(start_paused = true)]
async fn status_without_the_right_to_ask_members_says_so() {
    let forbid = |asked: &RecordedRequest| {
        if asked.path.contains("/proxy/") || asked.path.contains("/leases/") {
            let (code, status) = failure(403, "Forbidden", "it");
            return ScriptedReply::With(code, status);
        }
        ScriptedReply::Pass
    };
    let api = serving(FakeApi::scripted(forbid), &three());
    let output = OutputFormat::Json;
    let text = says(&api, status_of(output)).await.unwrap();
    let view: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(view["members"][1]["name"], "dev-1");
    assert_eq!(view["members"][1]["lag"], Value::Null);
    let notes = [
        "LAG is unknown: no permission to get pods/proxy in namespace brains",
        "no permission to get Lease dev-leader in namespace brains: Forbidden, said the server",
    ];
    assert_eq!(view["notes"], json!(notes));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_the_api_server_are_told_apart() {
    let status = || status_of(OutputFormat::Table);
    let said = says(&FakeApi::new(), status()).await;
    assert_eq!(
        said.unwrap_err(),
        "KubeBrainCluster dev does not exist in namespace brains"
    );
    let unknown = FakeApi::scripted(|_| ScriptedReply::With(404, json!("404 page not found")));
    let said = says(&unknown, status()).await.unwrap_err();
    assert!(
        said.contains("the definition of KubeBrainCluster is not installed"),
        "{said}"
    );
    let forbidden = FakeApi::scripted(|_| {
        let (code, status) = failure(403, "Forbidden", "dev");
        ScriptedReply::With(code, status)
    });
    let said = says(&forbidden, restart(false)).await;
    assert_eq!(
        said.unwrap_err(),
        "no permission to get KubeBrainCluster dev in namespace brains: Forbidden, said the server"
    );
}

/// Returns a server with a settled cluster without members, after this change.
fn settled(api: FakeApi, change: impl FnOnce(&mut FakeCluster)) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"replicas": 0}));
    fake.settle();
    change(&mut fake);
    api.load(&fake);
    api
}

async fn planned(api: &FakeApi) -> Result<Value, String> {
    let command = Command::Plan {
        name: name(),
        flags: report::OperatorFlags {
            ca_propagation: Duration::from_secs(600),
            ..report::OperatorFlags::default()
        },
        output: OutputFormat::Json,
    };
    let text = says(api, command).await?;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    Ok(serde_json::from_str(&text).unwrap())
}

#[tokio::test(start_paused = true)]
async fn plan_has_the_steps_of_the_operator_and_writes_nothing() {
    let none: [&str; 0] = [];
    let api = settled(FakeApi::new(), |_| {});
    let report = planned(&api).await.unwrap();
    assert_eq!(report["steps"], json!(none), "{report}");
    let logging = |fake: &mut FakeCluster| fake.edit(json!({"logLevel": "Debug"}));
    let report = planned(&settled(FakeApi::new(), logging)).await.unwrap();
    assert_eq!(report["steps"], json!(["apply StatefulSet dev"]), "{report}");
    let paused = |fake: &mut FakeCluster| fake.edit(json!({"logLevel": "Debug", "paused": true}));
    let report = planned(&settled(FakeApi::new(), paused)).await.unwrap();
    assert_eq!(report["steps"], json!(none), "{report}");
    assert_eq!(report["heldBack"], json!(["apply StatefulSet dev"]), "{report}");
    let refused = |fake: &mut FakeCluster| fake.edit(json!({"flags": {"data-dir": "x"}}));
    let report = planned(&settled(FakeApi::new(), refused)).await.unwrap();
    let waits = report["waitsFor"][0].as_str().unwrap();
    assert!(waits.contains("is set by the operator"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn plan_without_the_right_to_secrets_is_no_plan() {
    let forbidding = |plural: &'static str| {
        FakeApi::scripted(move |asked: &RecordedRequest| {
            if asked.path.ends_with(plural) {
                let (code, status) = failure(403, "Forbidden", "it");
                return ScriptedReply::With(code, status);
            }
            ScriptedReply::Pass
        })
    };
    let report = planned(&settled(forbidding("/rolebindings"), |_| {})).await.unwrap();
    let none: [&str; 0] = [];
    assert_eq!(
        report["steps"],
        json!(none),
        "of what the spec does not want nothing is needed"
    );
    let said = planned(&settled(forbidding("/secrets"), |_| {})).await.unwrap_err();
    assert!(
        said.starts_with("no permission to list secrets in namespace brains"),
        "{said}"
    );
}

/// Waits as a user would, while the operator changes the status like this.
async fn while_operator(api: &FakeApi, command: Command, act: impl FnOnce(&mut Value)) -> Result<String, String> {
    let operator = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let path = format!("{CLUSTERS}/dev");
        let mut cluster = api.get(&path).unwrap();
        act(&mut cluster);
        api.put(&path, cluster);
    };
    tokio::join!(says(api, command), operator).0
}

fn transfer(to: Option<&str>) -> Command {
    Command::TransferLeader {
        name: name(),
        to: to.map(str::to_owned),
        no_wait: false,
        timeout: Duration::from_secs(60),
    }
}

/// The operator handles the request, and `leader` leads then.
fn led_by(leader: &str) -> impl FnOnce(&mut Value) {
    move |cluster| {
        let wish = cluster["metadata"]["annotations"]["kubebrain.io/transfer-leader"].clone();
        cluster["status"]["lastHandledTransfer"] = wish;
        cluster["status"]["leader"]["member"] = json!(leader);
    }
}

#[tokio::test(start_paused = true)]
async fn transfer_waits_until_another_member_leads() {
    let api = serving(FakeApi::new(), &three());
    let said = while_operator(&api, transfer(Some("dev-1")), led_by("dev-1"))
        .await
        .unwrap();
    let expected = [
        "requested dev-1 as leader of dev instead of dev-0",
        "the operator waits: dev-2 is not ready",
        "the operator has handled it",
        "dev-1 leads",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let writes = api.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    let wish = writes[0].body["metadata"]["annotations"]["kubebrain.io/transfer-leader"]
        .as_str()
        .unwrap();
    let (pod, at) = wish.split_once('@').unwrap();
    assert_eq!((pod, at.parse::<Timestamp>().is_ok()), ("dev-1", true), "{wish}");

    let api = serving(FakeApi::new(), &three());
    let said = while_operator(&api, transfer(None), led_by("dev-0")).await.unwrap_err();
    assert_eq!(said, "timed out waiting for dev: dev-0 still leads");
    let said = says(&api, transfer(Some("dev-9"))).await.unwrap_err();
    assert_eq!(said, "dev-9 is no member of dev: its members are dev-0, dev-1, dev-2");
    let said = says(&api, transfer(Some("dev-0"))).await.unwrap_err();
    assert_eq!(said, "dev-0 already leads");
}

fn restart(no_wait: bool) -> Command {
    Command::Restart {
        name: name(),
        no_wait,
        timeout: Duration::from_secs(60),
    }
}

#[tokio::test(start_paused = true)]
async fn restart_that_the_operator_does_not_take_fails() {
    let api = serving(FakeApi::new(), &three());
    let said = says(&api, restart(false)).await.unwrap_err();
    assert_eq!(said, "timed out waiting for dev: waiting for the operator");
    let mut ahead = three();
    ahead["status"]["lastHandledRestart"] = json!("2136-01-01T00:00:00Z");
    let said = says(&serving(FakeApi::new(), &ahead), restart(false))
        .await
        .unwrap_err();
    assert!(
        said.contains("still uses a restart time in the future, 2136-01-01T00:00:00Z"),
        "{said}"
    );
    ahead["status"]["lastHandledRestart"] = json!("2026-01-01T00:00:00Z");
    ahead["metadata"]["annotations"] = json!({"kubebrain.io/restart": "2136-01-01T00:00:00Z"});
    let said = says(&serving(FakeApi::new(), &ahead), wait_for_rollout())
        .await
        .unwrap_err();
    assert!(said.contains("the operator ignores it"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn restart_of_a_paused_cluster_does_not_begin() {
    let mut paused = three();
    paused["spec"]["paused"] = json!(true);
    paused["status"]["lastHandledRestart"] = json!("2035-11-21T00:00:00Z");
    let said = says(&serving(FakeApi::new(), &paused), restart(false))
        .await
        .unwrap_err();
    assert!(said.contains("dev is paused"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn restart_is_an_annotation_and_no_change_of_the_spec() {
    let api = serving(FakeApi::new(), &three());
    let said = says(&api, restart(true)).await.unwrap();
    assert!(said.ends_with("kubectl kubebrain wait rollout dev\n"), "{said}");
    let writes = api.writes();
    let body = writes[0].body.as_object().unwrap();
    assert_eq!((writes.len(), body.len()), (1, 1), "{body:?}");
    let at = body["metadata"]["annotations"]["kubebrain.io/restart"]
        .as_str()
        .unwrap();
    assert!(at.parse::<Timestamp>().is_ok(), "{at}");
}

#[tokio::test(start_paused = true)]
async fn new_authority_is_one_generation_further_and_not_while_one_is_on_its_way() {
    let rotate = || Command::RotateCa {
        name: name(),
        yes: true,
    };
    let api = serving(FakeApi::new(), &three());
    let said = says(&api, rotate()).await.unwrap();
    assert!(
        said.contains("If the cluster is managed in git, set it there instead"),
        "{said}"
    );
    let writes = api.writes();
    assert_eq!(writes[0].body["spec"], json!({"tls": {"caGeneration": 2}}));
    assert!(writes[0].body["metadata"]["resourceVersion"].is_string());
    let said = says(&api, rotate()).await.unwrap_err();
    assert_eq!(said, "the key of dev is already being replaced: generation 2, Stable");
    let mut given = three();
    given["spec"]["tls"] = json!({"mode": "Disabled"});
    let said = says(&serving(FakeApi::new(), &given), rotate()).await.unwrap_err();
    assert_eq!(
        said,
        "the operator issues no certificates for dev: its tls.mode is Disabled"
    );
}

#[tokio::test(start_paused = true)]
async fn pause_and_resume_change_one_field() {
    let api = serving(FakeApi::new(), &three());
    assert_eq!(
        says(&api, Command::Pause { name: name() }).await.unwrap(),
        "paused dev\n"
    );
    assert_eq!(
        says(&api, Command::Pause { name: name() }).await.unwrap(),
        "dev is already paused\n"
    );
    assert_eq!(
        says(&api, Command::Resume { name: name() }).await.unwrap(),
        "resumed dev\n"
    );
    let bodies: Vec<Value> = api.writes().into_iter().map(|write| write.body).collect();
    let expected = [json!({"spec": {"paused": true}}), json!({"spec": {"paused": false}})];
    assert_eq!(bodies, expected);
}

fn wait_for_rollout() -> Command {
    Command::Wait {
        what: AwaitedState::Rollout {
            name: name(),
            timeout: Duration::from_secs(60),
        },
    }
}

#[tokio::test(start_paused = true)]
async fn rollout_is_waited_for_until_it_is_complete() {
    let api = serving(FakeApi::new(), &three());
    let progress = "1 of 3 members updated, 2 ready; ReplaceFollower; waiting: dev-2 is not ready";
    let complete = |cluster: &mut Value| {
        let status = &mut cluster["status"];
        status.as_object_mut().unwrap().remove("rollout");
        for (condition, value) in [(0, "True"), (1, "False")] {
            status["conditions"][condition]["status"] = json!(value);
            status["conditions"][condition]["message"] = json!("3 of 3 members are ready");
        }
    };
    let said = while_operator(&api, wait_for_rollout(), complete).await.unwrap();
    let done = "dev is rolled out: RollingUpdate: 3 of 3 members are ready";
    assert_eq!(said.lines().collect::<Vec<_>>(), [progress, done]);

    let mut stalled = three();
    stalled["status"]["conditions"][1]["type"] = json!("Stalled");
    let said = says(&serving(FakeApi::new(), &stalled), wait_for_rollout()).await;
    assert_eq!(said.unwrap_err(), "RollingUpdate: members are being replaced");

    let said = says(&serving(FakeApi::new(), &three()), wait_for_rollout())
        .await
        .unwrap_err();
    assert_eq!(said, format!("timed out waiting for dev: {progress}"));
}

#[tokio::test(start_paused = true)]
async fn rollout_is_not_complete_while_it_waits_for_a_maintenance_window() {
    let mut cluster = three();
    let status = &mut cluster["status"];
    status.as_object_mut().unwrap().remove("rollout");
    status["conditions"][0]["status"] = json!("True");
    status["conditions"][1]["status"] = json!("False");
    status["conditions"][1]["reason"] = json!("OutsideMaintenanceWindow");
    status["conditions"][1]["message"] = json!("the next one begins tomorrow");
    let said = says(&serving(FakeApi::new(), &cluster), wait_for_rollout()).await;
    let waits = "timed out waiting for dev: OutsideMaintenanceWindow: the next one begins tomorrow";
    assert_eq!(said.unwrap_err(), waits);
}

#[tokio::test(start_paused = true)]
async fn rollout_is_not_complete_before_the_operator_has_seen_a_restart() {
    let mut cluster = three();
    cluster["status"].as_object_mut().unwrap().remove("rollout");
    for (condition, value) in [(0, "True"), (1, "False")] {
        cluster["status"]["conditions"][condition]["status"] = json!(value);
    }
    cluster["metadata"]["annotations"] = json!({"kubebrain.io/restart": "2026-11-21T00:00:00Z"});
    let said = says(&serving(FakeApi::new(), &cluster), wait_for_rollout())
        .await
        .unwrap_err();
    assert_eq!(
        said,
        "timed out waiting for dev: the operator has not observed the newest spec yet"
    );
    cluster["status"]["lastHandledRestart"] = json!("2026-11-21T00:00:00Z");
    let said = says(&serving(FakeApi::new(), &cluster), wait_for_rollout()).await;
    assert!(said.unwrap().starts_with("dev is rolled out"));
}

/// Puts a pod with these containers and labels, as a map of names to numbers of restarts.
pub(crate) fn put_pod(api: &FakeApi, namespace: &str, name: &str, labels: Value, containers: &[(&str, i32)]) -> Value {
    let specs: Vec<Value> = containers
        .iter()
        .map(|(name, _)| json!({"name": name, "image": "x"}))
        .collect();
    let statuses: Vec<Value> = containers
        .iter()
        .map(|(name, restarts)| {
            json!({"name": name, "restartCount": restarts, "image": "x", "imageID": "", "ready": true})
        })
        .collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": specs}, "status": {"phase": "Running", "containerStatuses": statuses},
    });
    api.put(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), pod)
}

/// The pods of three members, the last one with a sidecar, of a trial, of the archive, of a backup, of the operator, and of another cluster.
pub(crate) fn put_pods(api: &FakeApi) {
    let member = |cluster: &str| json!({"kubebrain.io/cluster": cluster, "app.kubernetes.io/component": "brain"});
    put_pod(api, "brains", "dev-0", member("dev"), &[("brain", 0)]);
    put_pod(api, "brains", "dev-1", member("dev"), &[("brain", 2)]);
    put_pod(api, "brains", "dev-2", member("dev"), &[("brain", 0), ("proxy", 0)]);
    put_pod(api, "brains", "other-0", member("other"), &[("brain", 0)]);
    let trial = json!({"kubebrain.io/cluster": "dev"});
    put_pod(api, "brains", "dev-trial", trial, &[("brain", 0)]);
    put_pod(
        api,
        "brains",
        "dev-archive-1-a",
        json!({"kubebrain.io/archive": "dev"}),
        &[("archive", 0)],
    );
    let bootstrap = json!({"kubebrain.io/bootstrap": "dev"});
    put_pod(api, "brains", "dev-bootstrap-x", bootstrap, &[("bootstrap", 0)]);
    for (name, cluster) in [("b", "dev"), ("c", "other")] {
        let backup = json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": name, "namespace": "brains"},
            "spec": {"clusterName": cluster, "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
        });
        api.put(
            &format!("/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainbackups/{name}"),
            backup,
        );
        let labels = json!({"kubebrain.io/backup": name});
        put_pod(api, "brains", &format!("{name}-backup-x"), labels, &[("backup", 0)]);
    }
    let operator = json!({"app.kubernetes.io/component": "operator", "app.kubernetes.io/part-of": "kubebrain"});
    put_pod(
        api,
        "kubebrain-system",
        "kubebrain-operator-1",
        operator,
        &[("operator", 0)],
    );
}

mod cutover;
mod pod_logs;
