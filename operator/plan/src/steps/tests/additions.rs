//! Fields that other managers add to objects of a cluster.

use kube::core::DynamicObject;

use super::*;
use crate::objects::ObjectKey;

/// Changes the body of an object, as a user would.
fn edit(fake: &mut FakeCluster, kind: ObjectKind, name: &str, change: impl FnOnce(&mut Value)) {
    let object = fake.object(kind, name);
    let mut value = serde_json::to_value(&*object).unwrap();
    change(&mut value);
    let changed: DynamicObject = serde_json::from_value(value).unwrap();
    fake.seen.objects.insert(ObjectKey::new(kind, name), changed);
}

/// Checks that this change causes the step `expected`, and that the change is gone afterwards.
#[track_caller]
fn taken_back(kind: ObjectKind, name: &str, change: impl FnOnce(&mut Value), expected: &str) {
    let mut fake = FakeCluster::settled(json!({}));
    let before = written(&fake)[&format!("{kind:?} {name}")]["spec"].clone();
    edit(&mut fake, kind, name, change);
    assert_eq!(fake.pass(), [expected]);
    let after = written(&fake)[&format!("{kind:?} {name}")]["spec"].clone();
    let kept = crate::drift::difference(&before, &after);
    assert_eq!(kept, None, "{after}");
    assert_eq!(fake.steps(), Vec::<String>::new(), "{after}");
}

#[test]
fn fields_that_lead_clients_elsewhere_are_taken_back() {
    let service = |change: fn(&mut Value), fields: &str| {
        let expected = format!("remove {fields} from Service dev-client");
        taken_back(ObjectKind::Service, "dev-client", change, &expected);
    };
    service(
        |service| {
            service["spec"]["sessionAffinity"] = json!("ClientIP");
            service["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10800}});
        },
        "sessionAffinity, sessionAffinityConfig",
    );
    service(
        |service| service["spec"]["externalIPs"] = json!(["192.0.2.1"]),
        "externalIPs",
    );
    service(
        |service| service["spec"]["internalTrafficPolicy"] = json!("Local"),
        "internalTrafficPolicy",
    );
    service(
        |service| service["spec"]["publishNotReadyAddresses"] = json!(true),
        "publishNotReadyAddresses",
    );
    service(
        |service| service["spec"]["selector"]["app"] = json!("theirs"),
        "selector.app",
    );
}

#[test]
fn additions_to_the_pod_template_are_taken_back() {
    let set = |change: fn(&mut Value), fields: &str| {
        taken_back(
            ObjectKind::StatefulSet,
            "dev",
            change,
            &format!("remove {fields} from StatefulSet dev"),
        );
    };
    // As `kubectl rollout restart` does.
    set(
        |set| {
            let annotations = &mut set["spec"]["template"]["metadata"]["annotations"];
            annotations["kubectl.kubernetes.io/restartedAt"] = json!("2026-11-21T00:00:00Z");
        },
        "template.metadata.annotations[kubectl.kubernetes.io/restartedAt]",
    );
    set(|set| set["spec"]["ordinals"] = json!({"start": 5}), "ordinals");
    set(
        |set| set["spec"]["template"]["spec"]["hostNetwork"] = json!(true),
        "template.spec.hostNetwork",
    );
    set(
        |set| {
            let containers = set["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
            containers.push(json!({"name": "side", "image": "x"}));
            containers[0]["command"] = json!(["sh"]);
            containers[0]["env"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": "X", "value": "1"}));
        },
        "template.spec.containers[side], template.spec.containers[brain].command, template.spec.containers[brain].env[X]",
    );
}

#[test]
fn defaults_of_the_api_server_are_no_additions() {
    let mut fake = FakeCluster::settled(json!({}));
    edit(&mut fake, ObjectKind::Service, "dev-client", |service| {
        let spec = json!({
            "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "internalTrafficPolicy": "Cluster", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "externalTrafficPolicy": "Local",
        });
        for (field, value) in spec.as_object().unwrap() {
            service["spec"][field] = value.clone();
        }
    });
    edit(&mut fake, ObjectKind::StatefulSet, "dev", |set| {
        let spec = &mut set["spec"]["template"]["spec"];
        spec["dnsPolicy"] = json!("ClusterFirst");
        spec["restartPolicy"] = json!("Always");
        spec["schedulerName"] = json!("default-scheduler");
        spec["serviceAccount"] = json!("dev");
        let container = &mut spec["containers"][0];
        container["imagePullPolicy"] = json!("IfNotPresent");
        container["terminationMessagePath"] = json!("/dev/termination-log");
        container["resources"] = json!({});
        container["livenessProbe"]["successThreshold"] = json!(1);
    });
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn pause_keeps_additions() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"paused": true}));
    fake.pass();
    edit(&mut fake, ObjectKind::Service, "dev-client", |service| {
        service["spec"]["sessionAffinity"] = json!("ClientIP");
    });
    assert_eq!(fake.pass(), Vec::<String>::new());
}
