use super::*;
use retention::Retention;

fn backup_of(config: &Config) -> BackupCommand {
    match &config.subcommand {
        Some(Subcommand::Backup(command)) => (**command).clone(),
        other => panic!("{other:?}"),
    }
}

fn command(line: &str) -> (Config, BackupCommand) {
    let (config, warnings) = serve(line);
    assert_eq!(warnings, Vec::<String>::new(), "{line}");
    let command = backup_of(&config);
    (config, command)
}

const NAME: &str = "20261129T113542.123Z-0000000000000012345";

#[test]
fn backup_takes_a_destination_and_an_action() {
    let (_, found) =
        command("backup create --destination s3://b/p --endpoints a:1,b:2 --encryption-key-file k --cacert c");
    let BackupAction::Create {
        source,
        request_id: None,
        verify: false,
        result_file: None,
    } = found.action
    else {
        panic!()
    };
    assert_eq!(source.endpoints.len(), 2);
    assert_eq!(source.endpoints[0].to_string(), "https://a:1");
    assert_eq!(
        (found.destination.url.as_str(), found.key_files),
        ("s3://b/p", vec!["k".into()])
    );

    let (config, found) = command("backup list --destination file:///d");
    assert_eq!(found.action, BackupAction::List { json: false });
    assert_eq!(config.log.level, telemetry::logs::LogLevel::Warn);
    let (_, found) = command("backup list --destination file:///d --output json");
    assert_eq!(found.action, BackupAction::List { json: true });

    let (latest, named) = (BackupChoice::Latest, BackupChoice::Named(NAME.parse().unwrap()));
    for (line, choice) in [("", &latest), ("latest", &latest), (NAME, &named)] {
        let line = format!("backup verify {line} --destination file:///d --encryption-key-file k,l");
        let (_, found) = command(&line);
        let verify = |restores| BackupAction::Verify {
            backup: choice.clone(),
            restores,
        };
        assert_eq!(found.action, verify(false), "{line}");
        assert_eq!(command(&format!("{line} --restore")).1.action, verify(true), "{line}");
        assert_eq!(found.key_files.len(), 2);
    }

    let line = format!(
        "backup restore {NAME} --destination file:///d --data-dir e --bump-revision 5 --mark-compacted --once --request-id a-1 --result-file r"
    );
    let (config, found) = command(&line);
    assert_eq!(config.data_dir.to_str(), Some("e"));
    let restore = BackupAction::Restore {
        backup: named.clone(),
        point: RestorePoint::Backup,
        bump_revision: 5,
        attempts: AttemptOptions {
            once: true,
            request_id: Some("a-1".to_owned()),
            result_file: Some("r".into()),
        },
    };
    assert_eq!(found.action, restore);
    let line =
        "backup restore latest --destination file:///d --storage tikv --tikv-pd-endpoints p:1 --tikv-key-prefix p";
    assert!(matches!(command(line).0.storage, Storage::Tikv(_)));

    let (_, found) = command("backup export latest f --destination file:///d");
    let export = BackupAction::Export {
        backup: latest,
        file: "f".into(),
    };
    assert_eq!(found.action, export);
    let (_, found) = command(&format!("backup delete {NAME} --destination file:///d"));
    let delete = |backup, prune_archive| BackupAction::Delete { backup, prune_archive };
    let named = DeletedBackup::Named(NAME.parse().unwrap());
    assert_eq!(found.action, delete(named.clone(), false));
    let (_, found) = command(&format!("backup delete {NAME} --prune-archive --destination file:///d"));
    assert_eq!(found.action, delete(named, true));
    let (_, found) = command("backup delete --orphans --destination file:///d");
    assert_eq!(found.action, BackupAction::DeleteOrphans);
    let (_, found) = command("backup delete --request-id a-1 --destination file:///d");
    assert_eq!(found.action, delete(DeletedBackup::OfRequest("a-1".to_owned()), false));
}

#[test]
fn create_takes_a_request_and_leaves_a_result() {
    let line = "backup create --destination s3://b --endpoints a:1 --request-id a-1 --verify --result-file r";
    let (_, found) = command(&format!("{line} --destination-explicit-credentials"));
    assert!(found.destination.explicit_credentials);
    let BackupAction::Create {
        request_id,
        verify,
        result_file,
        ..
    } = found.action
    else {
        panic!()
    };
    assert_eq!((request_id.as_deref(), verify), (Some("a-1"), true));
    assert_eq!(result_file, Some("r".into()));
    let (_, found) = command("backup list --destination s3://b");
    assert!(!found.destination.explicit_credentials);
}

#[test]
fn archive_takes_a_source_and_an_interval() {
    let line = "backup archive --destination s3://b --endpoints a:1 --encryption-key-file k";
    for (more, seconds) in [
        ("", 10),
        (" --archive-interval 1s", 1),
        (" --archive-interval 1h", 3_600),
    ] {
        let (config, found) = command(&format!("{line}{more}"));
        let BackupAction::Archive { source, interval } = found.action else {
            panic!()
        };
        assert_eq!((source.endpoints.len(), interval), (1, Duration::from_secs(seconds)));
        assert!(config.listen_metrics_urls.is_empty());
    }
    let (config, _) = command(&format!("{line} --listen-metrics-urls http://127.0.0.1:1"));
    assert_eq!(config.listen_metrics_urls.len(), 1);
}

#[test]
fn restore_takes_one_point() {
    let time = "2026-11-29T16:45:00.5Z".parse().unwrap();
    for (flags, name, point) in [
        ("--at-revision 7", "", RestorePoint::Revision(7)),
        ("--at-time 2026-11-29T17:45:00.5+01:00", "", RestorePoint::Time(time)),
        ("--at-end", "", RestorePoint::End),
        ("--at-end", NAME, RestorePoint::End),
        ("", "latest", RestorePoint::Backup),
    ] {
        let (_, found) = command(&format!(
            "backup restore {name} {flags} --destination file:///d --data-dir e"
        ));
        let backup = match name {
            NAME => BackupChoice::Named(NAME.parse().unwrap()),
            _ => BackupChoice::Latest,
        };
        let restore = BackupAction::Restore {
            backup,
            point,
            bump_revision: 0,
            attempts: AttemptOptions::default(),
        };
        assert_eq!(found.action, restore, "{flags} {name}");
    }
}

#[test]
fn prune_takes_rules() {
    let line = "backup prune --destination file:///d --keep-last 1 --keep-within 36h --keep-hourly 5 --keep-daily 2 --keep-weekly 3 \
                --keep-monthly 4 --keep-yearly 6 --dry-run";
    let rules = Retention {
        last: 1,
        within: Some(Duration::from_secs(36 * 3_600)),
        hourly: 5,
        daily: 2,
        weekly: 3,
        monthly: 4,
        yearly: 6,
    };
    let prune = |retention, dry_run| BackupAction::Prune { retention, dry_run };
    assert_eq!(command(line).1.action, prune(rules, true));
    let within = Retention {
        within: Some(Duration::from_secs(14 * 86_400)),
        ..Retention::default()
    };
    let line = "backup prune --destination file:///d --keep-within 14d";
    assert_eq!(command(line).1.action, prune(within, false));
}

#[test]
fn variables_of_providers_are_read_and_not_printed() {
    let line = "backup create --destination s3://b --endpoints a:1 --user n";
    let env = [
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("ETCDCTL_PASSWORD", "secret"),
        ("ETCD_NAME", "x"),
    ];
    let Ok(Asked::Serve(config, _)) = ask(line, &env) else {
        panic!("{line}");
    };
    let text = format!("{:?}", backup_of(&config));
    assert!(
        text.contains("AWS_SECRET_ACCESS_KEY") && !text.contains("\"secret\""),
        "{text}"
    );
    assert_eq!(config.name, "default");
}

#[test]
fn backup_refuses_what_it_would_ignore() {
    let named = format!("backup delete {NAME} --orphans --destination file:///d");
    for (line, text) in [
        (
            "backup",
            "needs one of create, archive, list, verify, restore, export, delete, prune",
        ),
        ("backup create --endpoints a:1", "backup create needs --destination"),
        (
            "backup create --destination file:///d",
            "backup create needs --endpoints",
        ),
        ("backup list --destination d", "is not a URL"),
        (
            "backup list --destination s3://b --storage-class c",
            "backup list takes no --storage-class",
        ),
        ("backup list --destination ftp://d", "has a scheme other than"),
        ("backup list --destination file:///d --output yaml", "--output"),
        (
            "backup list --destination file:///d --destination-region r",
            "has no effect",
        ),
        (
            "backup list --destination file:///d --encryption-key-file k",
            "backup list takes no --encryption-key-file",
        ),
        (
            "backup create --destination file:///d --endpoints a:1 --encryption-key-file k,l",
            "encrypted with one key",
        ),
        (
            "backup verify newest --destination file:///d",
            "\"newest\" is not the name of a backup",
        ),
        (
            "backup restore --destination file:///d --data-dir d",
            "backup restore needs <NAME>, or one of",
        ),
        (
            "backup restore --at-end --at-revision 3 --destination file:///d --data-dir d",
            "takes one of --at-revision, --at-time and --at-end",
        ),
        (
            "backup restore --at-time yesterday --destination file:///d --data-dir d",
            "--at-time is not valid",
        ),
        (
            "backup restore --at-revision 0 --destination file:///d --data-dir d",
            "--at-revision is not valid",
        ),
        (
            "backup archive --destination file:///d --endpoints a:1 --archive-interval 10ms",
            "--archive-interval is not valid",
        ),
        (
            "backup archive --destination file:///d --endpoints a:1 --encryption-key-file k,l",
            "encrypted with one key",
        ),
        (
            "backup restore latest --destination file:///d",
            "backup restore needs --data-dir",
        ),
        (
            "backup restore latest --destination file:///d --data-dir d --bump-revision 3",
            "--mark-compacted required",
        ),
        (
            "backup export latest --destination file:///d",
            "backup export needs <FILE>",
        ),
        (
            "backup delete --destination file:///d",
            "one of <NAME>, --request-id and --orphans",
        ),
        (
            "backup delete latest --destination file:///d",
            "\"latest\" is not the name of a backup",
        ),
        (named.as_str(), "one of <NAME>, --request-id and --orphans"),
        (
            "backup delete --orphans --prune-archive --destination file:///d",
            "--prune-archive has no effect",
        ),
        ("backup prune --destination file:///d", "needs a rule"),
        ("backup prune --destination file:///d --keep-last 0", "needs a rule"),
        (
            "backup prune --destination file:///d --keep-last -1",
            "--keep-last is not valid",
        ),
        (
            "backup prune --destination file:///d --keep-within 3",
            "--keep-within is not valid",
        ),
    ] {
        let error = refused(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn help_of_backup_says_what_each_command_needs() {
    help_has("backup --help", &["create", "prune", "s3://bucket/prefix", "AWS_*"]);
    help_has(
        "backup create --help",
        &["--endpoints", "--destination", "--encryption-key-file", "$TMPDIR"],
    );
    help_has(
        "help backup prune",
        &["--keep-within", "--dry-run", "Each cluster is counted separately"],
    );
}
