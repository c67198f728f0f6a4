use std::collections::BTreeSet;

use super::lease::Lease;
use super::pod::Pod;
use super::pods::{PodGenerator, PodVersion, RUNNING};
use super::*;

const SLOTS: u64 = 2_000;

fn running(slot: u64) -> PodVersion {
    PodVersion {
        slot,
        life: 0,
        step: RUNNING,
    }
}

#[test]
fn running_pods_have_4_to_70_kb_and_15_kb_on_average() {
    let pods = PodGenerator::new(SLOTS);
    let sizes: Vec<_> = (0..SLOTS).map(|slot| pods.value(running(slot)).len()).collect();
    let mean = sizes.iter().sum::<usize>() / sizes.len();
    assert!((14_000..=16_000).contains(&mean), "{mean} bytes on average");
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!((4_000..=5_500).contains(least), "the smallest has {least} bytes");
    assert!((64_000..=70_000).contains(most), "the largest has {most} bytes");
}

#[test]
fn pods_decode_to_what_was_encoded() {
    let pods = PodGenerator::new(SLOTS);
    for step in 0..10 {
        for slot in 0..40 {
            let version = PodVersion { slot, life: 1, step };
            let value = pods.value(version);
            let (kind, pod) = read::<Pod>(&value).unwrap();
            assert_eq!(kind, "Pod");
            assert_eq!(pod, pods.replica_set(version).pod(version));
            assert_eq!(pod.metadata.managed_fields.len(), if step > 1 { 2 } else { 1 });
            for entry in &pod.metadata.managed_fields {
                let fields = entry.fields_v1.as_ref().unwrap().raw.as_ref().unwrap();
                serde_json::from_slice::<serde_json::Value>(fields).unwrap();
            }
            let key = format!("/registry/pods/{}/{}", pod.metadata.namespace, pod.metadata.name);
            assert_eq!(pods.key(version), key);
        }
    }
}

#[test]
fn values_without_magic_are_refused() {
    let value = PodGenerator::new(SLOTS).value(running(0));
    assert!(read::<Pod>(&value.slice(1..)).is_err());
}

/// `fixtures/*.bin` is what `runtime.Unknown` and `v1.Pod` of Kubernetes 1.34 make of the same objects (`fixtures/README.md`).
#[test]
fn objects_have_the_bytes_that_kubernetes_writes() {
    let pod = PodGenerator::new(SLOTS).value(PodVersion {
        slot: 7,
        life: 0,
        step: RUNNING + 1,
    });
    compare("pod", &pod, include_bytes!("fixtures/pod.bin"));
    compare("lease", &node_lease::value(7, 3), include_bytes!("fixtures/lease.bin"));
}

fn compare(name: &str, value: &[u8], fixture: &[u8]) {
    if value != fixture {
        let path = std::env::temp_dir().join(format!("{name}.value"));
        std::fs::write(&path, value).unwrap();
        panic!("fixtures/{name}.bin differs from the value in {}", path.display());
    }
}

#[test]
fn pods_of_one_deployment_share_their_spec_and_have_names_of_their_own() {
    let pods = PodGenerator::new(SLOTS);
    let sets = SLOTS / 50;
    let sets = sets.next_multiple_of(16);
    let of = |slot| read::<Pod>(&pods.value(running(slot))).unwrap().1;
    let (one, other) = (of(3), of(3 + sets));
    assert_eq!(one.metadata.generate_name, other.metadata.generate_name);
    assert_eq!(one.spec.containers[0].env, other.spec.containers[0].env);
    assert_ne!(one.metadata.name, other.metadata.name);
    assert_ne!(one.metadata.uid, other.metadata.uid);
    assert_ne!(one.status.pod_ip, other.status.pod_ip);
    assert_ne!(
        one.status.container_statuses[0].container_id,
        other.status.container_statuses[0].container_id
    );
    assert_ne!(of(4).metadata.generate_name, one.metadata.generate_name);
}

#[test]
fn keys_are_unique_over_pods_and_their_successors() {
    let pods = PodGenerator::new(SLOTS);
    let keys = (0..SLOTS).flat_map(|slot| (0..3).map(move |life| PodVersion { slot, life, step: 0 }));
    let keys: BTreeSet<_> = keys.map(|version| pods.key(version)).collect();
    assert_eq!(keys.len() as u64, 3 * SLOTS);
    let step = |step| PodVersion { step, ..running(5) };
    assert_eq!(pods.key(step(0)), pods.key(step(9)));
}

#[test]
fn each_update_changes_the_status_and_the_kubelet_s_entry_alone() {
    let pods = PodGenerator::new(SLOTS);
    let of = |step| {
        let version = PodVersion { slot: 1, life: 0, step };
        read::<Pod>(&pods.value(version)).unwrap().1
    };
    assert_eq!(
        (of(0).status.phase.as_str(), of(RUNNING).status.phase.as_str()),
        ("Pending", "Running")
    );
    assert_eq!(
        (of(0).spec.node_name.as_str(), of(1).spec.node_name.is_empty()),
        ("", false)
    );
    for step in RUNNING..RUNNING + 12 {
        let (before, after) = (of(step), of(step + 1));
        assert_eq!(before.spec, after.spec);
        assert_ne!(before.status, after.status);
        assert_eq!(before.metadata.managed_fields[0], after.metadata.managed_fields[0]);
        assert_ne!(before.metadata.managed_fields[1], after.metadata.managed_fields[1]);
    }
    let restarts = |step| {
        of(step)
            .status
            .container_statuses
            .iter()
            .map(|status| status.restart_count)
            .sum::<i32>()
    };
    assert_eq!([3, 4, 5, 6, 7, 8].map(restarts), [0, 1, 1, 2, 2, 3]);
}

#[test]
fn leases_decode_and_have_300_to_500_bytes() {
    for (node, renewals) in [(0, 0), (1, 5), (99_999, 180)] {
        let value = node_lease::value(node, renewals);
        let (kind, lease) = read::<Lease>(&value).unwrap();
        assert_eq!((kind.as_str(), &lease), ("Lease", &node_lease::lease(node, renewals)));
        assert!((300..=500).contains(&value.len()), "{} bytes", value.len());
        assert_eq!(node_lease::node(&node_lease::key(node)), Some(node));
    }
    assert_eq!(node_lease::node(b"/registry/leases/kube-system/node-000001"), None);
}
