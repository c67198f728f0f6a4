//! Modes of TLS beside the default, on members with a volume of their own.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt as _;
use serde_json::json;

use super::brains::embedded;
use super::client;
use super::kit;
use super::load::Load;
use super::pki::Authority;
use super::pods::Watched;

#[test]
fn without_tls_clients_write_in_the_clear() {
    kit::run("modes-disabled", async |kit| {
        let mut spec = embedded();
        spec["tls"] = json!({"mode": "Disabled"});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        brains.until_condition("CertificatesReady", "True", &["Disabled"]).await;
        client::write_in_the_clear(&kit.api::<Pod>().get("a-0").await.unwrap()).await;
        let made = kit.list::<Secret>().await;
        let names: Vec<String> = made.iter().map(|secret| secret.name_any()).collect();
        assert_eq!(names, Vec::<String>::new(), "Secrets without TLS");
    });
}

#[test]
fn authority_of_somebody_else_signs_and_a_missing_one_is_named() {
    kit::run_troubled("modes-authority", async |kit| {
        let mut spec = embedded();
        spec["tls"] = json!({"caSecretRef": {"name": "own-ca"}});
        let brains = kit.brains("a", spec).await;
        let missing = brains
            .until_condition("CertificatesReady", "False", &["AuthorityMissing"])
            .await;
        assert!(missing.message.contains("own-ca"), "{}", missing.message);
        let authority = Authority::new("somebody else");
        kit.try_apply(&authority.signer("own-ca")).await.unwrap();
        brains.until_ready().await;
        let bundle = kit.api::<ConfigMap>().get("a-ca-bundle").await.unwrap();
        assert_eq!(bundle.data.unwrap()["ca.crt"].trim(), authority.certificate.trim());
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;
        load.acknowledge(10).await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    });
}
