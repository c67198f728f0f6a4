//! Certificates: issued, renewed, and never replaced on a guess.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use super::*;
use crate::certificates::CaBundle;

#[test]
fn damaged_certificates_are_issued_anew() {
    let break_key = |fake: &mut FakeCluster, key: &str| {
        fake.object(ObjectKind::Secret, "dev-server-tls").data["data"][key] = json!("eA==");
    };
    changed(|w| break_key(w, "tls.crt"), &LEAVES[..1]);
    changed(|w| break_key(w, "tls.key"), &LEAVES[..1]);
    changed(
        |w| {
            drop(
                w.seen
                    .objects
                    .remove(&ObjectKey::new(ObjectKind::Secret, "dev-peer-tls")),
            )
        },
        &LEAVES[1..2],
    );
    // Certificate and key of different pairs.
    changed(
        |w| {
            let other = w.object(ObjectKind::Secret, "dev-peer-tls").data["data"]["tls.key"].clone();
            w.object(ObjectKind::Secret, "dev-server-tls").data["data"]["tls.key"] = other;
        },
        &LEAVES[..1],
    );
}

/// Reason that certificates cannot be issued, as `reason: message`.
fn problem(fake: &FakeCluster) -> String {
    let plan = fake.plan();
    assert!(
        plan.steps
            .iter()
            .all(|step| !matches!(step, PlanStep::WriteAuthority { .. } | PlanStep::Issue { .. }))
    );
    let problem = plan.certificates.problem.expect("a problem");
    format!("{}: {}", problem.reason, problem.message)
}

fn authority(fake: &mut FakeCluster) -> DynamicObject {
    fake.seen
        .objects
        .remove(&ObjectKey::new(ObjectKind::Secret, "dev-ca"))
        .unwrap()
}

#[test]
fn an_authority_that_cannot_sign_is_never_replaced_by_guess() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.object(ObjectKind::Secret, "dev-ca").data["data"]["ca.key"] = json!("eA==");
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z", "tls": {"serverAltNames": ["a.example"]}}));
    let problem = problem(&fake);
    assert!(problem.starts_with("AuthorityInvalid: Secret dev-ca"), "{problem}");
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/AuthorityInvalid");
    assert_eq!(fake.condition("CertificatesReady"), "False/AuthorityInvalid");
}

#[test]
fn a_lost_authority_is_not_made_anew_until_that_is_asked_for() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    let lost = authority(&mut fake);
    let text = problem(&fake);
    assert!(
        text.starts_with("AuthorityMissing: ") && text.contains("tls.caGeneration to 2"),
        "{text}"
    );
    for _ in 0..3 {
        assert_eq!(fake.pass(), Vec::<String>::new());
    }
    assert_eq!(fake.condition("Stalled"), "True/AuthorityMissing");
    assert_eq!(fake.condition("CertificatesReady"), "False/AuthorityMissing");
    // Restored from a backup, with its owner or without.
    for owners in [lost.metadata.owner_references.clone(), None] {
        let mut restored = lost.clone();
        restored.metadata.owner_references = owners;
        restored.metadata.uid = Some("restored".to_owned());
        fake.seen
            .objects
            .insert(ObjectKey::new(ObjectKind::Secret, "dev-ca"), restored);
        fake.settle();
        assert_eq!(fake.condition("CertificatesReady"), "True/Issued");
        assert_eq!(fake.condition("Stalled"), "absent");
    }
}

#[test]
fn a_lost_authority_is_replaced_beside_what_was_trusted_when_that_is_asked_for() {
    let mut fake = FakeCluster::settled(json!({"tls": {"caAdvance": "Auto"}}));
    let published = |fake: &mut FakeCluster| {
        let text = fake.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
        CaBundle::parse(text.as_str().unwrap()).unwrap()
    };
    let before = published(&mut fake);
    fake.wait(60);
    drop(authority(&mut fake));
    fake.pass();
    fake.edit(json!({"tls": {"caGeneration": 2}}));
    assert_eq!(
        fake.steps(),
        ["create a new key for the lost certificate authority dev-ca"]
    );
    fake.pass();
    fake.pass();
    let mut both = before.clone();
    both.extend(&published(&mut fake));
    assert_eq!(
        published(&mut fake),
        both,
        "the former certificate is no longer trusted"
    );
    assert_ne!(published(&mut fake), before);
    for _ in 0..6 {
        fake.wait(601);
        fake.kubelet();
        fake.settle();
    }
    let ca = fake.cluster.status.clone().unwrap().ca.unwrap();
    assert_eq!((ca.generation, ca.phase.as_str()), (2, "Stable"));
    let now = published(&mut fake);
    assert_eq!(both.filter(|found| found.common_name == "dev-ca-v2"), now);
}

#[test]
fn leftovers_of_former_phases_are_removed() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    drop(authority(&mut fake));
    fake.pass();
    fake.edit(json!({"tls": {"caGeneration": 2}}));
    let consent = |fake: &mut FakeCluster, to: &str| {
        fake.settle();
        let annotations = fake.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(crate::names::CA_ADVANCE.to_owned(), to.to_owned());
        fake.settle();
    };
    let phase = |fake: &FakeCluster| fake.cluster.status.clone().unwrap().ca.unwrap().phase;
    consent(&mut fake, "Issuing@2");
    assert_eq!(phase(&fake), "Issuing");
    let data = &mut fake.object(ObjectKind::Secret, "dev-ca").data["data"];
    data["next.crt"] = data["ca.crt"].clone();
    data["next.key"] = data["ca.key"].clone();
    let old = data["old.crt"].clone();
    fake.settle();
    assert_eq!(fake.condition("CertificatesReady"), "True/RotatingCertificates");
    assert_eq!(fake.object(ObjectKind::Secret, "dev-ca").data["data"]["next.crt"], "");
    consent(&mut fake, "Retiring@2");
    assert_eq!(phase(&fake), "Stable");
    fake.object(ObjectKind::Secret, "dev-ca").data["data"]["old.crt"] = old;
    fake.settle();
    assert_eq!(fake.object(ObjectKind::Secret, "dev-ca").data["data"]["old.crt"], "");
    let trusted = fake.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    let trusted = CaBundle::parse(trusted.as_str().unwrap()).unwrap();
    assert_eq!(trusted, trusted.filter(|found| found.common_name == "dev-ca-v2"));
}

#[test]
fn a_lost_pair_of_keys_in_mid_replacement_is_not_made_anew_by_itself() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"tls": {"caGeneration": 2}}));
    fake.settle();
    assert_eq!(
        fake.cluster.status.as_ref().unwrap().ca.as_ref().unwrap().phase,
        "Publishing"
    );
    fake.wait(60);
    drop(authority(&mut fake));
    assert!(problem(&fake).contains("tls.caGeneration to 3"));
}

#[test]
fn a_planted_authority_is_not_trusted() {
    let mut donor = FakeCluster::settled(json!({}));
    let planted = authority(&mut donor);
    let key = ObjectKey::new(ObjectKind::Secret, "dev-ca");
    // It exists before the first pass, with this cluster as its owner. Nothing relies on it, so it is recreated.
    let mut fake = FakeCluster::new(json!({}));
    fake.seen.objects.insert(key.clone(), planted.clone());
    assert_eq!(fake.steps()[0], "discard the certificate authority dev-ca");
    fake.settle();
    let text = |fake: &mut FakeCluster| fake.object(ObjectKind::Secret, "dev-ca").data["data"]["ca.crt"].clone();
    assert_ne!(text(&mut fake), planted.data["data"]["ca.crt"]);
    // It replaces a recorded one.
    let mut fake = FakeCluster::settled(json!({}));
    fake.seen.objects.insert(key.clone(), planted.clone());
    assert!(problem(&fake).contains("not the one that this cluster recorded"));
    assert_eq!(fake.steps(), Vec::<String>::new());
    // There is no record, but there are certificates that clients may rely on.
    let mut fake = FakeCluster::settled(json!({}));
    fake.cluster.status.as_mut().unwrap().ca = None;
    assert!(problem(&fake).starts_with("AuthorityInvalid"));
    // It has another owner, or none.
    let mut fake = FakeCluster::new(json!({}));
    let mut foreign = planted;
    foreign.metadata.owner_references = None;
    fake.seen.objects.insert(key.clone(), foreign);
    assert_eq!(fake.plan().foreign, [key]);
}

/// Another operator, which does not know yet that it no longer leads, has created it and is about to record it.
#[test]
fn a_new_authority_that_is_not_recorded_yet_is_kept_for_a_minute() {
    let created = authority(&mut FakeCluster::settled(json!({})));
    let mut fake = FakeCluster::new(json!({}));
    let at = |fake: &FakeCluster, seconds: i64| {
        let mut secret = created.clone();
        let since = Timestamp::from_second(fake.seen.now.as_second() - seconds).unwrap();
        secret.metadata.creation_timestamp = Some(Time(since));
        secret
    };
    let key = ObjectKey::new(ObjectKind::Secret, "dev-ca");
    // Also if the clock of the API server is fast.
    for seconds in [-59, 0, 59] {
        let secret = at(&fake, seconds);
        fake.seen.objects.insert(key.clone(), secret);
        let steps = fake.steps();
        assert!(!steps.iter().any(|step| step.contains("authority")), "{steps:?}");
        assert!(fake.plan().certificates.problem.is_none());
    }
    for seconds in [-60, 60] {
        let secret = at(&fake, seconds);
        fake.seen.objects.insert(key.clone(), secret);
        assert_eq!(fake.steps()[0], "discard the certificate authority dev-ca");
    }
}

#[test]
fn an_authority_of_an_older_operator_is_taken_over_and_completed() {
    let mut fake = FakeCluster::settled(json!({}));
    let ca = fake.cluster.status.as_mut().unwrap().ca.as_mut().unwrap();
    (ca.fingerprint, ca.bundle) = (None, None);
    let data = fake.object(ObjectKind::Secret, "dev-ca").data["data"]
        .as_object_mut()
        .unwrap();
    data.retain(|key, _| key.starts_with("ca."));
    assert_eq!(fake.pass(), ["apply Secret dev-ca"]);
    fake.settle();
    let ca = fake.cluster.status.as_ref().unwrap().ca.clone().unwrap();
    assert!(ca.fingerprint.is_some() && ca.bundle.is_some() && ca.generation == 1);
}

#[test]
fn a_lower_generation_of_the_authority_is_ignored() {
    let mut fake = FakeCluster::settled(json!({"tls": {"caGeneration": 3}}));
    fake.edit(json!({"tls": {"caGeneration": 1}}));
    assert_eq!(fake.steps(), Vec::<String>::new());
    let ca = fake.cluster.status.as_ref().unwrap().ca.clone().unwrap();
    assert_eq!(ca.generation, 3);
}

#[test]
fn certificates_are_renewed_in_time_and_survive_the_renewal_of_their_authority() {
    let mut fake = FakeCluster::settled(json!({"tls": {"validity": "8760h", "renewBefore": "24h"}}));
    let begin: Timestamp = crate::testing::BEGIN.parse().unwrap();
    let hour = SignedDuration::from_hours;
    fake.at(begin + hour(8760 - 24) - SignedDuration::from_secs(1));
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.at(begin + hour(8760 - 24));
    assert_eq!(fake.steps(), LEAVES);
    fake.settle();

    let bundle =
        |fake: &mut FakeCluster| fake.object(ObjectKind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    let renewal = begin + hour(24 * 365 * 8);
    fake.at(renewal - hour(30));
    fake.settle();
    let old = bundle(&mut fake);
    fake.at(renewal);
    assert_eq!(fake.pass(), ["renew the certificate authority dev-ca"]);
    // The new certificate of the authority reaches the bundle and the Secrets; certificates that it signed stay.
    let mut refreshed = vec!["apply ConfigMap dev-ca-bundle".to_owned()];
    refreshed.extend(
        ["server", "peer", "apiserver-client", "operator-client"].map(|leaf| format!("apply Secret dev-{leaf}-tls")),
    );
    assert_eq!(fake.pass(), refreshed);
    assert_ne!(bundle(&mut fake), old);
    fake.settle();
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn no_renewal_setting_makes_the_operator_issue_without_end() {
    let mut fake = FakeCluster::settled(json!({"tls": {"validity": "10m", "renewBefore": "9m59s"}}));
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.wait(59);
    assert_eq!(fake.steps(), Vec::<String>::new());
    fake.wait(1);
    assert_eq!(fake.steps(), LEAVES);
}

#[test]
fn pause_renews_secrets_and_takes_nothing_of_the_spec_into_them() {
    let mut fake = FakeCluster::settled(json!({"tls": {"validity": "1h"}}));
    let team = |fake: &mut FakeCluster| {
        let secret = fake.object(ObjectKind::Secret, "dev-server-tls");
        secret.labels().get("team").cloned()
    };
    fake.edit(json!({"paused": true, "inheritedMetadata": {"labels": {"team": "new"}}}));
    assert_eq!(fake.pass(), Vec::<String>::new());
    fake.wait(3600);
    assert_eq!(fake.pass(), LEAVES);
    assert_eq!(team(&mut fake), None);
    fake.edit(json!({"paused": false}));
    fake.settle();
    assert_eq!(team(&mut fake).as_deref(), Some("new"));
}
