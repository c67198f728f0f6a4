//! `kubebrain backup`: backups of a running store, and stores that are made of them.

use std::fs;
use std::path::Path;
use std::process::Output;

use bbolt::Reader;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::import::{add_user, compact, connect, read, write};
use crate::members::Site;
use crate::program::{Kubebrain, Process, STEP_TIMEOUT, command};

/// Runs a subcommand of `backup` on a destination.
pub(crate) fn backup(destination: &Path, args: &[&str]) -> Output {
    let destination = format!("--destination=file://{}", destination.display());
    let args = [&["backup"], args, &[destination.as_str()]].concat();
    let output = command().args(&args).output().unwrap();
    eprint!("{args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns what a command prints that succeeds.
pub(crate) fn printed(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the reason why a command fails.
pub(crate) fn refused(output: Output) -> String {
    ended(output, 1)
}

/// Returns the last line of a program that found damage.
pub(crate) fn damaged(output: Output) -> String {
    ended(output, 3)
}

fn ended(output: Output, code: i32) -> String {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.lines().last().unwrap().to_owned()
}

pub(crate) fn names(destination: &Path) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(&printed(backup(destination, &["list", "--output=json"]))).unwrap();
    list.iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

/// All parts of a backup.
fn parts(destination: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let folder = fs::read_dir(destination.join("parts").join(name)).unwrap();
    folder.map(|entry| entry.unwrap().path()).collect()
}

/// Verifies the newest backup by a restore, which leaves nothing.
fn verified_by_restore(to: &Path, keys: &str, (name, revision): (&str, i64)) {
    let temporary = TempDir::new().unwrap();
    let destination = format!("--destination=file://{}", to.display());
    let output = command()
        .args(["backup", "verify", keys, "--restore", &destination])
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let said = printed(output);
    let expected = format!("verified {name} by a restore: revision {revision}, ");
    assert!(said.starts_with(&expected), "{said}");
    assert!(said.contains(&format!("; restored revision {revision}, ")), "{said}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "something is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_makes_backups_and_restores_them() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let flag = |name: &str, file: &str| format!("--{name}={}", path(file).display());
    fs::write(path("key-1"), "11".repeat(32)).unwrap();
    fs::write(path("key-2"), "22".repeat(32)).unwrap();
    let both = format!("{},{}", flag("encryption-key-file", "key-2"), path("key-1").display());
    let to = path("backups");
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    let from = format!("--endpoints={}", source.url);

    let first = write(&channel, 0).await;
    add_user(&channel, "one").await;
    let created = printed(backup(&to, &["create", &from]));
    assert!(
        created.contains(&format!(": revision {first}, a snapshot of ")),
        "{created}"
    );
    let first_content = read(&channel, first).await;
    compact(&channel, first - 20).await;
    let second = write(&channel, 60).await;
    printed(backup(&to, &["create", &from, &flag("encryption-key-file", "key-1")]));
    let second_content = read(&channel, second).await;

    let names = names(&to);
    assert_eq!(names.len(), 2);
    for (name, revision) in names.iter().zip([first, second]) {
        assert!(name.ends_with(&format!("Z-{revision:019}")), "{name}");
    }
    let list: Vec<Value> = serde_json::from_str(&printed(backup(&to, &["list", "--output=json"]))).unwrap();
    assert_eq!(
        (&list[0]["keyId"], list[0]["revision"].as_i64()),
        (&Value::Null, Some(first))
    );
    let table = printed(backup(&to, &["list"]));
    assert_eq!(table.lines().count(), 3);
    assert!(table.contains(list[1]["keyId"].as_str().unwrap()), "{table}");

    let verified = printed(backup(&to, &["verify", &names[0]]));
    assert!(
        verified.starts_with(&format!("verified {}: revision {first}, ", names[0])),
        "{verified}"
    );
    verified_by_restore(&to, &both, (&names[1], second));
    let verified = printed(backup(&to, &["verify", &both]));
    assert!(
        verified.starts_with(&format!("verified {}: revision {second}, ", names[1])),
        "{verified}"
    );
    let id = list[1]["keyId"].as_str().unwrap();
    let said = refused(backup(
        &to,
        &["verify", "latest", &flag("encryption-key-file", "key-2")],
    ));
    assert!(
        said.contains(&format!("is encrypted with the key {id}, and only the key ")),
        "{said}"
    );

    for (name, content, revision) in [
        (names[0].as_str(), first_content, first),
        ("latest", second_content, second),
    ] {
        let dir = path(&format!("restored-{revision}"));
        let into = format!("--data-dir={}", dir.display());
        let restored = printed(backup(&to, &["restore", name, &into, &both]));
        assert!(
            restored.starts_with(&format!("restored revision {revision}, ")),
            "{restored}"
        );
        let again = refused(backup(&to, &["restore", name, &into, &both]));
        assert!(again.contains("is not empty: it holds a store"), "{again}");
        let store = Kubebrain::start(&dir).await;
        let found = read(&connect(&store.url).await, revision).await;
        assert!(found == content, "{name}: {found:?} {content:?}");
        store.stop().await;
    }

    let file = path("exported");
    let exported = printed(backup(&to, &["export", "latest", file.to_str().unwrap(), &both]));
    assert!(exported.contains(&format!("revision {second}, ")), "{exported}");
    let len = file.metadata().unwrap().len();
    let database = fs::File::open(&file).unwrap();
    let database = Reader::open(&database, len - 32).unwrap();
    let mut versions = database.bucket(b"key").unwrap().unwrap();
    let mut newest = Vec::new();
    while let Some((key, _)) = versions.next().unwrap() {
        newest = key.to_vec();
    }
    assert_eq!(newest[..8], second.to_be_bytes());
    let said = refused(backup(&to, &["export", "latest", file.to_str().unwrap(), &both]));
    assert!(said.contains("exists already"), "{said}");
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_refuses_damaged_backups_and_deletes_old_ones() {
    let temp = TempDir::new().unwrap();
    let (to, dir) = (temp.path().join("backups"), temp.path().join("source"));
    let source = Kubebrain::start(&dir).await;
    let from = format!("--endpoints={}", source.url);
    let channel = connect(&source.url).await;
    for round in 0..3 {
        write(&channel, 60 * round).await;
        printed(backup(&to, &["create", &from]));
    }
    source.stop().await;
    let made = names(&to);

    let part = parts(&to, &made[1]).remove(0);
    let whole = fs::read(&part).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let object = part.strip_prefix(&to).unwrap().display().to_string();
    let into = format!("--data-dir={}", temp.path().join("restored").display());
    for (bytes, what) in [
        (&flipped[..], "is damaged"),
        (&whole[..100], "is damaged"),
        (&[][..], "is missing"),
    ] {
        if bytes.is_empty() {
            fs::remove_file(&part).unwrap();
        } else {
            fs::write(&part, bytes).unwrap();
        }
        for action in ["verify", "restore"] {
            let more = [into.as_str()];
            let more = if action == "restore" { &more[..] } else { &[] };
            let said = damaged(backup(&to, &[&[action, made[1].as_str()], more].concat()));
            assert!(said.contains(&format!("{object} {what}")), "{said}");
        }
        let file = temp.path().join("exported");
        let said = damaged(backup(&to, &["export", &made[1], file.to_str().unwrap()]));
        assert!(said.contains(&object) && !file.exists(), "{said}");
    }
    fs::write(&part, &whole).unwrap();
    printed(backup(&to, &["verify", &made[1]]));
    let left: Vec<_> = fs::read_dir(temp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left.iter().any(|name| name.to_string_lossy().ends_with(".part")),
        "{left:?}"
    );

    printed(backup(&to, &["delete", &made[0]]));
    assert_eq!(names(&to), made[1..]);
    let said = refused(backup(&to, &["delete", &made[0]]));
    assert!(said.contains("there is no backup"), "{said}");
    let said = printed(backup(&to, &["prune", "--keep-last=1", "--dry-run"]));
    assert_eq!(said, format!("would delete {}\nkept {}: last\n", made[1], made[2]));
    assert_eq!(names(&to), made[1..]);
    let said = printed(backup(&to, &["prune", "--keep-last=1", "--keep-daily=1"]));
    assert_eq!(said, format!("deleted {}\nkept {}: last, daily\n", made[1], made[2]));
    assert_eq!(names(&to), made[2..]);
    // Parts of a backup that is being made are left alone.
    fs::remove_file(to.join("manifests").join(format!("{}.json", made[2]))).unwrap();
    let said = printed(backup(&to, &["delete", "--orphans"]));
    assert_eq!(said, "deleted 0 objects without a backup, 0 B\n");
    let said = refused(backup(&to, &["verify"]));
    assert!(said.contains("the destination has no backup"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_restores_a_backup_into_a_key_prefix() {
    let temp = TempDir::new().unwrap();
    let to = temp.path().join("backups");
    let source = Kubebrain::start(&temp.path().join("source")).await;
    let channel = connect(&source.url).await;
    let newest = write(&channel, 0).await;
    printed(backup(&to, &["create", &format!("--endpoints={}", source.url)]));
    let content = read(&channel, newest).await;
    source.stop().await;
    let site = Site::new(1).await;
    let (pd, prefix) = (
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        "--tikv-key-prefix=restored",
    );
    let restored = {
        let (to, pd) = (to.clone(), pd.clone());
        let restore = move || backup(&to, &["restore", "latest", "--storage=tikv", &pd, prefix]);
        printed(tokio::task::spawn_blocking(restore).await.unwrap())
    };
    assert!(
        restored.starts_with(&format!("restored revision {newest}, ")),
        "{restored}"
    );
    let member = site.start(0, 1, &[prefix]).await;
    let found = read(&member.connect().await, newest).await;
    assert!(found == content, "{found:?} {content:?}");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_a_backup_whose_destination_does_not_answer() {
    let temp = TempDir::new().unwrap();
    let source = Kubebrain::start(&temp.path().join("source")).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let args = [
        "backup".to_owned(),
        "create".to_owned(),
        format!("--endpoints={}", source.url),
        "--destination=s3://bucket".to_owned(),
        format!("--destination-endpoint=http://{}", silent.local_addr().unwrap()),
    ];
    // Credentials that no server checks.
    let file = temp.path().join("credentials");
    fs::write(&file, "[default]\naws_access_key_id=a\naws_secret_access_key=b\n").unwrap();
    let file = format!("--destination-credentials-file={}", file.display());
    let mut making = Process::begin(&[&args[..], &[file]].concat(), String::new());
    let _asked = timeout(STEP_TIMEOUT, silent.accept()).await.unwrap().unwrap();
    making.signal(Signal::TERM);
    let (code, said) = making.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().last().unwrap().ends_with("interrupted"), "{said}");
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_has_one_backup_however_often_it_is_made() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let to = path("backups");
    let source = Kubebrain::start(&path("source")).await;
    let newest = write(&connect(&source.url).await, 0).await;
    fs::write(path("key"), "11".repeat(32)).unwrap();
    let result = path("result");
    let from = [
        format!("--endpoints={}", source.url),
        format!("--encryption-key-file={}", path("key").display()),
        format!("--result-file={}", result.display()),
    ];
    let create = |id: &str| {
        let id = format!("--request-id={id}");
        let args: Vec<&str> = ["create", "--verify", &id]
            .into_iter()
            .chain(from.iter().map(String::as_str))
            .collect();
        let said = printed(backup(&to, &args));
        let result: Value = serde_json::from_str(&fs::read_to_string(&result).unwrap()).unwrap();
        (said, result)
    };
    let (said, first) = create("a");
    let name = first["name"].as_str().unwrap().to_owned();
    assert!(
        said.starts_with(&format!("created {name}: ")) && said.contains(&format!("verified {name}: ")),
        "{said}"
    );
    assert_eq!((&first["revision"], &first["verified"]), (&newest.into(), &true.into()));
    for field in ["time", "clusterId", "sha256", "encryptionKeyId"] {
        assert!(
            first[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field}: {first}"
        );
    }
    assert!(
        first["snapshotBytes"].as_u64() > Some(0) && first["storedBytes"].as_u64() > Some(0),
        "{first}"
    );

    // An attempt is killed before it writes the result.
    fs::write(&result, "an earlier, longer result".repeat(50)).unwrap();
    let (said, again) = create("a");
    assert!(
        said.starts_with(&format!("{name} was made for this request before\n")),
        "{said}"
    );
    assert_eq!((again, names(&to)), (first, vec![name.clone()]));
    let (_, other) = create("b");
    assert_eq!(names(&to), [name.as_str(), other["name"].as_str().unwrap()]);

    assert_eq!(
        printed(backup(&to, &["delete", "--request-id=a"])),
        format!("deleted {name}\n")
    );
    let said = printed(backup(&to, &["delete", "--request-id=a"]));
    assert_eq!(said, "there is no backup of the request a\n");
    assert_eq!(names(&to), [other["name"].as_str().unwrap()]);
    let nothing = printed(backup(&path("never"), &["delete", "--request-id=a"]));
    assert_eq!(nothing, "there is no backup of the request a\n");

    // A backup that is made and then damaged is not taken for good.
    fs::write(&parts(&to, other["name"].as_str().unwrap())[0], "x").unwrap();
    let args: Vec<&str> = ["create", "--verify", "--request-id=b"]
        .into_iter()
        .chain(from.iter().map(String::as_str))
        .collect();
    let said = damaged(backup(&to, &args));
    assert!(said.contains("was made, but cannot be verified"), "{said}");
    source.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_that_is_made_once_changes_no_store() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let (to, dir, result) = (path("backups"), path("restored"), path("result"));
    let source = Kubebrain::start(&path("source")).await;
    let channel = connect(&source.url).await;
    let first = write(&channel, 0).await;
    printed(backup(&to, &["create", &format!("--endpoints={}", source.url)]));
    let (into, file) = (
        format!("--data-dir={}", dir.display()),
        format!("--result-file={}", result.display()),
    );
    let attempt = |request| ["restore", "latest", "--once", request, &into, &file];
    let args = attempt("--request-id=a");
    let read_result = || -> Value { serde_json::from_str(&fs::read_to_string(&result).unwrap()).unwrap() };
    let said = printed(backup(&to, &args));
    assert!(said.starts_with(&format!("restored revision {first}, ")), "{said}");
    let made = read_result();
    assert_eq!(
        (&made["existed"], made["revision"].as_i64()),
        (&Value::Bool(false), Some(first))
    );
    assert_eq!(made["name"], names(&to)[0].as_str());
    let id = made["clusterId"].as_str().unwrap().to_owned();

    // A directory with other content is refused anyway.
    fs::create_dir(path("other")).unwrap();
    fs::write(path("other").join("file"), "").unwrap();
    let other = format!("--data-dir={}", path("other").display());
    let said = refused(backup(&to, &["restore", "latest", "--once", &other]));
    assert!(said.contains("is not empty: it holds \"file\""), "{said}");

    // Neither another backup nor the loss of all of them matters to a store that has changed since.
    let second = write(&channel, 60).await;
    printed(backup(&to, &["create", &format!("--endpoints={}", source.url)]));
    source.stop().await;
    let store = Kubebrain::start(&dir).await;
    let newest = write(&connect(&store.url).await, 120).await;
    store.stop().await;
    assert!(second > first && newest > first);
    for (request, says) in [
        ("--request-id=a", "an earlier attempt made"),
        ("--request-id=b", "there is"),
    ] {
        let said = printed(backup(&to, &attempt(request)));
        assert!(
            said.starts_with(&format!("nothing restored: {says} the store of cluster {id}")),
            "{said}"
        );
        let found = read_result();
        assert_eq!(
            found["sameRequest"].as_bool().unwrap_or_default(),
            request.ends_with("=a"),
            "{found}"
        );
        assert_eq!(
            (&found["existed"], &found["clusterId"]),
            (&Value::Bool(true), &made["clusterId"])
        );
        assert!(found["revision"].is_null() && found["name"].is_null());
        fs::remove_dir_all(&to).unwrap_or_default();
    }
    let store = Kubebrain::start(&dir).await;
    assert!(write(&connect(&store.url).await, 180).await > newest);
    store.stop().await;
}
