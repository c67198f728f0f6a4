use super::*;

fn bounds(regions: &Regions) -> Vec<&[u8]> {
    regions.all.iter().map(|region| &region.start[..]).collect()
}

fn context(region: &Region, store: u64) -> Context {
    Context {
        region_id: region.id,
        region_epoch: Some(metapb::RegionEpoch {
            conf_ver: region.conf_version,
            version: region.version,
        }),
        peer: Some(metapb::Peer {
            store_id: store,
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_split_makes_two_regions_with_a_new_version_and_a_merge_undoes_it() {
    let one = Regions::new(vec![1, 2]);
    let two = one.split(b"m").unwrap();
    assert_eq!(bounds(&two), [&b""[..], b"m"]);
    assert_eq!(two.by_key(b"m").id, one.by_key(b"m").id, "the right part keeps the id");
    assert_ne!(two.by_key(b"a").id, one.by_key(b"a").id);
    assert_eq!(two.by_key(b"a").end, &b"m"[..]);
    assert!(two.all.iter().all(|region| region.version == 2));
    assert_eq!(two.split(b"m"), Err(RegionsError::BoundAlready));
    let merged = two.merge(b"m").unwrap();
    assert_eq!(bounds(&merged), [&b""[..]]);
    assert_eq!(merged.all[0].version, 3);
    assert_eq!(merged.merge(b"m"), Err(RegionsError::NoBound));
}

#[test]
fn encoded_and_plain_keys_find_the_same_region() {
    let mut regions = Regions::new(vec![1]);
    for bound in [&b"b"[..], b"12345678", b"m\0"] {
        regions = regions.split(bound).unwrap();
    }
    for key in [
        &b""[..],
        b"a",
        b"12345678",
        b"1234567",
        b"123456789",
        b"b",
        b"m",
        b"m\0",
        b"z",
    ] {
        assert_eq!(regions.by_encoded_key(&encode(key)), regions.by_key(key), "{key:?}");
    }
    assert_eq!(regions.by_encoded_key(b""), &regions.all[0]);
}

#[test]
fn a_region_moves_to_a_peer_by_election_and_to_another_store_by_a_new_peer() {
    let before = Regions::new(vec![1, 2, 3, 4]);
    let elected = before.move_to(b"k", 2).unwrap();
    assert_eq!(
        (elected.all[0].leader, elected.all[0].conf_version),
        (2, before.all[0].conf_version)
    );
    let moved = elected.move_to(b"k", 4).unwrap();
    assert_eq!(
        (moved.all[0].leader, moved.all[0].conf_version),
        (4, before.all[0].conf_version + 2)
    );
    assert!(moved.all[0].peers.iter().all(|peer| peer.store_id != 2));
    assert_eq!(before.move_to(b"k", 5), Err(RegionsError::NoStore(5)));
}

#[test]
fn requests_are_refused_with_the_error_that_fits() {
    let old = Regions::new(vec![1, 2, 3, 4]);
    let region = &old.all[0];
    assert_eq!(old.check(Some(&context(region, 1)), 1), Ok(region));
    assert!(
        old.check(Some(&context(region, 1)), 2)
            .unwrap_err()
            .store_not_match
            .is_some()
    );
    let refused = old.check(Some(&context(region, 2)), 2).unwrap_err();
    assert_eq!(refused.not_leader.unwrap().leader.unwrap().store_id, 1);
    assert!(
        old.check(Some(&context(region, 4)), 4)
            .unwrap_err()
            .region_not_found
            .is_some(),
        "no peer there"
    );
    assert!(old.check(None, 1).unwrap_err().region_not_found.is_some());
    let new = old.split(b"m").unwrap();
    let refused = new.check(Some(&context(region, 1)), 1).unwrap_err();
    assert_eq!(refused.epoch_not_match.unwrap().current_regions.len(), 2);
    let refused = new.by_key(b"a").check_key(b"m").unwrap_err();
    assert_eq!(refused.key_not_in_region.unwrap().key, &b"m"[..]);
}

#[test]
fn election_moves_what_the_dead_led_where_a_majority_lives() {
    let regions = Regions::new(vec![1, 2, 3])
        .split(b"m")
        .unwrap()
        .move_to(b"m", 3)
        .unwrap();
    let led = |alive: &[u64]| -> Vec<u64> {
        let elected = regions.elect(&alive.iter().copied().collect());
        elected.all.iter().map(|region| region.leader).collect()
    };
    assert_eq!(led(&[1, 2, 3]), [1, 3]);
    assert_eq!(led(&[2, 3]), [2, 3]);
    assert_eq!(led(&[1, 2]), [1, 1]);
    assert_eq!(led(&[2]), [1, 3], "no majority");
}
