//! `kubebrain backup archive`: a store is restored to the moments that it had, whatever ends the archive in between.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat, Utc};
use pb::kv_client::KvClient;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::backup::{backup, damaged, names, printed, refused};
use crate::import::{Content, add_user, compact, connect, read, write};
use crate::members::Site;
use crate::program::{Kubebrain, Process, STEP_TIMEOUT, free_port};
use crate::wire::pb;

mod moments;

/// Starts an archive of the store at these URLs.
fn archive(urls: &str, to: &Path, more: &[String]) -> Process {
    Process::begin(&flags(urls, to, more), String::new())
}

fn flags(urls: &str, to: &Path, more: &[String]) -> Vec<String> {
    let flags = [
        "backup".to_owned(),
        "archive".to_owned(),
        format!("--endpoints={urls}"),
        format!("--destination=file://{}", to.display()),
        "--archive-interval=1s".to_owned(),
    ];
    [&flags[..], more].concat()
}

/// A store whose archive has made its first backup.
struct Archived {
    temp: TempDir,
    to: PathBuf,
    source: Kubebrain,
    channel: Channel,
    running: Process,
}

impl Archived {
    async fn start() -> Self {
        let temp = TempDir::new().unwrap();
        let to = temp.path().join("backups");
        let source = Kubebrain::start(&temp.path().join("source")).await;
        let channel = connect(&source.url).await;
        let running = archive(&source.url, &to, &[]);
        running.says("created ").await;
        Self {
            temp,
            to,
            source,
            channel,
            running,
        }
    }
}

/// Waits until it has stored a segment that ends at a revision.
async fn has_stored(archive: &Process, revision: i64) {
    archive.says(&format!("-{revision:019}")).await;
}

/// All segments below a destination with one archive, by name: their revisions and their files.
fn segments(to: &Path) -> Vec<(i64, i64, PathBuf)> {
    let clusters: Vec<_> = fs::read_dir(to.join("archive")).unwrap().collect();
    assert_eq!(clusters.len(), 1);
    let mut found = Vec::new();
    for file in fs::read_dir(clusters[0].as_ref().unwrap().path()).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // A killed process leaves a file that it was writing, whose name is no object's.
        let is_object = !name.contains('#');
        if let Some((first, last)) = name.split_once('-').filter(|_| is_object) {
            found.push((first.parse().unwrap(), last.parse().unwrap(), path));
        }
    }
    found.sort_unstable();
    found
}

/// Checks that segments follow each other without a gap or an overlap.
fn assert_chained(to: &Path) {
    let found = segments(to);
    for two in found.windows(2) {
        assert_eq!(two[1].0, two[0].1 + 1, "{found:?}");
    }
}

/// The end of the archive, as the list of backups shows it for the newest one.
fn archived_to(to: &Path) -> (i64, DateTime<Utc>) {
    let list: Vec<Value> = serde_json::from_str(&printed(backup(to, &["list", "--output=json"]))).unwrap();
    let end = &list.last().unwrap()["archivedTo"];
    let time = end["time"]
        .as_str()
        .map_or(DateTime::UNIX_EPOCH, |time| time.parse().unwrap());
    (end["revision"].as_i64().unwrap_or_default(), time)
}

/// Waits until the archive knows that nothing happened up to a time.
async fn is_current(to: &Path, time: DateTime<Utc>) {
    let reached = async {
        while archived_to(to).1 < time {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, reached).await.unwrap();
}

fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Puts a number; returns the revision.
async fn count(channel: &Channel, n: i64) -> i64 {
    try_count(channel, n).await.unwrap()
}

async fn try_count(channel: &Channel, n: i64) -> Result<i64, tonic::Status> {
    let put = pb::PutRequest {
        key: "counter".into(),
        value: n.to_string().into(),
        ..Default::default()
    };
    let answer = KvClient::new(channel.clone()).put(put).await?;
    Ok(answer.into_inner().header.unwrap().revision)
}

/// Restores to a point, and reads all of the new store. The flags locate the backups and the new store.
async fn restored(to: &Path, dir: &Path, point: &[&str], revision: i64) -> Content {
    let into = format!("--data-dir={}", dir.display());
    let said = printed(backup(to, &[&["restore", into.as_str()], point].concat()));
    assert!(said.starts_with(&format!("restored revision {revision}, ")), "{said}");
    let store = Kubebrain::start(dir).await;
    let channel = connect(&store.url).await;
    let content = read(&channel, revision).await;
    assert_eq!(count(&channel, -1).await, revision + 1);
    store.stop().await;
    content.with_used_leases()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_moment_is_restored_though_the_archive_is_killed() {
    let temp = TempDir::new().unwrap();
    let (to, key) = (temp.path().join("backups"), temp.path().join("key"));
    fs::write(&key, "11".repeat(32)).unwrap();
    let key = format!("--encryption-key-file={}", key.display());
    let source = Kubebrain::start(&temp.path().join("source")).await;
    let channel = connect(&source.url).await;
    add_user(&channel, "one").await;
    write(&channel, 1_000).await;
    let key_flag = std::slice::from_ref(&key);
    let running = archive(&source.url, &to, key_flag);
    running.says("created ").await;
    running.kill().await;
    let (mut moments, mut from) = (Vec::new(), 0);
    // Before and after a segment is stored, and while changes arrive.
    for kill_at in ["archive-segment-sealed:1", "archive-segment-stored:1", ""] {
        let mut doomed = Process::doomed(&flags(&source.url, &to, key_flag), kill_at);
        doomed.says("archiving the changes after a revision").await;
        write(&channel, from).await;
        if kill_at.is_empty() {
            doomed.kill().await;
        } else {
            let (code, said) = doomed.ended().await;
            assert_eq!(code, None, "{said}");
        }
        let running = archive(&source.url, &to, key_flag);
        let revision = write(&channel, from + 60).await;
        has_stored(&running, revision).await;
        let content = read(&channel, revision).await.with_used_leases();
        let time = Utc::now();
        moments.push((revision, time, content));
        // The last one shows that nothing happened up to the time.
        is_current(&to, time).await;
        running.stop().await;
        from += 120;
    }
    let newest = moments[2].0;
    assert_chained(&to);
    assert_eq!((archived_to(&to).0, segments(&to).last().unwrap().1), (newest, newest));
    assert_eq!(names(&to).len(), 1, "the first archive has made the only backup");
    let by_restore = printed(backup(&to, &["verify", "--restore", &key]));
    assert!(
        by_restore.contains(&format!("; restored revision {newest}, ")),
        "{by_restore}"
    );
    let verified = printed(backup(&to, &["verify", &key]));
    let line = verified.lines().last().unwrap();
    assert!(
        line.contains(&format!(" to {newest}, {} segments", segments(&to).len())),
        "{line}"
    );

    for (revision, time, content) in &moments {
        let point = format!("--at-time={}", text(*time));
        let found = restored(
            &to,
            &temp.path().join(format!("time-{revision}")),
            &[&point, &key],
            *revision,
        )
        .await;
        assert!(found == *content, "{point}: {found:?} {content:?}");
    }
    for revision in [moments[1].0 - 7, moments[1].0, newest] {
        let point = format!("--at-revision={revision}");
        let dir = temp.path().join(format!("revision-{revision}"));
        let found = restored(&to, &dir, &[&point, &key], revision).await;
        let expected = read(&channel, revision).await;
        assert!(
            found.has_history_of(&expected, revision),
            "{point}: {found:?} {expected:?}"
        );
    }
    let found = restored(&to, &temp.path().join("end"), &["--at-end", &key], newest).await;
    assert!(found == moments[2].2, "{found:?}");
    let into = format!("--data-dir={}", temp.path().join("none").display());
    let beyond = format!("--at-time={}", text(Utc::now()));
    let said = refused(backup(&to, &["restore", &into, &beyond, &key]));
    assert!(said.contains("is beyond the end of the archive, which is "), "{said}");
    let said = refused(backup(
        &to,
        &["restore", &into, &format!("--at-revision={}", newest + 1), &key],
    ));
    assert!(
        said.contains(&format!("revision {} is beyond the end of the archive", newest + 1)),
        "{said}"
    );
    let said = refused(backup(&to, &["restore", &into, "--at-revision=1", &key]));
    assert!(said.contains("no backup is of revision 1 or an earlier one"), "{said}");
    let said = refused(backup(&to, &["restore", &into, "--at-end"]));
    assert!(said.contains("is encrypted with the key"), "{said}");
    assert!(!temp.path().join("none").join("IDENTITY").exists());
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_and_damaged_segments_are_refused_by_name() {
    let Archived {
        temp,
        to,
        source,
        channel,
        running,
    } = Archived::start().await;
    let mut newest = 0;
    for n in 0..3 {
        newest = count(&channel, n).await;
        has_stored(&running, newest).await;
    }
    running.stop().await;
    let found = segments(&to);
    assert_eq!(found.len(), 3);
    let (revision, _, path) = &found[1];
    let object = path.strip_prefix(&to).unwrap().display().to_string();
    let whole = fs::read(path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (n, (bytes, what)) in [
        (&flipped[..], format!("{object} is damaged")),
        (&whole[..whole.len() - 1], format!("{object} is damaged")),
        (
            &[][..],
            format!("{object} is missing, or several segments with these revisions"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        if bytes.is_empty() {
            fs::remove_file(path).unwrap();
        } else {
            fs::write(path, bytes).unwrap();
        }
        let dir = temp.path().join(format!("restored-{n}"));
        let into = format!("--data-dir={}", dir.display());
        for point in ["--at-end".to_owned(), format!("--at-revision={revision}")] {
            let said = damaged(backup(&to, &["restore", &into, &point]));
            assert!(said.contains(&what), "{said}");
            assert!(!dir.join("IDENTITY").exists());
        }
        let said = damaged(backup(&to, &["verify"]));
        assert!(said.contains(&what), "{said}");
        assert!(
            said.contains("itself is as it was written, but the archive after it"),
            "{said}"
        );
        let said = damaged(backup(&to, &["verify", "--restore"]));
        assert!(said.contains(&what), "{said}");
        // Before it there is nothing wrong.
        let into = format!("--data-dir={}", temp.path().join(format!("before-{n}")).display());
        let point = format!("--at-revision={}", revision - 1);
        printed(backup(&to, &["restore", &into, &point]));
    }
    fs::write(path, &whole).unwrap();
    let found = restored(&to, &temp.path().join("restored-0"), &["--at-end"], newest).await;
    assert!(found == read(&channel, newest).await.with_used_leases());
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_was_compacted_before_it_was_archived_is_a_gap() {
    let Archived {
        temp,
        to,
        source,
        channel,
        running,
    } = Archived::start().await;
    let end = write(&channel, 0).await;
    has_stored(&running, end).await;
    running.stop().await;
    let (lost, paused) = (write(&channel, 60).await, Utc::now());
    compact(&channel, lost).await;

    let metrics = format!("http://127.0.0.1:{}", free_port());
    let running = archive(&source.url, &to, &[format!("--listen-metrics-urls={metrics}")]);
    running.says("the archive has a gap").await;
    running.says("created ").await;
    let newest = write(&channel, 120).await;
    has_stored(&running, newest).await;
    let lines = [
        "kubebrain_archive_gaps_total 1".to_owned(),
        format!("kubebrain_archive_last_revision {newest}"),
    ];
    let shown = async {
        loop {
            let (status, page) = running.get_at(&metrics, "/metrics").await;
            assert_eq!(status, 200);
            if lines.iter().all(|line| page.lines().any(|found| found == line)) {
                return page;
            }
        }
    };
    let page = timeout(STEP_TIMEOUT, shown).await.unwrap();
    assert!(
        page.contains("kubebrain_archive_lag_seconds ") && !page.contains("etcd_server_"),
        "{page}"
    );
    running.stop().await;

    let found = restored(&to, &temp.path().join("new"), &["--at-end"], newest).await;
    assert!(found == read(&channel, newest).await.with_used_leases());
    let point = format!("--at-revision={end}");
    printed(backup(
        &to,
        &[
            "restore",
            &point,
            &format!("--data-dir={}", temp.path().join("old").display()),
        ],
    ));
    let into = format!("--data-dir={}", temp.path().join("none").display());
    let said = refused(backup(&to, &["restore", &into, &format!("--at-revision={}", end + 1)]));
    assert!(
        said.contains(&format!("the archive begins again at revision {}", lost + 1)),
        "{said}"
    );
    let said = refused(backup(&to, &["restore", &into, &format!("--at-time={}", text(paused))]));
    assert!(said.contains("the archive lacks what happened from "), "{said}");

    // The first backup goes, and what came after it.
    assert_eq!(names(&to).len(), 2);
    let expired = segments(&to).iter().filter(|(_, last, _)| *last <= lost).count();
    let (copy, oldest) = (temp.path().join("copy"), names(&to).remove(0));
    let copied = std::process::Command::new("cp")
        .args([Path::new("-a"), &to, &copy])
        .status();
    assert!(copied.unwrap().success());
    for dry_run in [&["--dry-run"][..], &[]] {
        let said = printed(backup(&to, &[&["prune", "--keep-last=1"], dry_run].concat()));
        let done = if dry_run.is_empty() { "deleted" } else { "would delete" };
        let line = said.lines().last().unwrap();
        assert!(
            line.starts_with(&format!("{done} {expired} segments of the archive of the cluster ")),
            "{said}"
        );
    }
    let left: BTreeSet<i64> = segments(&to).iter().map(|(first, ..)| *first).collect();
    assert!(!left.is_empty() && left.iter().all(|first| *first > lost), "{left:?}");
    let kept = segments(&copy).len();
    printed(backup(&copy, &["delete", &oldest]));
    assert_eq!(segments(&copy).len(), kept, "segments were deleted unasked");
    // Also if the backup is gone, as after an attempt that was killed.
    let said = printed(backup(&copy, &["delete", "--request-id=gone", "--prune-archive"]));
    assert!(
        said.contains(&format!("deleted {expired} segments of the archive of the cluster ")),
        "{said}"
    );
    assert_eq!(
        segments(&copy)
            .iter()
            .map(|(first, ..)| *first)
            .collect::<BTreeSet<_>>(),
        left
    );
    let said = printed(backup(&to, &["prune", "--keep-last=1"]));
    assert_eq!(said.lines().count(), 1, "{said}");
    restored(&to, &temp.path().join("pruned"), &["--at-end"], newest).await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_restore_continues_and_a_bump_makes_clients_list_again() {
    let Archived {
        temp,
        to,
        source,
        channel,
        running,
    } = Archived::start().await;
    let mut newest = 0;
    for round in 0..3 {
        newest = write(&channel, round * 60).await;
        has_stored(&running, newest).await;
    }
    running.stop().await;
    let dir = temp.path().join("restored");
    let flags = ["--at-end".to_owned(), format!("--data-dir={}", dir.display())];
    let all = [
        "backup".to_owned(),
        "restore".to_owned(),
        format!("--destination=file://{}", to.display()),
    ];
    // In the backup, between segments, and in the one that the first attempt has not reached.
    for kill_at in [
        "log-written:2",
        "archive-segment-added:1",
        "archive-segment-added:2",
        "archive-segment-added:3",
    ] {
        let (code, said) = Process::doomed(&[&all[..], &flags].concat(), kill_at).ended().await;
        assert_eq!(code, None, "{said}");
        assert!(!dir.join("IDENTITY").exists());
    }
    let found = restored(&to, &dir, &["--at-end"], newest).await;
    assert!(found == read(&channel, newest).await.with_used_leases());

    let into = format!("--data-dir={}", temp.path().join("bumped").display());
    let bump = ["restore", "--at-end", &into, "--bump-revision=1000", "--mark-compacted"];
    let said = printed(backup(&to, &bump));
    let bumped = newest + 1_000;
    assert!(
        said.starts_with(&format!("restored revision {bumped}, compacted to {bumped}: ")),
        "{said}"
    );
    let store = Kubebrain::start(&temp.path().join("bumped")).await;
    assert_eq!(count(&connect(&store.url).await, 1).await, bumped + 1);
    store.stop().await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_archive_takes_over_and_the_first_one_ends() {
    let Archived {
        temp: _temp,
        to,
        source,
        channel,
        running: mut first,
    } = Archived::start().await;
    let second = archive(&source.url, &to, &[]);
    let (code, said) = first.ended().await;
    assert!(
        code == Some(1) && said.contains("another `kubebrain backup archive` writes the archive"),
        "{said}"
    );
    let newest = write(&channel, 0).await;
    has_stored(&second, newest).await;
    second.stop().await;
    assert_chained(&to);
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_of_the_same_id_that_is_behind_its_archive_is_refused() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    write(&connect(&source.url).await, 0).await;
    source.stop().await;
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([path("source"), path("copy")])
        .status()
        .unwrap();
    assert!(copied.success());
    let source = Kubebrain::start(&path("source")).await;
    let newest = write(&connect(&source.url).await, 60).await;
    let to = path("backups");
    let running = archive(&source.url, &to, &[]);
    running.says("created ").await;
    let last = count(&connect(&source.url).await, 1).await;
    has_stored(&running, last).await;
    assert!(last > newest);

    let copy = Kubebrain::start(&path("copy")).await;
    let (code, said) = archive(&copy.url, &to, &[]).ended().await;
    let expected = format!("the archive has revision {last} of a store with the same cluster id");
    assert!(code == Some(1) && said.contains(&expected), "{said}");
    // It has ended no other process.
    let last = count(&connect(&source.url).await, 2).await;
    has_stored(&running, last).await;
    running.stop().await;
    copy.stop().await;
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archive_outlives_a_leader_and_is_restored_into_a_key_prefix() {
    let temp = TempDir::new().unwrap();
    let to = temp.path().join("backups");
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    let other = site.start(1, 2, &[]).await;
    let urls = format!("{},{}", site.client_url(0), site.client_url(1));
    let running = archive(&urls, &to, &[]);
    running.says("created ").await;
    let half = write(&leader.connect().await, 0).await;
    has_stored(&running, half).await;
    leader.kill().await;
    let channel = other.connect().await;
    // Until the other one leads.
    let leads = async { while try_count(&channel, 0).await.is_err() {} };
    timeout(STEP_TIMEOUT, leads).await.unwrap();
    let newest = write(&channel, 60).await;
    has_stored(&running, newest).await;
    assert_chained(&to);
    let content = read(&channel, newest).await.with_used_leases();
    running.signal(Signal::TERM);
    other.stop().await;

    let (pd, prefix) = (
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        "--tikv-key-prefix=restored",
    );
    let restore = {
        let (to, pd) = (to.clone(), pd.clone());
        move || backup(&to, &["restore", "--at-end", "--storage=tikv", &pd, prefix])
    };
    let said = printed(tokio::task::spawn_blocking(restore).await.unwrap());
    assert!(said.starts_with(&format!("restored revision {newest}, ")), "{said}");
    let member = site.start(0, 1, &[prefix]).await;
    let found = read(&member.connect().await, newest).await.with_used_leases();
    assert!(found == content, "{found:?} {content:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_that_is_made_once_starts_over_in_a_key_prefix_if_the_newest_point_has_moved() {
    let Archived {
        temp: _temp,
        to,
        source,
        channel,
        running,
    } = Archived::start().await;
    let first = write(&channel, 0).await;
    has_stored(&running, first).await;
    let site = Site::new(1).await;
    let (pd, prefix) = (
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        "--tikv-key-prefix=restored",
    );
    let flags = ["--at-end", "--once", "--storage=tikv", &pd, prefix].map(str::to_owned);
    let all = [
        "backup".to_owned(),
        "restore".to_owned(),
        format!("--destination=file://{}", to.display()),
    ];
    let doomed = [&all[..], &flags].concat();
    let (code, said) = Process::doomed(&doomed, "archive-segment-added:1").ended().await;
    assert_eq!(code, None, "{said}");
    let newest = write(&channel, 60).await;
    has_stored(&running, newest).await;
    running.stop().await;
    // An attempt is also killed while it deletes, or right after it.
    let (code, said) = Process::doomed(&doomed, "archive-segment-added:1").ended().await;
    assert!(
        code.is_none() && said.contains("deleting a part of another snapshot"),
        "{said}"
    );
    let restore = || {
        let (to, flags) = (to.clone(), flags.clone());
        let run = move || {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            printed(backup(&to, &[&["restore"], &flags[..]].concat()))
        };
        tokio::task::spawn_blocking(run)
    };
    let said = restore().await.unwrap();
    assert!(said.starts_with(&format!("restored revision {newest}, ")), "{said}");
    let content = read(&channel, newest).await.with_used_leases();
    source.stop().await;
    let member = site.start(0, 1, &[prefix]).await;
    let found = read(&member.connect().await, newest).await.with_used_leases();
    assert!(found == content, "{found:?} {content:?}");
    let said = restore().await.unwrap();
    assert!(
        said.starts_with("nothing restored: there is the store of cluster "),
        "{said}"
    );
    assert_eq!(count(&member.connect().await, 1).await, newest + 1);
    member.stop().await;
}
