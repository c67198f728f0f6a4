//! Certificates: renewed under load, an authority that is replaced in phases, Secrets of another owner, an authority that is lost.

use std::collections::BTreeSet;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::brains::{Brains, condition, is_ready, on_tikv};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::load::Load;
use super::pki::Authority;
use super::pods::Watched;
use super::processes;
use super::tikv::Tikv;

/// Writes on one connection, so that every writer makes a new one several times a second.
const WRITES_PER_CONNECTION: usize = 20;
/// Number of renewals of each leaf under load.
const RENEWALS_UNDER_LOAD: usize = 2;

/// The PEM of one key of a Secret.
async fn pem(kit: &Kit, secret: &str, key: &str) -> String {
    let secret = kit.api::<Secret>().get(secret).await.unwrap();
    String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap()
}

async fn bundle(kit: &Kit) -> String {
    let map = kit.api::<ConfigMap>().get("a-ca-bundle").await.unwrap();
    map.data.unwrap()["ca.crt"].clone()
}

fn count(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

/// Values that the members report of their certificates, if all of them answer.
async fn reported(brains: &Brains<'_>, pointer: &str) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for pod in brains.pods().await {
        let member = brains.member(&pod).await?;
        let value = member.pointer(pointer).and_then(Value::as_str);
        all.insert(value.ok_or(format!("{pointer} is not in {member}"))?.to_owned());
    }
    Ok(all)
}

#[test]
fn leaves_that_live_for_minutes_are_renewed_under_load() {
    kit::run("certs-renewed", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let mut spec = on_tikv(&tikv.pd, 2);
        spec["tls"] = json!({"validity": "2m", "renewBefore": "100s"});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 2, &watched, Some(WRITES_PER_CONNECTION)).await;
        for renewal in 1..=RENEWALS_UNDER_LOAD {
            let (leaf, served) = (
                pem(&kit, "a-server-tls", "tls.crt").await,
                reported(&brains, "/tls/server/fingerprint").await.unwrap(),
            );
            assert_eq!(served.len(), 1, "members serve different certificates: {served:?}");
            let renewed = |secret: &Secret| {
                let data = secret.data.as_ref().unwrap();
                data["tls.crt"].0 != leaf.as_bytes()
            };
            kit.until::<Secret>("a-server-tls", "renewed", STATE_TIMEOUT, renewed)
                .await;
            kit.eventually("served by all members", async || {
                let now = reported(&brains, "/tls/server/fingerprint").await?;
                let all = now.len() == 1 && now != served;
                all.then_some(()).ok_or(format!("{now:?} after {served:?}"))
            })
            .await;
            load.follow_certificates().await;
            load.acknowledge(3 * WRITES_PER_CONNECTION).await;
            kit.say(format_args!("renewal {renewal} is served by all members"));
        }
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert_eq!(outcome.epochs.len(), 1, "the leader changed: {:?}", outcome.epochs);
        assert_eq!(watched.history().changes, [], "pods were restarted");
        brains.until_condition("CertificatesReady", "True", &[]).await;
    });
}

#[test]
fn authority_is_replaced_in_phases_under_load() {
    kit::run("certs-authority", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, 2)).await;
        brains.until_ready().await;
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 2, &watched, Some(WRITES_PER_CONNECTION)).await;
        let old = bundle(&kit).await;
        brains.patch(json!({"tls": {"caGeneration": 2}})).await;
        let in_phase = |phase: &'static str| {
            move |cluster: &KubeBrainCluster| {
                let ca = cluster.status.as_ref().and_then(|status| status.ca.as_ref());
                ca.is_some_and(|ca| ca.phase == phase)
            }
        };
        brains.until("publishing", in_phase("Publishing")).await;
        let published = |map: &ConfigMap| count(&map.data.as_ref().unwrap()["ca.crt"]) == 2;
        kit.until::<ConfigMap>("a-ca-bundle", "old and new authority", STATE_TIMEOUT, published)
            .await;
        let both = bundle(&kit).await;
        assert!(both.contains(old.trim()), "the old one is still trusted");
        load.follow_certificates().await;
        let leaf = pem(&kit, "a-server-tls", "tls.crt").await;
        let client = pem(&kit, "a-apiserver-client-tls", "tls.crt").await;
        load.acknowledge(3 * WRITES_PER_CONNECTION).await;
        assert_eq!(
            pem(&kit, "a-server-tls", "tls.crt").await,
            leaf,
            "issued before it was allowed"
        );

        brains.annotate("kubebrain.io/ca-advance", "Issuing@2").await;
        brains.until("issuing", in_phase("Issuing")).await;
        processes::kill_operator(&kit).await;
        for (name, old) in [("a-server-tls", &leaf), ("a-apiserver-client-tls", &client)] {
            let issued = |secret: &Secret| secret.data.as_ref().unwrap()["tls.crt"].0 != old.as_bytes();
            kit.until::<Secret>(name, "issued anew", STATE_TIMEOUT, issued).await;
        }
        load.follow_certificates().await;
        load.acknowledge(3 * WRITES_PER_CONNECTION).await;

        brains.annotate("kubebrain.io/ca-advance", "Retiring@2").await;
        let retired = |cluster: &KubeBrainCluster| {
            let ca = cluster.status.as_ref().and_then(|status| status.ca.as_ref());
            ca.is_some_and(|ca| ca.generation == 2 && ca.phase == "Stable")
        };
        brains.until("stable with the new key", retired).await;
        let alone = |map: &ConfigMap| count(&map.data.as_ref().unwrap()["ca.crt"]) == 1;
        kit.until::<ConfigMap>("a-ca-bundle", "the new authority alone", STATE_TIMEOUT, alone)
            .await;
        let new = bundle(&kit).await;
        assert!(!new.contains(old.trim()));
        load.follow_certificates().await;
        load.acknowledge(3 * WRITES_PER_CONNECTION).await;
        kit.eventually("trusting the new authority alone", async || {
            let trusted = reported(&brains, "/tls/trustBundle").await?;
            (trusted.len() == 1).then_some(()).ok_or(format!("{trusted:?}"))
        })
        .await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
        assert_eq!(watched.history().changes, [], "pods were restarted");
    });
}

#[test]
fn lost_authority_is_named_and_heals_when_it_is_restored() {
    kit::run_troubled("certs-lost", async |kit| {
        let brains = kit.brains("a", super::brains::embedded()).await;
        brains.until_ready().await;
        let secrets = kit.api::<Secret>();
        let mut authority = secrets.get("a-ca").await.unwrap();
        let (trusted, leaf) = (bundle(&kit).await, pem(&kit, "a-server-tls", "tls.crt").await);
        secrets.delete("a-ca", &DeleteParams::default()).await.unwrap();
        let step = kit.harness().progress.step("a lost authority named");
        let lost = brains.until_condition("CertificatesReady", "False", &[]).await;
        step.done();
        assert!(lost.message.contains("a-ca"), "{}: {}", lost.reason, lost.message);
        assert!(secrets.get_opt("a-ca").await.unwrap().is_none(), "a new key was made");
        assert_eq!(bundle(&kit).await, trusted, "the bundle has changed");
        let metadata = &mut authority.metadata;
        (metadata.uid, metadata.resource_version, metadata.creation_timestamp) = (None, None, None);
        metadata.managed_fields = None;
        secrets.create(&PostParams::default(), &authority).await.unwrap();
        let step = kit.harness().progress.step("healed after it was restored");
        brains.until_condition("CertificatesReady", "True", &[]).await;
        brains.until_ready().await;
        step.done();
        assert_eq!(
            pem(&kit, "a-server-tls", "tls.crt").await,
            leaf,
            "the certificate was issued anew"
        );
        kit.say(format_args!("the lost authority was {}: {}", lost.reason, lost.message));
    });
}

#[test]
fn secrets_of_somebody_else_are_used_and_a_missing_one_is_named() {
    kit::run_troubled("certs-secret", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let authority = Authority::new("somebody else");
        let hosts = [
            "*.a-headless.certs-secret.svc",
            "*.a-headless.certs-secret.svc.cluster.local",
            "a-client.certs-secret.svc",
            "a-leader.certs-secret.svc",
            "localhost",
        ];
        for (name, common, serves) in [
            ("own-server", "a", &hosts[..]),
            ("own-operator", "kubebrain-operator", &[]),
        ] {
            kit.try_apply(&authority.secret(name, common, serves)).await.unwrap();
        }
        kit.try_apply(&authority.bundle("own-ca")).await.unwrap();
        let mut spec = on_tikv(&tikv.pd, 2);
        spec["tls"] = json!({"mode": "Secret", "secrets": {
            "caBundle": {"name": "own-ca"},
            "server": {"name": "own-server"},
            "peer": {"name": "own-peer"},
            "operatorClient": {"name": "own-operator"},
        }});
        let brains = kit.brains("a", spec).await;
        let missing = brains
            .until_condition("CertificatesReady", "False", &["SecretMissing"])
            .await;
        assert!(missing.message.contains("own-peer"), "{}", missing.message);
        let stranger = Authority::new("nobody trusts it");
        kit.try_apply(&stranger.secret("own-peer", "kubebrain-peer", &hosts))
            .await
            .unwrap();
        let wrong = brains
            .until_condition("CertificatesReady", "False", &["NotTrusted"])
            .await;
        assert!(wrong.message.contains("own-peer"), "{}", wrong.message);
        kit.try_apply(&authority.secret("own-peer", "kubebrain-peer", &hosts))
            .await
            .unwrap();
        brains.until_ready().await;
        let cluster = brains.until("Ready", is_ready).await;
        assert_eq!(condition(&cluster, "CertificatesReady").unwrap().status, "True");
        let served = reported(&brains, "/tls/server/fingerprint").await.unwrap();
        // renewed by its maker: the members take it up
        kit.try_apply(&authority.secret("own-server", "a", &hosts))
            .await
            .unwrap();
        kit.eventually("served by all members", async || {
            let now = reported(&brains, "/tls/server/fingerprint").await?;
            (now.len() == 1 && now != served)
                .then_some(())
                .ok_or(format!("{now:?} after {served:?}"))
        })
        .await;
        let made: Vec<String> = kit
            .list::<Secret>()
            .await
            .iter()
            .map(|secret| secret.name_any())
            .collect();
        assert!(
            made.iter().all(|name| !name.starts_with("a-")),
            "the operator made {made:?}"
        );
    });
}
