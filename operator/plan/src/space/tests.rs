use crds::cluster::storage::{AutoGrow, Embedded};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::growth::ClaimSizes;
use super::*;
use crate::member::DiskSpace;
use crate::steps::PlanStep;
use crate::testing::{FakeCluster, answer};

const GI: u64 = 1 << 30;

fn at(hours: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
}

fn quota(used: u64, bytes: u64) -> SeenSpace {
    SeenSpace::Limited(StoreSpace {
        limit: SpaceLimit::Quota,
        used,
        bytes,
    })
}

fn reported(bytes: u64, quota_bytes: Option<u64>, disk: Option<(u64, u64)>) -> MemberSpace {
    MemberSpace {
        bytes,
        quota_bytes,
        disk: disk.map(|(bytes, available_bytes)| DiskSpace {
            bytes,
            available_bytes,
            needed_bytes: 96 << 20,
        }),
    }
}

#[test]
fn nearest_limit_counts_and_does_not_alternate() {
    let of = |space: MemberSpace, before| StoreSpace::of(&space, before).map(|space| (space.limit, space.percent()));
    assert_eq!(of(reported(9, None, None), None), None);
    assert_eq!(of(reported(9, Some(10), None), None), Some((SpaceLimit::Quota, 90)));
    let both = reported(50, Some(100), Some((100, 48)));
    assert_eq!(of(both, None), Some((SpaceLimit::Disk, 52)));
    assert_eq!(of(both, Some(SpaceLimit::Quota)), Some((SpaceLimit::Quota, 50)));
    let nearer = reported(50, Some(100), Some((100, 45)));
    assert_eq!(of(nearer, Some(SpaceLimit::Quota)), Some((SpaceLimit::Disk, 55)));
    assert_eq!(of(reported(5, Some(0), None), None), Some((SpaceLimit::Quota, 500)));
    let lie = reported(u64::MAX, Some(1), Some((1, 0)));
    assert_eq!(of(lie, Some(SpaceLimit::Quota)), Some((SpaceLimit::Quota, 1000)));
}

#[test]
fn measurements_are_an_hour_apart_and_worth_a_write() {
    let first = status(None, quota(10 * GI, 100 * GI), at(0)).unwrap();
    assert_eq!((first.used_bytes, first.bytes_per_day), (10 << 30, None));
    let stays = |before: &SpaceStatus, seen, hours| {
        assert_eq!(status(Some(before), seen, at(hours)).as_ref(), Some(before));
    };
    stays(&first, SeenSpace::Unknown, 48);
    stays(&first, quota(50 * GI, 100 * GI), 0);
    // The first load of a new cluster is no rate.
    stays(&first, quota(50 * GI, 100 * GI), 5);
    stays(&first, quota(10 * GI + 1, 100 * GI), 48);
    // 12 GiB more in a day.
    let second = status(Some(&first), quota(22 * GI, 100 * GI), at(24)).unwrap();
    assert_eq!(second.bytes_per_day, Some(12 << 30));
    assert_eq!(second.full_at, Some(Time(at(24 + 156))));
    // The growth has ended, and so does the forecast.
    stays(&second, quota(22 * GI, 100 * GI), 24);
    let mut ended = second.clone();
    for hours in 25..30 {
        ended = status(Some(&ended), quota(22 * GI, 100 * GI), at(hours)).unwrap();
    }
    assert_eq!(ended.full_at, None, "{ended:?}");
    stays(&ended, quota(22 * GI, 100 * GI), 100);
    // A compaction halves the rate.
    let third = status(Some(&second), quota(20 * GI, 100 * GI), at(48)).unwrap();
    assert_eq!(third.bytes_per_day, Some(5 << 30));
    // A larger quota is news at once, and changes nothing else.
    let larger = status(Some(&third), quota(21 * GI, 200 * GI), at(48)).unwrap();
    assert_eq!((larger.bytes_per_day, larger.limit_bytes), (Some(5 << 30), 200 << 30));
    assert_eq!((larger.used_bytes, &larger.measured_at), (20 << 30, &third.measured_at));
    assert_eq!(larger.full_at, None, "in more than 30 days");
    stays(&larger, quota(20 * GI, 201 * GI), 48);
    // A clock that was set back.
    let earlier = status(Some(&larger), quota(20 * GI, 200 * GI), at(1)).unwrap();
    assert_eq!(earlier.measured_at, Time(at(1)));
    let shrinks = status(Some(&third), quota(GI, 100 * GI), at(72)).unwrap();
    assert_eq!((shrinks.bytes_per_day, shrinks.full_at), (Some(-(7 << 30)), None));
    let enormous = status(Some(&first), quota(u64::MAX, u64::MAX), at(12)).unwrap();
    assert_eq!((enormous.used_bytes, enormous.limit_bytes), (i64::MAX, i64::MAX));
    assert_eq!(status(Some(&third), SeenSpace::Unlimited, at(72)), None);
}

#[test]
fn condition_has_hysteresis_and_no_figures_that_change() {
    let told = |former: &str, seen: SeenSpace, full_in: Option<i64>| {
        let status = SpaceStatus {
            full_at: full_in.map(|hours| Time(at(hours))),
            ..status(None, quota(0, 100), at(0)).unwrap()
        };
        let former = former.split_once('/').map(|(status, reason)| Condition {
            type_: CONDITION.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: "former".to_owned(),
            last_transition_time: Time(at(0)),
            observed_generation: None,
        });
        let before: Vec<Condition> = former.into_iter().collect();
        let update = condition(&before, seen, Some(&status), ("of quotas", "of volumes"))?;
        Some(format!(
            "{}/{}: {}",
            update.status.as_str(),
            update.reason,
            update.message
        ))
    };
    let is = |told: Option<String>, expected: &str| {
        let told = told.unwrap();
        assert!(told.starts_with(expected), "{told}");
    };
    const NEARLY: &str = "True/QuotaNearlyUsed: about four fifths or more of the quota of 1Mi are used: of quotas";
    assert_eq!(told("", SeenSpace::Unknown, None), None);
    is(told("True/FillsUp", SeenSpace::Unknown, None), "True/FillsUp: former");
    assert_eq!(told("True/FillsUp", SeenSpace::Unlimited, None), None);
    is(told("", quota(79, 100), None), "False/AsExpected");
    is(told("", quota(80, 100), None), NEARLY);
    is(told("True/QuotaNearlyUsed", quota(75, 100), None), NEARLY);
    is(told("True/QuotaNearlyUsed", quota(74, 100), None), "False/AsExpected");
    is(told("True/FillsUp", quota(76, 100), None), "False/AsExpected");
    is(
        told("", quota(10, 100), Some(72)),
        "True/FillsUp: at the present rate the quota of 1Mi is used up at 2027",
    );
    is(told("", quota(10, 100), Some(73)), "False/AsExpected");
    let disk = StoreSpace {
        limit: SpaceLimit::Disk,
        used: 91,
        bytes: 100,
    };
    is(
        told("", SeenSpace::Limited(disk), None),
        "True/DiskNearlyFull: about four fifths or more of the file system of the volume are used: of volumes",
    );
}

fn size(text: &str) -> Quantity {
    Quantity(text.to_owned())
}

fn embedded(max: Option<&str>, step: Option<&str>) -> Embedded {
    let mut embedded: Embedded = serde_json::from_value(json!({"size": "10Gi"})).unwrap();
    embedded.auto_grow = max.map(|max| {
        Box::new(AutoGrow {
            max: size(max),
            step: step.map(size),
        })
    });
    embedded
}

#[test]
fn claim_grows_when_its_file_system_is_nearly_full() {
    let grown = |embedded: &Embedded, requested: &str, capacity: &str, percent: u64| {
        let (requested, capacity) = (size(requested), size(capacity));
        let bytes = quantity::bytes(&capacity).unwrap();
        let mut member = answer(1, 1);
        member.space = Some(reported(0, None, Some((bytes, bytes - bytes / 100 * percent))));
        let claim = ClaimSizes {
            requested: Some(&requested),
            capacity: Some(&capacity),
        };
        growth::wanted(embedded, claim, Some(&member)).0
    };
    let auto = embedded(Some("14Gi"), None);
    for (requested, capacity, percent, expected) in [
        ("10Gi", "10Gi", 70, "10Gi"),
        ("10Gi", "10Gi", 81, "12800Mi"),
        // Not resized yet, and then resized.
        ("12800Mi", "10Gi", 99, "12800Mi"),
        ("12800Mi", "12800Mi", 50, "12800Mi"),
        // Up to the maximum, and not beyond.
        ("12800Mi", "12800Mi", 90, "14Gi"),
        ("14Gi", "14Gi", 99, "14Gi"),
        // The spec wants more than the claim has.
        ("5Gi", "5Gi", 99, "10Gi"),
        // The maximum was lowered: a volume never shrinks, but a step that is not made yet is taken back.
        ("20Gi", "20Gi", 99, "20Gi"),
        ("20Gi", "12Gi", 99, "14Gi"),
    ] {
        assert_eq!(
            grown(&auto, requested, capacity, percent),
            expected,
            "{requested} {capacity} {percent}"
        );
    }
    assert_eq!(
        grown(&embedded(Some("100Gi"), Some("5G")), "10Gi", "10Gi", 90),
        "15009Mi"
    );
    assert_eq!(grown(&embedded(None, None), "20Gi", "20Gi", 99), "10Gi");
    assert_eq!(grown(&auto, "100Mi", "100Mi", 99), "10Gi");
    // A maximum that is not a number of whole MiB.
    assert_eq!(
        grown(&embedded(Some("10738466817"), None), "10Gi", "10Gi", 99),
        "10241Mi"
    );
    assert_eq!(
        grown(&embedded(Some("10738466817"), None), "10241Mi", "10241Mi", 99),
        "10241Mi"
    );
}

#[test]
fn alarm_and_file_system_of_another_size_enlarge_nothing() {
    let auto = embedded(Some("100Gi"), None);
    let ten = size("10Gi");
    let claim = ClaimSizes {
        requested: Some(&ten),
        capacity: Some(&ten),
    };
    let mut member = answer(1, 1);
    // An alarm says that there was no space, not that there is none.
    member.alarms = vec!["NOSPACE".to_owned()];
    member.space = Some(reported(GI, None, Some((10 * GI, 8 * GI))));
    assert_eq!(growth::wanted(&auto, claim, Some(&member)), ten);
    assert_eq!(growth::ignored(&auto, Some(&ten), Some(&member)), None);
    member.space = Some(reported(GI, None, Some((10 * GI, 95 << 20))));
    assert_eq!(growth::wanted(&auto, claim, Some(&member)), size("12800Mi"));
    for other in [200, 12, 8] {
        member.space = Some(reported(GI, None, Some((other * GI, GI / 2))));
        assert_eq!(growth::wanted(&auto, claim, Some(&member)), ten);
        let why = growth::ignored(&auto, Some(&ten), Some(&member)).unwrap();
        assert!(why.contains("not as large as its claim"), "{why}");
    }
    assert_eq!(growth::ignored(&embedded(None, None), Some(&ten), Some(&member)), None);
    member.space = None;
    let why = growth::ignored(&auto, Some(&ten), Some(&member)).unwrap();
    assert!(why.contains("does not report its space"), "{why}");
    assert_eq!(growth::wanted(&auto, claim, None), ten);
}

#[test]
fn volume_of_a_cluster_grows_until_its_maximum() {
    let mut fake = FakeCluster::settled(
        json!({"storage": {"embedded": {"size": "1Gi", "autoGrow": {"max": "3Gi", "step": "1Gi"}}}}),
    );
    assert_eq!(fake.condition(CONDITION), "absent");
    let fill = |fake: &mut FakeCluster, gibibytes: u64, percent: u64| {
        let bytes = gibibytes * GI;
        let space = reported(bytes, None, Some((bytes, bytes - bytes / 100 * percent)));
        let member = fake.seen.probes.values_mut().flatten().next().unwrap();
        member.space = Some(space);
    };
    let resize = |fake: &mut FakeCluster, to: &str| {
        let claim = &mut fake.seen.claims[0];
        let sizes = || Some([("storage".to_owned(), size(to))].into());
        claim.status.as_mut().unwrap().capacity = sizes();
        let spec = claim.spec.as_mut().unwrap();
        spec.resources.as_mut().unwrap().requests = sizes();
    };
    resize(&mut fake, "1Gi");
    fill(&mut fake, 1, 50);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert_eq!(fake.condition(CONDITION), "False/AsExpected");
    let why = |fake: &FakeCluster| {
        let conditions = fake.cluster.status.clone().unwrap().conditions.unwrap();
        let low = conditions.into_iter().find(|condition| condition.type_ == CONDITION);
        low.unwrap().message
    };
    for (now, next) in [(1, "2Gi"), (2, "3Gi")] {
        fill(&mut fake, now, 85);
        let sizes = fake.plan().steps.into_iter().filter_map(|step| match step {
            PlanStep::ChangeClaim { size, .. } => Some(size.0),
            _ => None,
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [next]);
        fake.pass();
        assert_eq!(fake.condition(CONDITION), "True/DiskNearlyFull");
        assert!(
            why(&fake).contains("the operator enlarges the volume"),
            "{}",
            why(&fake)
        );
        resize(&mut fake, next);
        fill(&mut fake, now + 1, 40);
        fake.pass();
        assert_eq!(fake.condition(CONDITION), "False/AsExpected");
    }
    fill(&mut fake, 3, 96);
    assert_eq!(fake.pass(), Vec::<String>::new());
    assert!(why(&fake).contains("autoGrow.max: raise it"), "{}", why(&fake));
    // A small part is free, but less than the brain needs for its next merge.
    resize(&mut fake, "2Gi");
    fill(&mut fake, 2, 40);
    assert_eq!(fake.pass(), Vec::<String>::new());
    let member = fake.seen.probes.values_mut().flatten().next().unwrap();
    let disk = member.space.as_mut().unwrap().disk.as_mut().unwrap();
    disk.needed_bytes = disk.available_bytes + 1;
    assert_eq!(fake.pass(), ["resize the volume claim data-dev-0"]);
    resize(&mut fake, "3Gi");
    // Without autoGrow the volume keeps its size, and no step makes it smaller.
    fake.edit(json!({"storage": {"embedded": {"autoGrow": null}}}));
    let steps = fake.steps();
    assert!(steps.iter().all(|step| !step.contains("data-dev-0")), "{steps:?}");
}
