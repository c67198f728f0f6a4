//! Volumes made beforehand: `local` ones, because those honour fsGroup, so that a pod that is not root can write.

use std::fs;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::cluster_dir::ClusterDir;
use crate::kubelet::NODE_NAME;

/// The default StorageClass.
pub const STORAGE_CLASS: &str = "local";
/// Number of claims of each access mode that a cluster can serve in its life: a released volume is not used again.
pub const VOLUMES_PER_MODE: usize = 50;
/// A volume for one pod alone has no other mode beside.
const ACCESS_MODES: [&str; 2] = ["ReadWriteOncePod", "ReadWriteOnce"];
/// Stated size of each volume. It is not enforced.
const VOLUME_SIZE: &str = "100Gi";

/// Makes the directories, and gives the objects that go with them.
///
/// # Errors
///
/// A directory cannot be made.
pub fn create(home: &ClusterDir) -> anyhow::Result<Vec<Value>> {
    let mut objects = vec![json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    })];
    for number in 0..ACCESS_MODES.len() * VOLUMES_PER_MODE {
        let name = format!("local-{number:02}");
        let path = home.path(format!("volumes/{name}"));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": VOLUME_SIZE},
                "accessModes": [ACCESS_MODES[number % ACCESS_MODES.len()]],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": STORAGE_CLASS,
                "local": {"path": path},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]},
                ]}]}},
            },
        }));
    }
    Ok(objects)
}
