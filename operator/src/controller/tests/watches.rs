//! Watches and the stores that they fill: what triggers a pass, and what a pass waits for.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Metadata of a pod of the cluster's StatefulSet.
fn own_pod() -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": "u", "controller": true});
    json!({"name": "dev-0", "namespace": "brains", "labels": {"kubebrain.io/cluster": "dev"}, "ownerReferences": [owner]})
}

#[tokio::test(start_paused = true)]
async fn changes_of_children_start_a_pass_and_those_of_the_status_do_not() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    let named = async |rig: &Rig| {
        rig.sync().await;
        let mut names = Vec::new();
        let mut stream = std::pin::pin!(rig.queue.clone().stream());
        while let Some(Some(cluster)) = stream.next().now_or_never() {
            names.push(cluster.name);
        }
        names
    };
    named(&rig).await;
    let edit = |path: &str, change: fn(&mut Value)| {
        let mut object = rig.api.get(path).unwrap();
        change(&mut object);
        rig.api.put(path, object);
    };
    let own = format!("{CLUSTERS}/dev");
    edit(&own, |cluster| cluster["status"]["version"] = json!("9.9.9"));
    assert_eq!(named(&rig).await, Vec::<String>::new());
    edit(&own, |cluster| {
        cluster["metadata"]["annotations"] = json!({"kubebrain.io/restart": "1"})
    });
    assert_eq!(named(&rig).await, ["dev"]);
    edit(&format!("{NAMESPACE}/services/dev-client"), |service| {
        service["spec"]["x"] = json!(1)
    });
    assert_eq!(named(&rig).await, ["dev"]);
    edit(&format!("{NAMESPACE}/services/dev-client"), |service| {
        service["spec"]["renewTime"] = json!("2026-11-21T00:00:01.000000Z");
    });
    assert_eq!(named(&rig).await, Vec::<String>::new());
    let pod = json!({"metadata": own_pod()});
    rig.api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    assert_eq!(named(&rig).await, ["dev"]);
    rig.api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    assert_eq!(named(&rig).await, ["dev"]);
}

#[tokio::test(start_paused = true)]
async fn pods_of_somebody_else_are_found_by_the_selector() {
    let api = FakeApi::new();
    let mut external = serde_json::to_value(cluster(json!({}))).unwrap();
    external["spec"]["workload"] = json!({"type": "External", "selector": {"matchLabels": {"app": "apiserver"}}});
    api.put(&format!("{CLUSTERS}/dev"), external);
    let pod = |name: &str, app: &str| {
        let path = format!("{NAMESPACE}/pods/{name}");
        api.put(
            &path,
            json!({"metadata": {"name": name, "namespace": "brains", "labels": {"app": app}}}),
        );
        path
    };
    let first = pod("apiserver-1", "apiserver");
    pod("another", "other");
    let rig = Rig::new(api.clone()).await;
    let names = async |rig: &Rig| {
        let pods = rig.context.external_pods.of(&rig.cluster()).await.unwrap();
        pods.iter().map(|pod| pod.name_any()).collect::<Vec<_>>()
    };
    assert_eq!(names(&rig).await, ["apiserver-1"]);
    pod("apiserver-2", "apiserver");
    api.remove(&first);
    rig.sync().await;
    assert_eq!(names(&rig).await, ["apiserver-2"]);
    let watches = api
        .asked()
        .iter()
        .filter(|asked| asked.query.contains("app%3Dapiserver") && asked.query.contains("watch=true"))
        .count();
    assert_eq!(watches, 1);
    // The watch ends with the cluster.
    let gone = rig.cluster();
    api.remove(&format!("{CLUSTERS}/dev"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.context.external_pods.watched(), 0, "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn external_pods_cost_little_whoever_labels_them() {
    let api = FakeApi::new();
    let spec = json!({"workload": {"type": "External", "selector": {"matchLabels": {"app": "a"}}}, "storage": {"embedded": null}});
    api.put(&format!("{CLUSTERS}/dev"), serde_json::to_value(cluster(spec)).unwrap());
    let put = |name: &str| {
        let spec = json!({"nodeName": "n1", "containers": [{"name": "x", "args": ["x".repeat(100 << 10)]}]});
        let metadata = json!({"name": name, "namespace": "brains", "labels": {"app": "a"}});
        api.put(
            &format!("{NAMESPACE}/pods/{name}"),
            json!({"metadata": metadata, "spec": spec}),
        );
    };
    (0..300).for_each(|number| put(&format!("a-{number:03}")));
    let rig = Rig::new(api.clone()).await;
    let pods = rig.context.external_pods.of(&rig.cluster()).await.unwrap();
    assert_eq!(pods.len(), 256);
    let spec = pods[0].spec.clone().unwrap();
    assert_eq!((spec.node_name.as_deref(), spec.containers.len()), (Some("n1"), 0));
    // A deleted pod makes room for another one.
    api.remove(&format!("{NAMESPACE}/pods/a-000"));
    rig.sync().await;
    put("b");
    rig.sync().await;
    let pods = rig.context.external_pods.of(&rig.cluster()).await.unwrap();
    assert!(pods.len() == 256 && pods.iter().any(|pod| pod.name_any() == "b"));
}

#[tokio::test(start_paused = true)]
async fn named_secrets_are_watched_and_not_polled() {
    let api = settled(FakeApi::new());
    let path = format!("{CLUSTERS}/dev");
    let mut own = api.get(&path).unwrap();
    own["spec"]["tls"] = json!({"caSecretRef": {"name": "own-ca"}});
    api.put(&path, own);
    let rig = Rig::new(api).await;
    let secret = format!("{NAMESPACE}/secrets/own-ca");
    let named = async |rig: &Rig| {
        rig.sync().await;
        let mut named = Box::pin(rig.queue.clone().stream());
        let mut all = Vec::new();
        while let Some(Some(cluster)) = named.next().now_or_never() {
            all.push(cluster.name);
        }
        all
    };
    let found = async |rig: &Rig| rig.context.user_secrets.of(&rig.cluster()).await.unwrap()["own-ca"].clone();
    assert_eq!(found(&rig).await, None);
    named(&rig).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    rig.api.forget_requests();
    assert_eq!(found(&rig).await, None);
    assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());

    // A change arrives at once, and other Secrets are not requested.
    let made = json!({"metadata": {"name": "own-ca", "namespace": "brains"}, "data": {"ca.crt": "eA=="}});
    rig.api.put(&secret, made.clone());
    rig.api.put(
        &format!("{NAMESPACE}/secrets/another"),
        json!({"metadata": {"name": "another", "namespace": "brains"}}),
    );
    assert_eq!(named(&rig).await, ["dev"]);
    assert_eq!(found(&rig).await.unwrap().data.as_ref().unwrap()["ca.crt"].0, b"x");
    rig.api.remove(&secret);
    assert_eq!(named(&rig).await, ["dev"]);
    assert_eq!(found(&rig).await, None);
    assert_eq!(rig.context.user_secrets.watched(), 1);

    // The watch ends when no cluster names the Secret.
    let mut own = rig.api.get(&path).unwrap();
    own["spec"]["tls"] = json!({});
    rig.api.put(&path, own);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.context.user_secrets.watched(), 0);
}

#[tokio::test(start_paused = true)]
async fn secret_that_may_not_be_watched_fails_the_pass_with_its_name() {
    let api = FakeApi::scripted(|asked| match asked.query.contains("fieldSelector=metadata.name") {
        true => refuse(403, "Forbidden"),
        false => ScriptedReply::Pass,
    });
    let api = settled(api);
    let path = format!("{CLUSTERS}/dev");
    let mut own = api.get(&path).unwrap();
    own["spec"]["tls"] = json!({"caSecretRef": {"name": "own-ca"}});
    api.put(&path, own);
    let rig = Rig::new(api).await;
    let problem = pass(&rig).await.unwrap_err();
    assert!(
        problem.message().contains("Secret own-ca cannot be watched"),
        "{}",
        problem.message()
    );
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_not_kept() {
    let api = bare(FakeApi::new());
    let mut pod = json!({"metadata": own_pod()});
    pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "operation": "Update"}]);
    api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    let rig = Rig::new(api).await;
    let kept = rig.context.cache.pod("brains", "dev-0").unwrap();
    assert_eq!(kept.metadata.managed_fields, None);
}

/// A server that knows the kinds of the Prometheus operator as soon as the number is not zero.
fn with_monitoring_later() -> (FakeApi, Arc<AtomicUsize>) {
    let installed = Arc::<AtomicUsize>::default();
    let there = installed.clone();
    let api = FakeApi::scripted(move |asked| {
        if asked.path != "/apis/monitoring.coreos.com/v1" || there.load(Ordering::SeqCst) == 0 {
            return ScriptedReply::Pass;
        }
        let resource = json!({"name": "podmonitors", "singularName": "podmonitor", "namespaced": true, "kind": "PodMonitor", "verbs": ["list"]});
        let list =
            json!({"kind": "APIResourceList", "groupVersion": "monitoring.coreos.com/v1", "resources": [resource]});
        ScriptedReply::With(200, list)
    });
    (api, installed)
}

#[tokio::test(start_paused = true)]
async fn kind_that_a_cluster_asks_for_is_found_soon_after_it_is_installed() {
    let (api, installed) = with_monitoring_later();
    let spec = json!({"monitoring": {"podMonitor": {"enabled": true}}});
    api.put(&format!("{CLUSTERS}/dev"), serde_json::to_value(cluster(spec)).unwrap());
    let rig = Rig::new(api).await;
    let knows = |rig: &Rig| rig.context.cache.knows(plan::objects::ObjectKind::PodMonitor);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!knows(&rig));
    installed.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(knows(&rig));
}

#[tokio::test(start_paused = true)]
async fn kind_that_is_installed_later_is_found() {
    let (api, installed) = with_monitoring_later();
    let rig = Rig::new(bare(api)).await;
    let looks = |rig: &Rig| {
        let asked = rig.api.asked();
        asked
            .iter()
            .filter(|asked| asked.path == "/apis/monitoring.coreos.com/v1")
            .count()
    };
    let knows = |rig: &Rig| rig.context.cache.knows(plan::objects::ObjectKind::PodMonitor);
    pass(&rig).await.unwrap();
    assert_eq!((knows(&rig), looks(&rig)), (false, 1));
    installed.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!((knows(&rig), looks(&rig)), (true, 2));
    installed.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(!knows(&rig));
}

#[tokio::test(start_paused = true)]
async fn kinds_that_cannot_be_looked_for_keep_nobody_waiting() {
    let api = FakeApi::scripted(|asked| match asked.path.as_str() {
        "/apis/monitoring.coreos.com/v1" => refuse(503, "ServiceUnavailable"),
        "/apis/core.pingcap.com/v1alpha1" => ScriptedReply::Never,
        _ => ScriptedReply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    assert!(!rig.context.cache.knows(plan::objects::ObjectKind::PodMonitor));
    pass(&rig).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lost_its_place_begins_again() {
    let lists = Arc::<AtomicUsize>::default();
    let counted = lists.clone();
    let api = FakeApi::scripted(move |asked| {
        if asked.path != "/apis/kubebrain.io/v1alpha1/kubebrainclusters" {
            return ScriptedReply::Pass;
        }
        if asked.query.contains("watch=true") {
            // The history before this version is no longer available.
            let gone =
                json!({"kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410});
            return ScriptedReply::With(200, json!({"type": "ERROR", "object": gone}));
        }
        counted.fetch_add(1, Ordering::SeqCst);
        ScriptedReply::Pass
    });
    let rig = Rig::new(bare(api)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(lists.load(Ordering::SeqCst) >= 3, "{:?}", rig.api.asked());
}

#[tokio::test(start_paused = true)]
async fn passes_begin_when_every_store_is_filled() {
    let slow = Arc::<tokio::sync::Notify>::default();
    let waited = slow.clone();
    let api = FakeApi::scripted(move |asked| match asked.path.as_str() {
        "/api/v1/secrets" if !asked.query.contains("watch=true") => ScriptedReply::After(waited.clone()),
        _ => ScriptedReply::Pass,
    });
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    let scope = crate::testing::scope(&bare(api.clone()), crate::leadership::Leadership::Alone);
    running.spawn(run(scope, stop.clone()));
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(api.writes().len(), 0);
    slow.notify_one();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(api.get("/apis/apps/v1/namespaces/brains/statefulsets/dev").is_some());
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_definition_is_waited_for() {
    let asked_so_far = Arc::<AtomicUsize>::default();
    let counted = asked_so_far.clone();
    let api = FakeApi::scripted(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0..=2 => refuse(404, "NotFound"),
        _ => ScriptedReply::Pass,
    });
    let client = crate::testing::fenced_client(
        &api,
        crate::leadership::Leadership::Alone,
        &crate::metrics::Metrics::new(),
        &crate::expectations::Expectations::default(),
    );
    let stop = CancellationToken::new();
    assert_eq!(wait_for_definition(&Api::all(client), &stop).await.unwrap(), Some(()));
    assert_eq!(asked_so_far.load(Ordering::SeqCst), 4);
}

/// Puts objects of a megabyte with the operator's label, as any client may create them.
fn strangers(api: &FakeApi, kind: &str, plural: &str, count: usize) {
    for number in 0..count {
        let labels = json!({"app.kubernetes.io/managed-by": "kubebrain-operator", "kubebrain.io/cluster": "dev"});
        let name = format!("stranger-{number}");
        let object = json!({
            "kind": kind, "apiVersion": "v1", "metadata": {"name": name, "namespace": "brains", "labels": labels},
            "data": {"x": "x".repeat(1000)},
        });
        api.put(&format!("{NAMESPACE}/{plural}/{name}"), object);
    }
}

#[tokio::test(start_paused = true)]
async fn objects_of_strangers_are_neither_kept_nor_read() {
    let api = settled(FakeApi::new());
    strangers(&api, "ConfigMap", "configmaps", 40);
    strangers(&api, "Secret", "secrets", 40);
    let rig = Rig::new(api).await;
    strangers(&rig.api, "ServiceAccount", "serviceaccounts", 3);
    rig.sync().await;
    let view = rig.context.cache.view("brains", "dev");
    let kept: Vec<String> = view.objects.iter().map(|(_, object)| object.name_any()).collect();
    assert!(kept.iter().all(|name| name.starts_with("dev")), "{kept:?}");
    assert!(
        kept.contains(&"dev-ca-bundle".to_owned()) && kept.contains(&"dev-ca".to_owned()),
        "{kept:?}"
    );
    let asked = rig.api.asked();
    let lists = |plural: &str| {
        let path = format!("/api/v1/{plural}");
        asked.iter().filter(|asked| asked.path == path).collect::<Vec<_>>()
    };
    for plural in ["configmaps", "secrets", "serviceaccounts"] {
        assert!(lists(plural).iter().all(|asked| asked.bare), "{plural} are sent whole");
    }
    let pages = lists("configmaps")
        .iter()
        .filter(|asked| asked.query.contains("limit=8"))
        .count();
    assert!(pages >= 5, "{pages} pages");
    let read = asked.iter().any(|asked| asked.path.contains("stranger"));
    assert!(!read, "a stranger was read");
    // Nor do they start a pass.
    let mut named = Box::pin(rig.queue.clone().stream());
    while let Some(Some(_)) = named.next().now_or_never() {}
    strangers(&rig.api, "ConfigMap", "configmaps", 3);
    rig.api.remove(&format!("{NAMESPACE}/configmaps/stranger-1"));
    rig.sync().await;
    assert!(named.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn pods_and_claims_of_strangers_are_not_kept() {
    let api = settled(FakeApi::new());
    let labels = json!({"kubebrain.io/cluster": "dev"});
    let set = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": "u", "controller": true}]);
    for (name, owners) in [
        ("dev-0", json!([])),
        ("dev-x", set.clone()),
        ("dev-00", set.clone()),
        ("dev-1", set),
    ] {
        let metadata = json!({"name": name, "namespace": "brains", "labels": labels, "ownerReferences": owners});
        api.put(&format!("{NAMESPACE}/pods/{name}"), json!({"metadata": metadata}));
    }
    for name in ["data-dev-1", "data-dev-x", "other"] {
        let metadata = json!({"name": name, "namespace": "brains", "labels": labels});
        api.put(
            &format!("{NAMESPACE}/persistentvolumeclaims/{name}"),
            json!({"metadata": metadata}),
        );
    }
    let rig = Rig::new(api).await;
    let view = rig.context.cache.view("brains", "dev");
    let pods: Vec<String> = view.pods.iter().map(|pod| pod.name_any()).collect();
    assert_eq!(pods, ["dev-1"]);
    let claims = view.claims.iter().map(|claim| claim.name_any());
    assert!(
        claims
            .into_iter()
            .all(|name| ["data-dev-0", "data-dev-1"].contains(&name.as_str()))
    );
}

/// Returns true if a StatefulSet of this name exists.
fn has_set(rig: &Rig, name: &str) -> bool {
    let path = format!("/apis/apps/v1/namespaces/brains/statefulsets/{name}");
    rig.api.get(&path).is_some()
}

#[tokio::test(start_paused = true)]
async fn cluster_that_is_too_large_says_so_and_others_go_on() {
    let api = FakeApi::new();
    let mut large = serde_json::to_value(cluster(json!({}))).unwrap();
    large["spec"]["podTemplate"] = json!({"metadata": {"annotations": {"a": "x".repeat(1_350_000)}}});
    large["metadata"]["name"] = json!("large");
    api.put(&format!("{CLUSTERS}/large"), large);
    let rig = Rig::new(bare(api)).await;
    let large = rig.context.cache.cluster("brains", "large").unwrap();
    assert!(large.spec.pod_template.is_none());
    let ended = reconcile(&rig.context, &large, 0).await.unwrap().unwrap();
    assert_eq!(ended.outcome, ReconcileOutcome::Stalled);
    let status = rig.api.get(&format!("{CLUSTERS}/large")).unwrap()["status"].clone();
    let stalled = condition(&status, "Stalled");
    assert_eq!(stalled["reason"], "SpecTooLarge", "{stalled}");
    assert!(
        stalled["message"]
            .as_str()
            .unwrap()
            .contains("spec.podTemplate takes more than 256 KiB")
    );
    authority(&rig).await;
    pass(&rig).await.unwrap();
    assert!(has_set(&rig, "dev"));
    assert!(!has_set(&rig, "large"));
}

#[tokio::test(start_paused = true)]
async fn object_without_its_label_is_asked_for_by_its_name() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    for name in [
        "secrets/dev-ca",
        "secrets/dev-server-tls",
        "configmaps/dev-ca-bundle",
        "services/dev-client",
    ] {
        let path = format!("{NAMESPACE}/{name}");
        let before = rig.api.get(&path).unwrap();
        let mut bare = before.clone();
        bare["metadata"]["labels"] = json!({});
        rig.api.put(&path, bare);
        rig.sync().await;
        pass(&rig).await.unwrap();
        let stalled = stored_status(&rig)["conditions"].to_string().contains("\"Stalled\"");
        assert!(!stalled, "{}", stored_status(&rig)["conditions"]);
        let after = rig.api.get(&path).unwrap();
        assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"], "{name}");
        assert_eq!(after["data"], before["data"], "{name}");
        rig.sync().await;
        pass(&rig).await.unwrap();
        rig.sync().await;
        rig.api.forget_requests();
        pass(&rig).await.unwrap();
        assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());
    }
}

/// The pod mounts it by its name, whatever its labels.
#[tokio::test(start_paused = true)]
async fn claim_without_its_label_is_asked_for_by_its_name() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    let set = rig.api.get("/apis/apps/v1/namespaces/brains/statefulsets/dev").unwrap();
    let mut pod = json!({"metadata": own_pod()});
    pod["metadata"]["ownerReferences"][0]["uid"] = set["metadata"]["uid"].clone();
    rig.api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    let path = format!("{NAMESPACE}/persistentvolumeclaims/data-dev-0");
    let mut claim = json!({"metadata": {"name": "data-dev-0", "namespace": "brains"}});
    claim["metadata"]["labels"] = json!({});
    claim["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
    claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    rig.api.put(&path, claim);
    rig.sync().await;
    pass(&rig).await.unwrap();
    let conditions = stored_status(&rig)["conditions"].to_string();
    assert!(conditions.contains("VolumeTerminating"), "{conditions}");
}

#[tokio::test(start_paused = true)]
async fn pods_and_claims_from_before_their_cluster_are_seen_when_it_appears() {
    let api = FakeApi::new();
    let rig = Rig::new(api.clone()).await;
    let labels = json!({"kubebrain.io/cluster": "dev"});
    for number in 0..20 {
        let metadata = json!({"name": format!("data-dev-{number}"), "namespace": "brains", "labels": labels});
        let claim = json!({"metadata": metadata, "status": {"phase": "Bound"}});
        api.put(&format!("{NAMESPACE}/persistentvolumeclaims/data-dev-{number}"), claim);
    }
    api.put(&format!("{NAMESPACE}/pods/dev-0"), json!({"metadata": own_pod()}));
    rig.sync().await;
    let seen = |rig: &Rig| {
        let view = rig.context.cache.view("brains", "dev");
        (view.pods.len(), view.claims.len())
    };
    assert_eq!(seen(&rig), (0, 0));
    bare(api.clone());
    rig.sync().await;
    assert_eq!(seen(&rig), (1, 20));
    // Another cluster of the same name appears: changes between the two are seen, too.
    let path = format!("{CLUSTERS}/dev");
    api.remove(&path);
    rig.sync().await;
    let claim = format!("{NAMESPACE}/persistentvolumeclaims/data-dev-0");
    let mut changed = api.get(&claim).unwrap();
    changed["metadata"]["annotations"] = json!({"note": "x"});
    api.put(&claim, changed);
    rig.sync().await;
    assert_eq!(seen(&rig), (1, 19));
    let mut next = serde_json::to_value(cluster(json!({}))).unwrap();
    next["metadata"]["uid"] = json!("another");
    api.put(&path, next);
    rig.sync().await;
    assert_eq!(seen(&rig), (1, 20));
    rig.api.forget_requests();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lists: Vec<RecordedRequest> = rig
        .api
        .asked()
        .into_iter()
        .filter(|asked| !asked.query.contains("watch=true"))
        .collect();
    assert!(lists.iter().all(|asked| !asked.path.contains("pods")), "{lists:?}");
}

/// Returns the number of claims seen of a cluster that appears when claims of these names with its label already exist.
async fn claims_seen(names: impl Iterator<Item = String>) -> usize {
    let api = FakeApi::new();
    let rig = Rig::new(api.clone()).await;
    for name in names {
        let metadata = json!({"name": name, "namespace": "brains", "labels": {"kubebrain.io/cluster": "dev"}});
        let claim = json!({"metadata": metadata, "status": {"phase": "Bound"}});
        api.put(&format!("{NAMESPACE}/persistentvolumeclaims/{name}"), claim);
    }
    rig.sync().await;
    bare(api.clone());
    rig.sync().await;
    rig.context.cache.view("brains", "dev").claims.len()
}

#[tokio::test(start_paused = true)]
async fn claim_from_before_its_cluster_is_seen_behind_any_number_of_others_with_its_label() {
    let decoys = (0..300).map(|number| format!("a-decoy-{number:03}"));
    assert_eq!(claims_seen(decoys.chain(["data-dev-0".to_owned()])).await, 1);
}

#[tokio::test(start_paused = true)]
async fn claims_of_more_members_than_a_cluster_may_have_are_not_kept() {
    let claims = (0..200).map(|number| format!("data-dev-{number}"));
    assert_eq!(claims_seen(claims).await, 64);
}

#[tokio::test(start_paused = true)]
async fn cluster_that_was_too_large_beside_others_is_judged_again_when_they_go() {
    let api = FakeApi::new();
    let large = |name: &str| {
        let mut large = serde_json::to_value(cluster(json!({}))).unwrap();
        large["spec"]["podTemplate"] = json!({"metadata": {"annotations": {"a": "x".repeat(240 << 10)}}});
        large["metadata"]["name"] = json!(name);
        large["metadata"]["uid"] = json!(name);
        api.put(&format!("{CLUSTERS}/{name}"), large);
    };
    (0..120).for_each(|number| large(&format!("c{number:03}")));
    let rig = Rig::new(api.clone()).await;
    let cut = |rig: &Rig| {
        let clusters = rig.context.cache.clusters.state();
        let cut = clusters.iter().filter(|cluster| cluster.spec.pod_template.is_none());
        cut.count()
    };
    let before = cut(&rig);
    assert!(before > 2, "{before}");
    api.remove(&format!("{CLUSTERS}/c000"));
    rig.sync().await;
    assert_eq!(cut(&rig), before - 1);
    let mut small = api.get(&format!("{CLUSTERS}/c001")).unwrap();
    small["spec"]["podTemplate"] = Value::Null;
    api.put(&format!("{CLUSTERS}/c001"), small);
    rig.sync().await;
    // The smaller one has none now.
    assert_eq!(cut(&rig), before - 1);
}

#[tokio::test(start_paused = true)]
async fn pod_monitor_that_cannot_be_read_fails_no_pass() {
    let api = FakeApi::scripted(|asked| {
        if asked.path == "/apis/monitoring.coreos.com/v1" {
            let resource = json!({"name": "podmonitors", "singularName": "podmonitor", "namespaced": true, "kind": "PodMonitor", "verbs": ["list"]});
            return ScriptedReply::With(
                200,
                json!({"kind": "APIResourceList", "groupVersion": "monitoring.coreos.com/v1", "resources": [resource]}),
            );
        }
        if asked.path.ends_with("/podmonitors/dev") {
            return refuse(403, "Forbidden");
        }
        ScriptedReply::Pass
    });
    let monitored = json!({"monitoring": {"podMonitor": {"enabled": true}}});
    api.put(
        &format!("{CLUSTERS}/dev"),
        serde_json::to_value(cluster(monitored)).unwrap(),
    );
    let rig = Rig::new(api).await;
    assert!(rig.context.cache.knows(plan::objects::ObjectKind::PodMonitor));
    authority(&rig).await;
    pass(&rig).await.unwrap();
    assert!(has_set(&rig, "dev"));
    let writes = rig.api.writes();
    assert!(
        !writes.iter().any(|write| write.path.contains("podmonitors")),
        "{writes:?}"
    );
}
