use std::fs;

use super::*;

fn cache() -> (tempfile::TempDir, ToolCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = ToolCache(dir.path().to_owned());
    (dir, cache)
}

fn silent() -> Progress {
    Progress::to(|_| ())
}

#[test]
fn keys_tell_where_one_part_ends_and_the_next_begins() {
    assert_ne!(CacheKey::of([&b"ab"[..], b"c"]), CacheKey::of([&b"a"[..], b"bc"]));
    assert_eq!(CacheKey::of([&b"ab"[..], b"c"]), CacheKey::of([&b"ab"[..], b"c"]));
}

#[test]
fn an_entry_is_made_once() {
    let (_dir, cache) = cache();
    let key = CacheKey::of([&b"1"[..]]);
    let first = cache
        .once("go", "x", &key, &silent(), |dir| Ok(fs::write(dir.join("f"), "one")?))
        .unwrap();
    let second = cache
        .once("go", "x", &key, &silent(), |_| anyhow::bail!("made again"))
        .unwrap();
    assert_eq!(first, second);
    assert_eq!(fs::read_to_string(first.join("f")).unwrap(), "one");
}

#[test]
fn a_failed_attempt_leaves_no_entry_and_no_rubbish_for_the_next() {
    let (_dir, cache) = cache();
    let key = CacheKey::of([&b"1"[..]]);
    let failed = cache.once("go", "x", &key, &silent(), |dir| {
        fs::write(dir.join("half"), "")?;
        anyhow::bail!("no compiler")
    });
    assert_eq!(failed.unwrap_err().to_string(), "no compiler");
    let made = cache
        .once("go", "x", &key, &silent(), |dir| Ok(fs::write(dir.join("whole"), "")?))
        .unwrap();
    assert!(made.join("whole").exists() && !made.join("half").exists());
}

#[test]
fn only_the_latest_entries_of_a_name_are_kept() {
    let (dir, cache) = cache();
    for version in 0u8..6 {
        for name in ["x", "x-y"] {
            let made = cache
                .once("go", name, &CacheKey::of([&[version][..]]), &silent(), |_| Ok(()))
                .unwrap();
            let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(version.into());
            File::open(made).unwrap().set_modified(at).unwrap();
        }
    }
    let of = |name: &str| {
        let entries = fs::read_dir(dir.path().join("go"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap());
        entries
            .filter(|e| e.strip_prefix(name).is_some_and(|rest| rest.len() == CacheKey::LEN + 1))
            .count()
    };
    assert_eq!((of("x"), of("x-y")), (KEPT_ENTRIES, KEPT_ENTRIES));
}
