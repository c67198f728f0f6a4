//! The samples, applied unchanged. Beside them only what other programs would do: cert-manager, tidb-operator, TiKV.

use std::path::Path;

use e2e_cluster::{containerd, credentials, images};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};

use super::brains::Brains;
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::pki::Authority;
use super::tikv::MockTikv;
use crate::harness;

/// The namespace of all samples.
pub(super) const NAMESPACE: &str = "brains";

/// The mock of TiKV at the address that samples expect.
const TIKV: MockTikv<'static> = MockTikv {
    name: "pd",
    namespace: Some("tikv"),
    cluster_id: 7,
    tls: None,
};

/// Runs a test in the namespace of the samples, which it has for itself.
pub(super) fn run<F>(test: impl FnOnce(Kit) -> F + Send)
where
    F: Future<Output = ()>,
{
    let _alone = harness::sample_namespace();
    kit::run_troubled(NAMESPACE, async |kit| {
        let home = kit.harness().cluster.home().clone();
        containerd::tag(&home, images::APISERVER, images::SAMPLE_APISERVER).unwrap();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tikv"}});
        kit.try_apply(&namespace).await.unwrap();
        TIKV.start(&kit).await;
        test(kit).await;
    });
}

/// Applies a sample as a user does.
pub(super) fn apply(kit: &Kit, sample: &str) {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/yaml/samples");
    let path = manifests.join(format!("{sample}.yaml"));
    let applied = kit
        .kubectl()
        .run(["apply".as_ref(), "--filename".as_ref(), path.as_os_str()]);
    applied.unwrap();
}

/// Makes the Secret with the certificates of a sample's API server.
pub(super) async fn pki(kit: &Kit, name: &str) {
    let server = format!("{name}-apiserver.{NAMESPACE}.svc");
    let url = format!("https://{server}:443");
    let files = credentials::tenant(kit.harness().cluster.home(), name, &server, &url).unwrap();
    let read =
        |(key, path): (&str, std::path::PathBuf)| (key.to_owned(), std::fs::read_to_string(path).unwrap().into());
    let data: serde_json::Map<String, Value> = files.into_iter().map(read).collect();
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("{name}-pki")},
        "stringData": data,
    });
    kit.try_apply(&secret).await.unwrap();
}

fn objects(kit: &Kit, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(kit.client.clone(), &kit.namespace, &resource)
}

/// Writes the same as tidb-operator when PD of a `Cluster` serves.
async fn as_tidb_operator(kit: &Kit, name: &str) {
    let status = json!({"pd": format!("http://{}", TIKV.pd(kit)), "id": TIKV.cluster_id.to_string()});
    let status = Patch::Merge(json!({"status": status}));
    let clusters = objects(kit, "core.pingcap.com", "v1alpha1", "Cluster");
    clusters
        .patch_status(name, &PatchParams::default(), &status)
        .await
        .unwrap();
}

/// Does the same as cert-manager with its `Certificate`s: each gets its Secret, signed by the authority among them.
async fn as_cert_manager(kit: &Kit) {
    let certificates = objects(kit, "cert-manager.io", "v1", "Certificate");
    let all = certificates.list(&ListParams::default()).await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let authority = all.iter().find(|it| it.data["spec"]["isCA"] == true).unwrap();
    let signer = Authority::new(&text(&authority.data["spec"]["commonName"]));
    kit.try_apply(&signer.bundle(&text(&authority.data["spec"]["secretName"])))
        .await
        .unwrap();
    for certificate in all.iter().filter(|it| it.name_any() != authority.name_any()) {
        let spec = &certificate.data["spec"];
        let list = |field: &str| -> Vec<String> { spec[field].as_array().into_iter().flatten().map(text).collect() };
        let usage = |usage: &String| match usage.as_str() {
            "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
            "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
            other => panic!("usage {other}"),
        };
        let usages: Vec<_> = list("usages").iter().map(usage).collect();
        let names = [list("dnsNames"), list("ipAddresses")].concat();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let secret = signer.secret_for(&text(&spec["secretName"]), &text(&spec["commonName"]), &names, &usages);
        kit.try_apply(&secret).await.unwrap();
    }
}

/// Deletes a cluster and what its API server runs in, so that its pods take no time from others.
async fn delete(kit: &Kit, kinds: &str, name: &str) {
    let deleted = kit
        .kubectl()
        .run(["--namespace", NAMESPACE, "delete", kinds, name, "--wait=false"]);
    deleted.unwrap();
}

#[test]
fn each_sample_is_ready_as_it_stands() {
    run(async |kit| {
        for kind in ["Issuer", "Certificate"] {
            kit.define("cert-manager.io", "v1", kind).await;
        }
        for kind in ["Cluster", "PDGroup", "TiKVGroup"] {
            kit.define("core.pingcap.com", "v1alpha1", kind).await;
        }
        apply(&kit, "embedded");
        apply(&kit, "network-policy");
        apply(&kit, "tikv");
        Brains::new(&kit, "dev").until_ready().await;
        let took = Brains::new(&kit, "tenant-a").until_ready().await;
        kit.number("sample tikv, three members Ready", took, None);
        assert!(
            kit.api::<NetworkPolicy>()
                .get_opt("tenant-a-brains")
                .await
                .unwrap()
                .is_some()
        );
        for name in ["dev", "tenant-a"] {
            delete(&kit, "kubebraincluster", name).await;
        }
        apply(&kit, "tidb-operator");
        as_tidb_operator(&kit, "tikv-a").await;
        apply(&kit, "cert-manager");
        as_cert_manager(&kit).await;
        for name in ["beside-tikv", "secure"] {
            Brains::new(&kit, name).until_ready().await;
            delete(&kit, "kubebraincluster", name).await;
        }
        for name in ["tenant", "edge"] {
            pki(&kit, name).await;
        }
        apply(&kit, "tenant-control-plane");
        apply(&kit, "storage-sidecar-embedded");
        let available = |deployment: &Deployment| {
            let status = deployment.status.as_ref();
            status.is_some_and(|status| status.available_replicas == Some(1))
        };
        for name in ["tenant", "edge"] {
            kit.until::<Deployment>(&format!("{name}-apiserver"), "available", STATE_TIMEOUT, available)
                .await;
            Brains::new(&kit, name).until_ready().await;
        }
        // nothing of the operator makes the pods of a storage sidecar
        let sets = kit.list::<StatefulSet>().await;
        assert!(sets.iter().all(|set| set.name_any() != "edge"));
        for name in ["tenant", "edge"] {
            delete(&kit, "deployment", &format!("{name}-apiserver")).await;
        }
    });
}
