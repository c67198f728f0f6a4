//! Certificates: issued, renewed, never replaced by guess.

use kube::core::DynamicObject;

use super::*;
use crate::certificates::Bundle;

#[test]
fn damaged_certificates_are_issued_anew() {
    let break_key = |world: &mut World, key: &str| {
        world.object(Kind::Secret, "dev-server-tls").data["data"][key] = json!("eA==");
    };
    changed(|w| break_key(w, "tls.crt"), &LEAVES[..1]);
    changed(|w| break_key(w, "tls.key"), &LEAVES[..1]);
    changed(
        |w| drop(w.seen.objects.remove(&Key::new(Kind::Secret, "dev-peer-tls"))),
        &LEAVES[1..2],
    );
    // Certificate and key of different pairs.
    changed(
        |w| {
            let other = w.object(Kind::Secret, "dev-peer-tls").data["data"]["tls.key"].clone();
            w.object(Kind::Secret, "dev-server-tls").data["data"]["tls.key"] = other;
        },
        &LEAVES[..1],
    );
}

/// Why certificates cannot be issued, as `reason: message`.
fn problem(world: &World) -> String {
    let plan = world.plan();
    assert!(
        plan.steps
            .iter()
            .all(|step| !matches!(step, Step::WriteAuthority { .. } | Step::Issue { .. }))
    );
    let problem = plan.certificates.problem.expect("a problem");
    format!("{}: {}", problem.reason, problem.message)
}

fn authority(world: &mut World) -> DynamicObject {
    world.seen.objects.remove(&Key::new(Kind::Secret, "dev-ca")).unwrap()
}

#[test]
fn an_authority_that_cannot_sign_is_never_replaced_by_guess() {
    let mut world = World::settled(json!({}));
    world.object(Kind::Secret, "dev-ca").data["data"]["ca.key"] = json!("eA==");
    world.edit(json!({"restartedAt": "2026-11-21T00:00:01Z", "tls": {"serverAltNames": ["a.example"]}}));
    let problem = problem(&world);
    assert!(problem.starts_with("AuthorityInvalid: Secret dev-ca"), "{problem}");
    assert_eq!(world.steps(), Vec::<String>::new());
    world.pass();
    assert_eq!(world.condition("Stalled"), "True/AuthorityInvalid");
    assert_eq!(world.condition("CertificatesReady"), "False/AuthorityInvalid");
}

#[test]
fn a_lost_authority_is_not_made_anew_until_that_is_asked_for() {
    let mut world = World::settled(json!({}));
    world.wait(60);
    let lost = authority(&mut world);
    let text = problem(&world);
    assert!(
        text.starts_with("AuthorityMissing: ") && text.contains("tls.caGeneration to 2"),
        "{text}"
    );
    for _ in 0..3 {
        assert_eq!(world.pass(), Vec::<String>::new());
    }
    assert_eq!(world.condition("Stalled"), "True/AuthorityMissing");
    assert_eq!(world.condition("CertificatesReady"), "False/AuthorityMissing");
    // Restored from a backup, with its owner or without.
    for owners in [lost.metadata.owner_references.clone(), None] {
        let mut restored = lost.clone();
        restored.metadata.owner_references = owners;
        restored.metadata.uid = Some("restored".to_owned());
        world.seen.objects.insert(Key::new(Kind::Secret, "dev-ca"), restored);
        world.settle();
        assert_eq!(world.condition("CertificatesReady"), "True/Issued");
        assert_eq!(world.condition("Stalled"), "absent");
    }
}

#[test]
fn a_lost_authority_is_replaced_beside_what_was_trusted_when_that_is_asked_for() {
    let mut world = World::settled(json!({"tls": {"caAdvance": "Auto"}}));
    let published = |world: &mut World| {
        let text = world.object(Kind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
        Bundle::parse(text.as_str().unwrap()).unwrap()
    };
    let before = published(&mut world);
    world.wait(60);
    drop(authority(&mut world));
    world.pass();
    world.edit(json!({"tls": {"caGeneration": 2}}));
    assert_eq!(
        world.steps(),
        ["make a new key for the lost certificate authority dev-ca"]
    );
    world.pass();
    world.pass();
    let mut both = before.clone();
    both.extend(&published(&mut world));
    assert_eq!(published(&mut world), both, "the former certificate is trusted no more");
    assert_ne!(published(&mut world), before);
    for _ in 0..6 {
        world.wait(601);
        world.kubelet();
        world.settle();
    }
    let ca = world.cluster.status.clone().unwrap().ca.unwrap();
    assert_eq!((ca.generation, ca.phase.as_str()), (2, "Stable"));
    let now = published(&mut world);
    assert_eq!(both.filter(|found| found.common_name == "dev-ca-v2"), now);
}

#[test]
fn a_lost_pair_of_keys_in_mid_replacement_is_not_made_anew_by_itself() {
    let mut world = World::settled(json!({}));
    world.edit(json!({"tls": {"caGeneration": 2}}));
    world.settle();
    assert_eq!(
        world.cluster.status.as_ref().unwrap().ca.as_ref().unwrap().phase,
        "Publishing"
    );
    world.wait(60);
    drop(authority(&mut world));
    assert!(problem(&world).contains("tls.caGeneration to 3"));
}

#[test]
fn a_planted_authority_is_not_trusted() {
    let mut donor = World::settled(json!({}));
    let planted = authority(&mut donor);
    let key = Key::new(Kind::Secret, "dev-ca");
    // Before the first pass, with this cluster as its owner: nothing relies on it, so it is made anew.
    let mut world = World::new(json!({}));
    world.seen.objects.insert(key.clone(), planted.clone());
    assert_eq!(world.steps()[0], "discard the certificate authority dev-ca");
    world.settle();
    let text = |world: &mut World| world.object(Kind::Secret, "dev-ca").data["data"]["ca.crt"].clone();
    assert_ne!(text(&mut world), planted.data["data"]["ca.crt"]);
    // In the place of a recorded one.
    let mut world = World::settled(json!({}));
    world.seen.objects.insert(key.clone(), planted.clone());
    assert!(problem(&world).contains("not the one that this cluster recorded"));
    assert_eq!(world.steps(), Vec::<String>::new());
    // Without a record, but with certificates that somebody may rely on.
    let mut world = World::settled(json!({}));
    world.cluster.status.as_mut().unwrap().ca = None;
    assert!(problem(&world).starts_with("AuthorityInvalid"));
    // Of another owner, or of none.
    let mut world = World::new(json!({}));
    let mut foreign = planted;
    foreign.metadata.owner_references = None;
    world.seen.objects.insert(key.clone(), foreign);
    assert_eq!(world.plan().foreign, [key]);
}

#[test]
fn an_authority_of_an_older_operator_is_taken_over_and_completed() {
    let mut world = World::settled(json!({}));
    let ca = world.cluster.status.as_mut().unwrap().ca.as_mut().unwrap();
    (ca.fingerprint, ca.bundle) = (None, None);
    let data = world.object(Kind::Secret, "dev-ca").data["data"]
        .as_object_mut()
        .unwrap();
    data.retain(|key, _| key.starts_with("ca."));
    assert_eq!(world.pass(), ["apply Secret dev-ca"]);
    world.settle();
    let ca = world.cluster.status.as_ref().unwrap().ca.clone().unwrap();
    assert!(ca.fingerprint.is_some() && ca.bundle.is_some() && ca.generation == 1);
}

#[test]
fn a_lower_generation_of_the_authority_is_ignored() {
    let mut world = World::settled(json!({"tls": {"caGeneration": 3}}));
    world.edit(json!({"tls": {"caGeneration": 1}}));
    assert_eq!(world.steps(), Vec::<String>::new());
    let ca = world.cluster.status.as_ref().unwrap().ca.clone().unwrap();
    assert_eq!(ca.generation, 3);
}

#[test]
fn certificates_are_renewed_in_time_and_survive_the_renewal_of_their_authority() {
    let mut world = World::settled(json!({"tls": {"validity": "8760h", "renewBefore": "24h"}}));
    let begin: Timestamp = crate::world::BEGIN.parse().unwrap();
    let hour = SignedDuration::from_hours;
    world.at(begin + hour(8760 - 24) - SignedDuration::from_secs(1));
    assert_eq!(world.steps(), Vec::<String>::new());
    world.at(begin + hour(8760 - 24));
    assert_eq!(world.steps(), LEAVES);
    world.settle();

    let bundle = |world: &mut World| world.object(Kind::ConfigMap, "dev-ca-bundle").data["data"]["ca.crt"].clone();
    let renewal = begin + hour(24 * 365 * 8);
    world.at(renewal - hour(30));
    world.settle();
    let old = bundle(&mut world);
    world.at(renewal);
    assert_eq!(world.pass(), ["renew the certificate authority dev-ca"]);
    // The new certificate of the authority reaches the bundle and the Secrets; what it signed stays.
    let mut refreshed = vec!["apply ConfigMap dev-ca-bundle".to_owned()];
    refreshed.extend(
        ["server", "peer", "apiserver-client", "operator-client"].map(|leaf| format!("apply Secret dev-{leaf}-tls")),
    );
    assert_eq!(world.pass(), refreshed);
    assert_ne!(bundle(&mut world), old);
    world.settle();
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn no_renewal_setting_makes_the_operator_issue_without_end() {
    let mut world = World::settled(json!({"tls": {"validity": "10m", "renewBefore": "9m59s"}}));
    assert_eq!(world.steps(), Vec::<String>::new());
    world.wait(59);
    assert_eq!(world.steps(), Vec::<String>::new());
    world.wait(1);
    assert_eq!(world.steps(), LEAVES);
}
