//! Certificates: issued, renewed, never replaced by guess.

use super::*;

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

#[test]
fn an_authority_that_cannot_sign_is_never_replaced_by_guess() {
    let mut world = World::settled(json!({}));
    world.object(Kind::Secret, "dev-ca").data["data"]["ca.key"] = json!("eA==");
    world.edit(json!({"restartedAt": "1", "tls": {"serverAltNames": ["a.example"]}}));
    let plan = world.plan();
    assert!(
        plan.certificates.unusable.as_ref().unwrap().contains("Secret dev-ca"),
        "{:?}",
        plan.certificates.unusable
    );
    assert_eq!(world.steps(), Vec::<String>::new());
}

#[test]
fn a_deleted_authority_is_made_anew_and_signs_everything_again() {
    let remove = |world: &mut World| drop(world.seen.objects.remove(&Key::new(Kind::Secret, "dev-ca")));
    let mut expected = vec!["create the certificate authority dev-ca", "publish dev-ca-bundle"];
    expected.extend(LEAVES);
    changed(remove, &expected);
    let mut world = World::settled(json!({}));
    remove(&mut world);
    world.settle();
    assert_eq!(world.steps(), Vec::<String>::new());
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
    assert_eq!(
        world.steps(),
        ["renew the certificate authority dev-ca", "publish dev-ca-bundle"]
    );
    world.pass();
    assert_ne!(bundle(&mut world), old);
    // The new certificate of the authority reaches the Secrets; what it signed stays.
    let refreshed =
        ["server", "peer", "apiserver-client", "operator-client"].map(|leaf| format!("apply Secret dev-{leaf}-tls"));
    assert_eq!(world.steps(), refreshed);
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
