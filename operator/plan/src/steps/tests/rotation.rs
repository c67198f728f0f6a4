//! Replacing the authority's key: a follower of the published bundle trusts every certificate in use, wherever a pass is killed.

use proptest::prelude::*;

use super::*;
use crate::applied::AppliedSteps;
use crate::certificates::tests::{client, server};
use crate::certificates::{CaBundle, InspectedCertificate};
use crate::member::LoadedCertificates;
use crate::names::CA_ADVANCE;
use crate::status::{self, StatusInput};
use crate::steps;
use crate::testing::in_use;

const HOST: &str = "dev-0.dev-headless.brains.svc";
/// The propagation time in the settings of the world, in seconds.
const PROPAGATION_SECONDS: i64 = 600;

/// Certificates that a member has loaded.
#[derive(Clone, Default, PartialEq)]
struct Loaded {
    bundle: String,
    server: String,
    peer: String,
}

/// Three members, a client that follows the published bundle, and an operator that may be killed between any two writes.
struct Lab {
    fake: FakeCluster,
    members: Vec<Loaded>,
    /// The bundle that the client trusts, and the time since which a newer one is published.
    follower: (String, Timestamp),
    writes: usize,
}

impl Lab {
    fn new(tls: Value) -> Self {
        let mut fake = FakeCluster::settled(json!({ "tls": tls }));
        let pod = fake.seen.pods[0].clone();
        fake.seen.pods = ["dev-0", "dev-1", "dev-2"]
            .map(|name| {
                let mut pod = pod.clone();
                pod.metadata.name = Some(name.to_owned());
                pod
            })
            .to_vec();
        let begin = fake.seen.now;
        let mut lab = Self {
            fake,
            members: Vec::new(),
            follower: (String::new(), begin),
            writes: 0,
        };
        lab.members = vec![lab.stored(); 3];
        lab.follower.0 = lab.bundle();
        lab.report();
        lab
    }

    fn text(&self, kind: ObjectKind, name: &str, key: &str) -> String {
        let object = &self.fake.seen.objects[&ObjectKey::new(kind, name)];
        if kind == ObjectKind::ConfigMap {
            return object.data["data"][key].as_str().unwrap().to_owned();
        }
        steps::stored_pair(object, key, "ca.crt").unwrap().certificate
    }

    fn bundle(&self) -> String {
        self.text(ObjectKind::ConfigMap, "dev-ca-bundle", "ca.crt")
    }

    fn stored(&self) -> Loaded {
        Loaded {
            bundle: self.bundle(),
            server: self.text(ObjectKind::Secret, "dev-server-tls", "tls.crt"),
            peer: self.text(ObjectKind::Secret, "dev-peer-tls", "tls.crt"),
        }
    }

    /// Runs one pass that is killed after `writes` writes. Its status is published only if it makes no more writes than that.
    fn pass(&mut self, writes: usize) {
        let (desired, observed) = (self.fake.desired(), self.fake.seen.clone());
        let plan = self.fake.plan();
        let mut applied = AppliedSteps::default();
        let ours = plan.steps.iter().filter(|step| match step {
            PlanStep::WriteAuthority { .. } | PlanStep::DiscardAuthority { .. } | PlanStep::Issue { .. } => true,
            PlanStep::Apply { object, .. } => matches!(object.key.kind, ObjectKind::Secret | ObjectKind::ConfigMap),
            _ => false,
        });
        for (count, step) in ours.enumerate() {
            if count == writes {
                return;
            }
            self.fake.carry_out(step, &desired, &mut applied);
            self.writes += 1;
            self.check();
        }
        let pass = StatusInput {
            desired: &desired,
            observed: &observed,
            plan: &plan,
            applied: &applied,
        };
        self.fake.cluster.status = Some(status::of(&self.fake.cluster, &pass));
    }

    /// The kubelet and the TLS reload of a member deliver the stored files: bundle and certificates arrive together.
    fn load(&mut self, member: usize) {
        self.members[member] = self.stored();
        self.report();
        self.check();
    }

    fn report(&mut self) {
        for (member, loaded) in self.members.iter().enumerate() {
            let digest = CaBundle::parse(&loaded.bundle).unwrap().digest();
            let tls = LoadedCertificates {
                trust_bundle: digest.clone(),
                server: in_use(&loaded.server).unwrap(),
                peer: in_use(&loaded.peer),
                peer_trust_bundle: Some(digest),
            };
            let id = u64::try_from(member).unwrap() + 1;
            let answer = MemberAnswer {
                tls: Some(tls),
                ..answer(id, 1)
            };
            self.fake.seen.probes.insert(format!("dev-{member}"), Ok(answer));
        }
    }

    /// Time passes. The client loads a bundle no later than the propagation time after its publication.
    fn wait(&mut self, seconds: i64) {
        if self.follower.0 == self.bundle() {
            self.follower.1 = self.fake.seen.now;
        }
        self.fake.wait(seconds);
        if self.fake.seen.now.as_second() >= self.follower.1.as_second() + PROPAGATION_SECONDS {
            self.follow();
        }
        self.check();
    }

    fn follow(&mut self) {
        self.follower = (self.bundle(), self.fake.seen.now);
    }

    fn ca(&self) -> (i32, String) {
        let ca = self.fake.cluster.status.as_ref().unwrap().ca.clone().unwrap();
        (ca.generation, ca.phase)
    }

    /// Checks that every follower of the published bundle trusts every certificate in use.
    #[track_caller]
    fn check(&self) {
        let now = self.fake.seen.now;
        let leaves = ["server", "peer", "apiserver-client", "operator-client"]
            .map(|leaf| self.text(ObjectKind::Secret, &format!("dev-{leaf}-tls"), "tls.crt"));
        for leaf in &leaves {
            assert_eq!(
                client(&self.bundle(), leaf, now),
                Ok(()),
                "stored, by the published bundle"
            );
        }
        for one in &self.members {
            assert_eq!(
                server(&self.bundle(), &one.server, HOST, now),
                Ok(()),
                "by the published bundle"
            );
            assert_eq!(
                server(&self.follower.0, &one.server, HOST, now),
                Ok(()),
                "by a client that is late"
            );
            for leaf in &leaves[2..] {
                assert_eq!(client(&one.bundle, leaf, now), Ok(()), "a client, by a member");
            }
            for other in &self.members {
                assert_eq!(server(&one.bundle, &other.peer, HOST, now), Ok(()), "a peer, by a peer");
                assert_eq!(client(&one.bundle, &other.peer, now), Ok(()), "a peer, by a peer");
            }
        }
    }

    /// All members and the client keep up until the replacement is complete.
    fn finish(&mut self, generation: i32) {
        for _ in 0..40 {
            self.pass(usize::MAX);
            (0..3).for_each(|member| self.load(member));
            if self.ca() == (generation, "Stable".to_owned()) {
                self.pass(usize::MAX);
                return;
            }
            self.wait(PROPAGATION_SECONDS / 2 + 1);
        }
        panic!("not complete: {:?}", self.ca());
    }
}

#[test]
fn key_is_replaced_in_phases_that_wait_for_every_member() {
    let mut lab = Lab::new(json!({"caAdvance": "Auto"}));
    let old = lab.stored();
    lab.fake.edit(json!({"tls": {"caGeneration": 2}}));
    for _ in 0..3 {
        lab.pass(usize::MAX);
    }
    assert_eq!(lab.ca(), (1, "Publishing".to_owned()));
    // This is long after the propagation time, but one member has not loaded the bundle.
    (0..2).for_each(|member| lab.load(member));
    lab.wait(10 * PROPAGATION_SECONDS);
    lab.pass(usize::MAX);
    assert_eq!(lab.ca().1, "Publishing");
    let waiting = lab.fake.plan().certificates.waiting.unwrap();
    assert!(waiting.contains("dev-2: it has another bundle"), "{waiting}");
    lab.fake
        .seen
        .probes
        .insert("dev-1".to_owned(), Err("no connection".to_owned()));
    lab.pass(usize::MAX);
    assert!(
        lab.fake
            .plan()
            .certificates
            .waiting
            .unwrap()
            .contains("dev-1: no connection")
    );
    lab.load(2);
    lab.pass(usize::MAX);
    assert_eq!(lab.ca(), (2, "Issuing".to_owned()));
    assert_eq!(lab.stored().server, old.server, "signed only from what was stored");
    lab.pass(usize::MAX);
    assert_ne!(lab.stored().server, old.server);
    (1..3).for_each(|member| lab.load(member));
    lab.wait(10 * PROPAGATION_SECONDS);
    for _ in 0..3 {
        lab.pass(usize::MAX);
    }
    assert_eq!(lab.ca().1, "Issuing");
    let waiting = lab.fake.plan().certificates.waiting.unwrap();
    assert!(
        waiting.contains("dev-0: it has another server certificate"),
        "{waiting}"
    );
    lab.load(0);
    lab.pass(usize::MAX);
    assert_eq!(lab.ca().1, "Retiring");
    lab.finish(2);
    let names: Vec<String> = lab
        .fake
        .cluster
        .status
        .as_ref()
        .unwrap()
        .certificates
        .iter()
        .flatten()
        .map(|certificate| format!("{} {:?}", certificate.secret_name, certificate.ca_generation))
        .collect();
    assert_eq!(names[0], "dev-server-tls Some(2)");
    assert_eq!(
        InspectedCertificate::read(&lab.bundle()).unwrap().common_name,
        "dev-ca-v2"
    );
    assert_eq!(
        CaBundle::parse(&lab.bundle()).unwrap(),
        CaBundle::parse(&lab.stored().bundle).unwrap()
    );
}

#[test]
fn automatic_phases_take_their_time() {
    let mut lab = Lab::new(json!({"caAdvance": "Auto"}));
    lab.fake.edit(json!({"tls": {"caGeneration": 2}}));
    let settle = |lab: &mut Lab| {
        for _ in 0..4 {
            lab.pass(usize::MAX);
            (0..3).for_each(|member| lab.load(member));
        }
    };
    for phase in ["Publishing", "Issuing"] {
        settle(&mut lab);
        lab.wait(PROPAGATION_SECONDS - 1);
        settle(&mut lab);
        assert_eq!(lab.ca().1, phase);
        lab.wait(1);
        lab.pass(usize::MAX);
        assert_ne!(lab.ca().1, phase);
    }
}

#[test]
fn manual_phases_are_entered_when_their_name_is_annotated() {
    let mut lab = Lab::new(json!({}));
    lab.fake.edit(json!({"tls": {"caGeneration": 2}}));
    let stays = |lab: &mut Lab, phase: &str| {
        for _ in 0..4 {
            lab.pass(usize::MAX);
            (0..3).for_each(|member| lab.load(member));
            lab.wait(PROPAGATION_SECONDS);
        }
        assert_eq!(lab.ca().1, phase);
    };
    let annotate = |lab: &mut Lab, phase: &str| {
        let annotations = lab.fake.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(CA_ADVANCE.to_owned(), phase.to_owned());
    };
    stays(&mut lab, "Publishing");
    assert_eq!(lab.fake.condition("CertificatesReady"), "True/RotatingCertificates");
    // For another phase, for an earlier replacement, or without a generation.
    for other in ["Retiring@2", "Issuing@1", "Issuing"] {
        annotate(&mut lab, other);
        stays(&mut lab, "Publishing");
    }
    annotate(&mut lab, "Issuing@2");
    stays(&mut lab, "Issuing");
    annotate(&mut lab, "Retiring@2");
    stays(&mut lab, "Stable");
    assert_eq!(lab.ca().0, 2);
    assert_eq!(lab.fake.condition("CertificatesReady"), "True/Issued");
    // The annotation stays when the next replacement begins.
    annotate(&mut lab, "Issuing@2");
    lab.fake.edit(json!({"tls": {"caGeneration": 3}}));
    stays(&mut lab, "Publishing");
    let waiting = lab.fake.plan().certificates.waiting.unwrap();
    assert!(waiting.contains("kubebrain.io/ca-advance=Issuing@3"), "{waiting}");
}

#[test]
fn a_pause_holds_a_replacement_but_no_renewal() {
    let mut lab = Lab::new(json!({"caAdvance": "Auto"}));
    lab.fake.edit(json!({"paused": true, "tls": {"caGeneration": 2}}));
    lab.pass(usize::MAX);
    lab.pass(usize::MAX);
    assert_eq!(lab.ca(), (1, "Stable".to_owned()));
    lab.wait(61 * 24 * 3600);
    let plan = lab.fake.plan();
    let issued = plan
        .steps
        .iter()
        .filter(|step| matches!(step, PlanStep::Issue { .. }))
        .count();
    assert_eq!(issued, 4);
    // A renewal does not include the change of the spec.
    lab.fake.edit(json!({"tls": {"serverAltNames": ["a.example"]}}));
    lab.pass(usize::MAX);
    let server = InspectedCertificate::read(&lab.stored().server).unwrap();
    assert!(!server.sans.contains("a.example"));
    assert_eq!(server.issued(), lab.fake.seen.now);
}

#[test]
fn replacement_goes_on_wherever_it_is_killed() {
    let replace = |kill: usize| {
        let mut lab = Lab::new(json!({"caAdvance": "Auto"}));
        lab.fake.edit(json!({"tls": {"caGeneration": 2}}));
        // The pass in which the write number `kill` falls ends after it.
        for _ in 0..40 {
            let left = kill.saturating_sub(lab.writes);
            let limit = if left == 0 { usize::MAX } else { left };
            lab.pass(limit);
            (0..3).for_each(|member| lab.load(member));
            if lab.writes > 0 && lab.ca() == (2, "Stable".to_owned()) {
                break;
            }
            lab.wait(PROPAGATION_SECONDS / 2 + 1);
        }
        lab.finish(2);
        lab.writes
    };
    let all = replace(usize::MAX);
    assert!(all > 15, "{all} writes");
    for kill in 1..all {
        replace(kill);
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// A pass that is killed after this number of writes.
    Pass(usize),
    Load(usize),
    Follow,
    Wait(i64),
    Raise,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Pass(usize::MAX)),
        4 => (0..6_usize).prop_map(Event::Pass),
        6 => (0..3_usize).prop_map(Event::Load),
        1 => Just(Event::Follow),
        4 => (1..PROPAGATION_SECONDS).prop_map(Event::Wait),
        1 => Just(Event::Raise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn who_follows_the_bundle_trusts_every_certificate_in_use(events in proptest::collection::vec(event(), 1..120)) {
        let mut lab = Lab::new(json!({"caAdvance": "Auto"}));
        let mut generation = 1;
        for event in events {
            match event {
                Event::Pass(writes) => lab.pass(writes),
                Event::Load(member) => lab.load(member),
                Event::Follow => lab.follow(),
                Event::Wait(seconds) => lab.wait(seconds),
                Event::Raise => {
                    generation += 1;
                    lab.fake.edit(json!({"tls": {"caGeneration": generation}}));
                }
            }
        }
        lab.finish(generation);
    }
}
