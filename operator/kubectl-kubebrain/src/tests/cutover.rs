//! The end of a copy of an etcd.

use super::*;

const ANNOTATION: &str = "kubebrain.io/cutover";

/// A cluster whose copy of an etcd is in this phase.
fn copying(phase: &str) -> Value {
    let mut cluster = three();
    cluster["spec"]["bootstrap"] =
        json!({"fromEtcd": {"endpoints": ["https://10.0.0.5:2379", "https://10.0.0.6:2379"]}});
    cluster["status"]["bootstrap"] = json!({"phase": phase, "message": "Job dev-bootstrap is running"});
    cluster["status"]["conditions"] = json!([bootstrapped("False", phase, "why")]);
    cluster
}

fn bootstrapped(status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": "Bootstrapped", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-21T00:00:00Z",
    })
}

fn cutover(wait: bool) -> Command {
    Command::Cutover {
        name: name(),
        wait,
        timeout: Duration::from_secs(60),
        yes: true,
    }
}

#[tokio::test(start_paused = true)]
async fn cutover_is_an_annotation_and_says_what_it_does() {
    let api = serving(FakeApi::new(), &copying("Following"));
    let said = says(&api, cutover(false)).await.unwrap();
    let expected = [
        "This ends the copy of https://10.0.0.5:2379, https://10.0.0.6:2379 into dev: it is brought to the last revision there and compared, \
         and then the members start. Stop the clients that write there first: the copy does not end before.",
        "requested the cutover of dev; to see its state: kubectl kubebrain status dev",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let writes = api.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(
        writes[0].body,
        json!({"metadata": {"annotations": {ANNOTATION: "true"}}})
    );
    let said = says(&api, cutover(false)).await.unwrap();
    assert_eq!(said, "the cutover of dev was requested before\n");
    assert_eq!(api.writes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn cutover_without_a_terminal_needs_a_flag() {
    let api = serving(FakeApi::new(), &copying("Following"));
    let unconfirmed = Command::Cutover {
        name: name(),
        wait: false,
        timeout: Duration::from_secs(60),
        yes: false,
    };
    // Tests may run at a terminal, whose user would be asked.
    if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let said = says(&api, unconfirmed).await.unwrap_err();
        assert_eq!(said, "standard input is not a terminal: use --yes");
        assert!(api.writes().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn cutover_of_a_copy_that_does_not_follow_is_refused() {
    let refused = async |cluster: Value| {
        let api = serving(FakeApi::new(), &cluster);
        let said = says(&api, cutover(true)).await.unwrap_err();
        assert!(api.writes().is_empty(), "{:?}", api.writes());
        said
    };
    let none = "the spec of dev has no bootstrap.fromEtcd: there is no copy to end";
    assert_eq!(refused(three()).await, none);
    let mut restored = copying("Following");
    restored["spec"]["bootstrap"] = json!({"fromBackup": {"backup": {"name": "a"}}});
    assert_eq!(refused(restored).await, none);
    let mut once = copying("Running");
    once["spec"]["bootstrap"]["fromEtcd"]["follow"] = json!(false);
    assert_eq!(
        refused(once).await,
        "bootstrap.fromEtcd.follow of dev is false: its copy ends by itself"
    );
    for phase in ["Pending", "Running", "Failed"] {
        assert_eq!(
            refused(copying(phase)).await,
            format!("the copy of dev does not follow its source: its phase is {phase}: Job dev-bootstrap is running")
        );
    }
    assert_eq!(
        refused(copying("Complete")).await,
        "the copy of dev is complete already"
    );
    let mut new = copying("Running");
    new["status"]["bootstrap"] = Value::Null;
    assert_eq!(
        refused(new).await,
        "the copy of dev does not follow its source: the operator has not begun it yet"
    );
    let mut paused = copying("Following");
    paused["spec"]["paused"] = json!(true);
    assert_eq!(
        refused(paused).await,
        "dev is paused: its copy does not end before kubectl kubebrain resume dev"
    );
}

#[tokio::test(start_paused = true)]
async fn end_of_the_copy_is_waited_for() {
    let becomes = |condition: Value| {
        move |cluster: &mut Value| {
            assert_eq!(cluster["metadata"]["annotations"][ANNOTATION], "true");
            cluster["status"]["conditions"] = json!([condition]);
        }
    };
    let api = serving(FakeApi::new(), &copying("Following"));
    let copied = bootstrapped("True", "Copied", "the store begins at revision 42");
    let said = while_operator(&api, cutover(true), becomes(copied)).await.unwrap();
    let said: Vec<&str> = said.lines().skip(2).collect();
    assert_eq!(said, ["Following: why", "Copied: the store begins at revision 42"]);

    let api = serving(FakeApi::new(), &copying("Following"));
    let written = bootstrapped("False", "CuttingOver", "the source is still written to");
    let said = while_operator(&api, cutover(true), becomes(written)).await.unwrap_err();
    assert_eq!(
        said,
        "timed out waiting for dev: CuttingOver: the source is still written to"
    );

    let api = serving(FakeApi::new(), &copying("Following"));
    let mut stalled = bootstrapped("True", "BootstrapFailed", "every attempt failed");
    stalled["type"] = json!("Stalled");
    let said = while_operator(&api, cutover(true), becomes(stalled)).await.unwrap_err();
    assert_eq!(said, "BootstrapFailed: every attempt failed");

    let api = serving(FakeApi::new(), &copying("Following"));
    let taken_back = |cluster: &mut Value| cluster["metadata"]["annotations"] = json!({});
    let said = while_operator(&api, cutover(true), taken_back).await.unwrap_err();
    assert_eq!(
        said,
        "another client removed the annotation kubebrain.io/cutover of dev"
    );
}

#[tokio::test(start_paused = true)]
async fn plan_shows_that_the_pod_of_a_copy_is_annotated() {
    let api = FakeApi::new();
    let mut fake = FakeCluster::new(json!({
        "tls": {"mode": "Disabled"}, "bootstrap": {"fromEtcd": {"endpoints": ["https://10.0.0.5:2379"]}},
    }));
    let etcd = fake.cluster.spec.bootstrap.clone().unwrap().from_etcd.unwrap();
    fake.seen.bootstrap.source = Some(Ok(plan::bootstrap::BootstrapSource::Etcd(Box::new(etcd))));
    fake.pass();
    let job = fake.seen.bootstrap.job.clone().unwrap();
    let annotations = [(ANNOTATION.to_owned(), "true".to_owned())];
    fake.cluster.metadata.annotations = Some(annotations.into());
    api.load(&fake);
    let uid = job.metadata.uid.clone();
    let mut job = serde_json::to_value(job).unwrap();
    job["apiVersion"] = json!("batch/v1");
    job["kind"] = json!("Job");
    job["metadata"]["uid"] = json!(uid);
    api.put("/apis/batch/v1/namespaces/brains/jobs/dev-bootstrap", job);
    let stored = api.get("/apis/batch/v1/namespaces/brains/jobs/dev-bootstrap").unwrap();
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "dev-bootstrap", "uid": stored["metadata"]["uid"], "controller": true,
    });
    for (pod, phase) in [("dev-bootstrap-a", "Failed"), ("dev-bootstrap-b", "Running")] {
        let metadata = json!({
            "name": pod, "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-bootstrap"}, "ownerReferences": [owner],
        });
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"phase": phase}});
        api.put(
            &format!(
                "/api/v1/namespaces/brains/pods/{}",
                pod["metadata"]["name"].as_str().unwrap()
            ),
            pod,
        );
    }
    let report = planned(&api).await.unwrap();
    let steps = report["steps"].as_array().unwrap();
    assert!(
        steps.contains(&json!("annotate pod dev-bootstrap-b: its copy ends")),
        "{report}"
    );
    assert!(!report.to_string().contains("dev-bootstrap-a"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn status_shows_how_far_a_copy_is() {
    let mut cluster = copying("Following");
    let bootstrap = &mut cluster["status"]["bootstrap"];
    bootstrap["source"] = json!("etcd at https://10.0.0.5:2379");
    let view = |cluster: &Value| status::of(read(cluster.clone()), &said(), None);
    let line = |cluster: &Value| {
        let table = view(cluster).table("2026-11-21T00:00:30Z".parse().unwrap());
        table
            .lines()
            .find(|line| line.starts_with("Origin:"))
            .map(str::to_owned)
    };
    let source = "Origin:   Following, etcd at https://10.0.0.5:2379";
    assert_eq!(line(&cluster).as_deref(), Some(source));
    cluster["status"]["bootstrap"]["progress"] =
        json!({"revision": 87, "sourceRevision": 100, "lagRevisions": 13, "seenAt": "2026-11-21T00:00:00Z"});
    let expected = format!("{source}, revision 87 of 100, lacks 13, seen 30s ago");
    assert_eq!(line(&cluster).as_deref(), Some(expected.as_str()));
    let json = serde_json::to_value(view(&cluster)).unwrap();
    assert_eq!(json["bootstrap"]["progress"]["lagRevisions"], 13);
    cluster["status"]["bootstrap"]["phase"] = json!("Complete");
    assert_eq!(line(&cluster), None);
    assert_eq!(line(&three()), None);
}
