use super::*;
use telemetry::logs::LogLevel;

fn command(line: &str) -> (Config, SnapshotCommand) {
    let (config, warnings) = serve(line);
    assert_eq!(warnings, Vec::<String>::new(), "{line}");
    match config.subcommand.clone() {
        Some(Subcommand::Snapshot(command)) => (config, command),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn snapshot_takes_a_file_and_what_says_where_the_store_is() {
    let restore = SnapshotCommand {
        file: "f".into(),
        skip_hash_check: false,
        bump_revision: 0,
        restores: true,
        attempts: AttemptOptions::default(),
    };
    for line in [
        "snapshot restore f --data-dir d",
        "snapshot import --data-dir d f",
        "snapshot restore -data-dir=d f --log-level debug",
    ] {
        let (config, found) = command(line);
        assert_eq!(
            (found, config.data_dir.display().to_string()),
            (restore.clone(), "d".to_owned())
        );
    }
    let (config, found) = command(
        "snapshot restore --skip-hash-check f --storage tikv --tikv-pd-endpoints pd:2379 --tikv-key-prefix p \
         --initial-cluster-token t",
    );
    assert!(matches!(config.storage, Storage::Tikv(_)) && found.skip_hash_check);
    for line in [
        "snapshot restore f --data-dir d --bump-revision 1000 --mark-compacted",
        "snapshot restore --mark-compacted=true --bump-revision=1000 f --data-dir d",
    ] {
        let bumped = SnapshotCommand {
            bump_revision: 1000,
            ..restore.clone()
        };
        assert_eq!(command(line).1, bumped);
    }
    let once = SnapshotCommand {
        attempts: AttemptOptions {
            once: true,
            request_id: None,
            result_file: Some("r".into()),
        },
        ..restore.clone()
    };
    assert_eq!(
        command("snapshot restore f --data-dir d --once --result-file r").1,
        once
    );
    let unbumped = "snapshot restore f --data-dir d --bump-revision=0 --mark-compacted=false";
    assert_eq!(command(unbumped).1, restore);
    let (config, found) = command("snapshot status f");
    assert!(!found.restores && !found.skip_hash_check && config.log.level == LogLevel::Warn);
    let (_, found) = command("snapshot restore --data-dir d -- -f");
    assert_eq!(found.file.to_str(), Some("-f"));
    assert_eq!(
        command("snapshot status --log-level debug f").0.log.level,
        LogLevel::Debug
    );
}

#[test]
fn snapshot_refuses_what_it_would_ignore() {
    for (line, text) in [
        ("snapshot", "needs one of status, restore, import"),
        ("snapshot save f", "etcdctl snapshot save"),
        ("snapshot keep f", "snapshot has no \"keep\""),
        ("snapshot restore --data-dir d", "snapshot restore needs <FILE>"),
        ("snapshot status", "snapshot status needs <FILE>"),
        ("snapshot restore f g --data-dir d", "snapshot restore takes no \"g\""),
        ("snapshot import f --name n", "snapshot import takes no --name"),
        ("snapshot restore f", "needs --data-dir"),
        (
            "snapshot restore f --storage tikv --tikv-pd-endpoints pd:2379",
            "needs --tikv-key-prefix",
        ),
        (
            "snapshot restore f --data-dir d --quota-backend-bytes 5",
            "takes no --quota-backend-bytes",
        ),
        ("snapshot status f --data-dir d", "snapshot status takes no --data-dir"),
        (
            "snapshot restore f --data-dir d --bump-revision 3",
            "--mark-compacted required if --bump-revision > 0",
        ),
        (
            "snapshot restore f --data-dir d --mark-compacted",
            "--mark-compacted required if --bump-revision > 0",
        ),
        (
            "snapshot restore f --data-dir d --mark-compacted --bump-revision 0",
            "--mark-compacted required if --bump-revision > 0",
        ),
        (
            "snapshot restore f --data-dir d --mark-compacted --bump-revision=-3",
            "--bump-revision is not valid",
        ),
        (
            "snapshot restore f --data-dir d --mark-compacted --bump-revision",
            "--bump-revision needs a value",
        ),
        (
            "snapshot restore f --data-dir d --mark-compacted=maybe --bump-revision=3",
            "--mark-compacted is not valid",
        ),
        (
            "snapshot status f --bump-revision 3 --mark-compacted",
            "snapshot status takes no --bump-revision",
        ),
    ] {
        let error = refused(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn help_of_snapshot_says_what_each_command_needs() {
    help_has(
        "snapshot -help",
        &["status", "restore", "import", "etcdctl snapshot save"],
    );
    help_has(
        "snapshot restore --help",
        &["<FILE>", "--skip-hash-check", "--bump-revision", "--data-dir"],
    );
    help_has("help snapshot status", &["<FILE>", "--skip-hash-check", "--log-level"]);
}
