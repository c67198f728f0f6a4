//! Copies of an etcd, and their end.

use super::*;

/// A cluster that copies an etcd; `more` is merged over its source.
fn copying(more: Value) -> FakeCluster {
    let mut from = json!({"endpoints": ["https://10.0.0.5:2379", "https://10.0.0.6:2379"]});
    from.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fake(json!({"bootstrap": {"fromBackup": null, "fromEtcd": from}}))
}

/// The same after its Job was created.
fn begun(more: Value) -> FakeCluster {
    let mut fake = copying(more);
    assert!(fake.pass().contains(&"create Job dev-bootstrap".to_owned()));
    fake
}

/// Gives the Job another pod, in place of the former one.
fn put_pod(fake: &mut FakeCluster, name: &str, is_ready: bool) {
    let ready = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
    let pod = json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "creationTimestamp": crate::testing::BEGIN},
        "status": {"phase": "Running", "conditions": [ready]},
    });
    fake.seen.bootstrap.pods = vec![serde_json::from_value(pod).unwrap()];
}

fn annotate(fake: &mut FakeCluster, value: Option<&str>) {
    let annotations = value.map(|value| [(CUTOVER.to_owned(), value.to_owned())].into());
    fake.cluster.metadata.annotations = annotations;
}

fn annotated(fake: &FakeCluster) -> Option<&str> {
    let annotations = fake.seen.bootstrap.pods[0].metadata.annotations.as_ref()?;
    annotations.get(CUTOVER).map(String::as_str)
}

fn message(fake: &FakeCluster) -> String {
    let status = fake.cluster.status.clone().unwrap();
    status.bootstrap.unwrap().message.unwrap()
}

#[test]
fn program_gets_the_etcd_and_the_place_of_the_store() {
    let arguments = |more: Value| {
        let mut fake = begun(more);
        let job = fake.seen.bootstrap.job.take().unwrap();
        let mut pod = job.spec.unwrap().template.spec.unwrap();
        (pod.containers.remove(0), pod.volumes.unwrap())
    };
    let ends = [
        "--once",
        "--request-id=cluster-uid",
        "--result-file=/dev/termination-log",
        "--listen-metrics-urls=http://[::]:2381",
        "--data-dir=/var/lib/kubebrain/data",
    ];
    let source = "--from-endpoints=https://10.0.0.5:2379,https://10.0.0.6:2379";
    let follows = ["--follow", "--cutover-file=/etc/kubebrain/cutover/cutover"];
    let (container, _) = arguments(json!({}));
    assert_eq!(
        container.args.unwrap(),
        [&["import", source][..], &follows, &ends].concat()
    );
    assert_eq!(container.env, None);
    let (container, volumes) = arguments(json!({"follow": false}));
    assert_eq!(container.args.unwrap(), [&["import", source][..], &ends].concat());
    assert!(volumes.iter().all(|volume| volume.name != "cutover"));
    let all = json!({
        "tls": {"caBundleRef": {"kind": "ConfigMap", "name": "cas", "key": "ca.pem"}, "clientSecretRef": {"name": "client"}},
        "userSecretRef": {"name": "root"},
    });
    let (container, volumes) = arguments(all);
    let secrets = [
        "--cacert=/etc/kubebrain/source/ca.crt",
        "--cert=/etc/kubebrain/source/tls.crt",
        "--key=/etc/kubebrain/source/tls.key",
        "--user=$(ETCD_USER)",
    ];
    assert_eq!(
        container.args.unwrap(),
        [&["import", source][..], &secrets, &follows, &ends].concat()
    );
    let env = serde_json::to_value(container.env).unwrap();
    let user = |key: &str| json!({"secretKeyRef": {"name": "root", "key": key, "optional": false}});
    assert_eq!(
        env,
        json!([
            {"name": "ETCD_USER", "valueFrom": user("username")},
            {"name": "ETCDCTL_PASSWORD", "valueFrom": user("password")},
        ])
    );
    let sources = |name: &str| {
        let found = volumes.iter().find(|volume| volume.name == name).unwrap();
        serde_json::to_value(&found.projected).unwrap()["sources"].clone()
    };
    assert_eq!(
        sources("source"),
        json!([
            {"configMap": {"name": "cas", "items": [{"key": "ca.pem", "path": "ca.crt"}]}},
            {"secret": {"name": "client", "items": [{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}]}},
        ])
    );
    let annotation = json!({"apiVersion": "v1", "fieldPath": "metadata.annotations['kubebrain.io/cutover']"});
    assert_eq!(
        sources("cutover"),
        json!([{"downwardAPI": {"items": [{"path": "cutover", "fieldRef": annotation}]}}])
    );
}

#[test]
fn objects_that_an_etcd_needs_are_named() {
    let all = json!({
        "tls": {"caBundleRef": {"kind": "Secret", "name": "cas"}, "clientSecretRef": {"name": "client"}},
        "userSecretRef": {"name": "root"},
    });
    let fake = copying(all);
    let source = fake.seen.bootstrap.source.unwrap().unwrap();
    let missing: Vec<String> = source.named().iter().map(NamedObject::missing).collect();
    assert_eq!(
        missing,
        [
            "fromEtcd.tls.caBundleRef: Secret cas does not exist",
            "fromEtcd.tls.clientSecretRef: Secret client does not exist",
            "fromEtcd.userSecretRef: Secret root does not exist",
        ]
    );
}

#[test]
fn copy_outlives_evictions_and_says_when_it_follows() {
    let job = |more: Value| serde_json::to_value(begun(more).seen.bootstrap.job).unwrap()["spec"].clone();
    let spec = job(json!({}));
    let evicted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    assert_eq!(
        spec["podFailurePolicy"]["rules"],
        json!([{"action": "Ignore", "onPodConditions": evicted}])
    );
    assert_eq!(
        (&spec["backoffLimit"], &spec["activeDeadlineSeconds"]),
        (&json!(100), &Value::Null)
    );
    assert_eq!(job(json!({"follow": false}))["backoffLimit"], 10);
    let container = &spec["template"]["spec"]["containers"][0];
    assert_eq!(
        container["ports"],
        json!([{"name": "metrics", "containerPort": 2381, "protocol": "TCP"}])
    );
    let probe = &container["readinessProbe"];
    assert_eq!(
        (&probe["httpGet"]["path"], &probe["httpGet"]["port"]),
        (&json!("/readyz"), &json!("metrics"))
    );
    assert_eq!(probe["periodSeconds"], 2);
    assert_eq!(container["livenessProbe"], Value::Null);
}

#[test]
fn copy_follows_until_its_cutover_and_then_members_start() {
    let mut fake = begun(json!({}));
    put_pod(&mut fake, "dev-bootstrap-a", false);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Bootstrapped"), "False/Bootstrapping");
    assert_eq!(phase(&fake), BootstrapPhase::Running);

    put_pod(&mut fake, "dev-bootstrap-a", true);
    // A failure of an earlier attempt is over.
    fake.seen.bootstrap.trouble = Some("the etcd did not answer".to_owned());
    for _ in 0..3 {
        fake.wait(86_400);
        assert_eq!(fake.pass(), Vec::<String>::new());
    }
    assert_eq!(phase(&fake), BootstrapPhase::Following);
    assert_eq!(fake.condition("Bootstrapped"), "False/Following");
    assert_eq!(fake.condition("Ready"), "False/Bootstrapping");
    assert_eq!(fake.condition("Progressing"), "True/Bootstrapping");
    assert_eq!(fake.condition("Degraded"), "False/AsExpected");
    assert_eq!(
        message(&fake),
        "the copy of https://10.0.0.5:2379 and 1 more follows its source: stop the clients that write there, then annotate the cluster \
         with kubebrain.io/cutover=true, or run kubectl kubebrain cutover dev"
    );

    annotate(&mut fake, Some("true"));
    assert_eq!(fake.pass(), ["annotate pod dev-bootstrap-a: its copy ends"]);
    assert_eq!(annotated(&fake), Some("true"));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Bootstrapped"), "False/CuttingOver");
    assert_eq!(phase(&fake), BootstrapPhase::Following);
    assert_eq!(
        message(&fake),
        "the copy is brought to the last revision of its source and compared; it does not end while clients write there"
    );
    assert!(!has_set(&fake));

    fake.seen.bootstrap.pods.clear();
    end(
        &mut fake,
        "Complete",
        Some(json!({"existed": false, "clusterId": STORE, "revision": 42})),
    );
    assert_eq!(fake.pass(), Vec::<String>::new(), "the status comes first");
    assert_eq!(fake.condition("Bootstrapped"), "True/Copied");
    assert_eq!(
        message(&fake),
        "copied the etcd, and compared both; the store begins at revision 42"
    );
    let bootstrap = fake.cluster.status.as_ref().unwrap().bootstrap.clone().unwrap();
    assert_eq!(
        bootstrap.source.as_deref(),
        Some("etcd at https://10.0.0.5:2379, https://10.0.0.6:2379")
    );
    assert_eq!(
        (bootstrap.phase, bootstrap.revision),
        (BootstrapPhase::Complete, Some(42))
    );
    fake.seen.bootstrap = ObservedBootstrap::default();
    fake.settle();
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    annotate(&mut fake, None);
    assert_eq!(fake.pass(), Vec::<String>::new(), "nothing reads it any more");
}

#[test]
fn copy_that_does_not_follow_says_what_it_lacks() {
    let mut fake = begun(json!({"follow": false}));
    let result = json!({"existed": false, "clusterId": STORE, "revision": 42, "sourceRevision": 50});
    end(&mut fake, "Complete", Some(result));
    fake.pass();
    assert_eq!(
        message(&fake),
        "copied the etcd, and compared both; the store begins at revision 42; it lacks what was written there since, up to revision 50"
    );
}

#[test]
fn later_pods_end_the_copy_too_and_say_why_the_former_one_did_not() {
    let mut fake = begun(json!({}));
    annotate(&mut fake, Some("true"));
    assert_eq!(fake.pass(), Vec::<String>::new(), "there is no pod yet");
    put_pod(&mut fake, "dev-bootstrap-a", true);
    assert_eq!(fake.pass(), ["annotate pod dev-bootstrap-a: its copy ends"]);
    fake.seen.bootstrap.trouble = Some("the source is still written to".to_owned());
    put_pod(&mut fake, "dev-bootstrap-b", false);
    assert_eq!(fake.pass(), ["annotate pod dev-bootstrap-b: its copy ends"]);
    assert_eq!(phase(&fake), BootstrapPhase::Running);
    assert_eq!(fake.condition("Bootstrapped"), "False/CuttingOver");
    assert_eq!(
        message(&fake),
        "Job dev-bootstrap is running, and the cutover ends the copy once that has reached its source; the last attempt: the source is still written to"
    );
    // The request does not make another Job.
    end(&mut fake, "Failed", None);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Stalled"), "True/BootstrapFailed");
}

#[test]
fn pod_that_ends_its_copy_does_so_although_the_request_is_taken_back() {
    let mut fake = begun(json!({}));
    put_pod(&mut fake, "dev-bootstrap-a", true);
    annotate(&mut fake, Some("true"));
    fake.pass();
    annotate(&mut fake, None);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(annotated(&fake), Some("true"));
    assert_eq!(fake.condition("Bootstrapped"), "False/CuttingOver");
    // The next one does not know of it.
    put_pod(&mut fake, "dev-bootstrap-b", true);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(annotated(&fake), None);
    assert_eq!(fake.condition("Bootstrapped"), "False/Following");
}

#[test]
fn cutover_is_requested_by_one_value_and_waits_for_the_end_of_a_pause() {
    let mut fake = begun(json!({}));
    put_pod(&mut fake, "dev-bootstrap-a", true);
    for value in ["false", "", "True", "yes"] {
        annotate(&mut fake, Some(value));
        assert_eq!(fake.pass(), Vec::<String>::new(), "{value}");
        assert_eq!(fake.condition("Bootstrapped"), "False/Following");
    }
    fake.edit(json!({"paused": true}));
    annotate(&mut fake, Some("true"));
    assert_eq!(fake.plan().steps.len(), 1, "it is held back");
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(annotated(&fake), None);
    assert_eq!(fake.condition("Bootstrapped"), "False/Following");
    assert!(message(&fake).ends_with("its cutover waits, because spec.paused is true"));
    fake.edit(json!({"paused": false}));
    found(&mut fake);
    assert_eq!(fake.pass(), ["annotate pod dev-bootstrap-a: its copy ends"]);
}

#[test]
fn copy_that_does_not_follow_ends_by_itself() {
    let mut fake = begun(json!({"follow": false}));
    put_pod(&mut fake, "dev-bootstrap-a", true);
    annotate(&mut fake, Some("true"));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Bootstrapped"), "False/Bootstrapping");
    assert_eq!(phase(&fake), BootstrapPhase::Running);
}

#[test]
fn restore_ignores_a_request_for_a_cutover() {
    let mut fake = fake(json!({}));
    fake.pass();
    put_pod(&mut fake, "dev-bootstrap-a", true);
    annotate(&mut fake, Some("true"));
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition("Bootstrapped"), "False/Bootstrapping");
}

/// Lets the pod report these figures, runs a pass, and returns the progress in the status, as the revisions and the seconds since the beginning.
fn reported(fake: &mut FakeCluster, figures: Option<(i64, i64)>) -> Option<(i64, i64, i64, i64)> {
    let begin: k8s_openapi::jiff::Timestamp = crate::testing::BEGIN.parse().unwrap();
    fake.seen.bootstrap.figures = figures.map(|(revision, source_revision)| {
        Box::new(CopyFigures {
            revision,
            source_revision,
        })
    });
    assert_eq!(fake.pass(), Vec::<String>::new());
    let status = fake.cluster.status.clone().unwrap().bootstrap.unwrap();
    let progress = status.progress?;
    let at = progress.seen_at.0.as_second() - begin.as_second();
    Some((progress.revision, progress.source_revision, progress.lag_revisions, at))
}

fn is_due(fake: &FakeCluster) -> bool {
    are_figures_due(&fake.cluster, &fake.seen.bootstrap, fake.seen.now)
}

#[test]
fn progress_is_written_once_a_minute_or_with_the_phase() {
    let mut fake = begun(json!({}));
    let begin: k8s_openapi::jiff::Timestamp = crate::testing::BEGIN.parse().unwrap();
    fake.at(begin);
    put_pod(&mut fake, "dev-bootstrap-a", false);
    assert!(is_due(&fake));
    assert_eq!(reported(&mut fake, None), None, "a pod that does not answer is no news");
    assert_eq!(reported(&mut fake, Some((0, 50))), Some((0, 50, 50, 0)));
    fake.wait(30);
    assert!(!is_due(&fake));
    assert_eq!(reported(&mut fake, Some((20, 50))), Some((0, 50, 50, 0)));
    // The message would have the figures of the phase before.
    put_pod(&mut fake, "dev-bootstrap-a", true);
    assert!(is_due(&fake));
    assert_eq!(reported(&mut fake, Some((49, 50))), Some((49, 50, 1, 30)));
    let start = "the copy of https://10.0.0.5:2379 and 1 more follows its source";
    assert!(
        message(&fake).starts_with(&format!("{start} and lacks 1 revision: stop")),
        "{}",
        message(&fake)
    );
    fake.wait(59);
    let before = fake.cluster.status.clone();
    assert!(!is_due(&fake));
    assert_eq!(reported(&mut fake, Some((60, 90))), Some((49, 50, 1, 30)));
    assert_eq!(fake.cluster.status, before, "nothing is written");
    fake.wait(1);
    assert!(is_due(&fake));
    assert_eq!(reported(&mut fake, Some((77, 90))), Some((77, 90, 13, 90)));
    assert!(
        message(&fake).starts_with(&format!("{start} and lacks 13 revisions: stop")),
        "{}",
        message(&fake)
    );
    assert_eq!(fake.condition("Bootstrapped"), "False/Following");
    fake.wait(600);
    let before = fake.cluster.status.clone();
    assert_eq!(reported(&mut fake, None), Some((77, 90, 13, 90)));
    assert_eq!(fake.cluster.status, before);
    // A clock that was set back does not end the reports.
    fake.at(begin);
    assert!(is_due(&fake));
    assert_eq!(reported(&mut fake, Some((95, 95))), Some((95, 95, 0, 0)));
    end(
        &mut fake,
        "Complete",
        Some(json!({"existed": false, "clusterId": STORE, "revision": 95})),
    );
    assert_eq!(
        reported(&mut fake, None),
        None,
        "status.bootstrap.revision has the last one"
    );
    assert!(!is_due(&fake));
}

#[test]
fn restore_has_no_progress() {
    let mut fake = fake(json!({}));
    fake.pass();
    assert!(!is_due(&fake));
    assert_eq!(reported(&mut fake, Some((1, 2))), None);
}

#[test]
fn figures_of_a_copy_are_bounded() {
    let page =
        "# TYPE kubebrain_import_revision gauge\nkubebrain_import_revision -5\nkubebrain_import_source_revision 7\n";
    let figures = CopyFigures::parse(page).unwrap();
    assert_eq!((figures.revision, figures.source_revision), (0, 7));
    assert_eq!(CopyFigures::parse("kubebrain_import_revision 5\n"), None);
    assert_eq!(CopyFigures::parse("kubebrain_archive_last_revision 5\n"), None);
    let mut fake = begun(json!({}));
    put_pod(&mut fake, "dev-bootstrap-a", false);
    let progress = reported(&mut fake, Some((i64::MAX, 7))).unwrap();
    assert_eq!((progress.0, progress.2), (i64::MAX, 0));
}
