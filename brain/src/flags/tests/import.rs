use super::*;

fn import_of(config: &Config) -> ImportCommand {
    match &config.subcommand {
        Some(Subcommand::Import(command)) => (**command).clone(),
        other => panic!("{other:?}"),
    }
}

fn command(line: &str) -> (Config, ImportCommand) {
    let (config, warnings) = serve(line);
    assert_eq!(warnings, Vec::<String>::new(), "{line}");
    let command = import_of(&config);
    (config, command)
}

#[test]
fn import_takes_a_source_as_etcdctl_does_and_what_says_where_the_store_is() {
    let (_, found) = command(
        "import --from-endpoints b:2 --data-dir d --follow --cutover-file c --once --result-file r --listen-metrics-urls http://127.0.0.1:1",
    );
    assert!(found.attempts.once && found.follows);
    assert_eq!(
        (found.cutover_file, found.attempts.result_file),
        (Some("c".into()), Some("r".into()))
    );
    let (config, found) = command("import --from-endpoints http://a:1,b:2 --data-dir d");
    assert!(!found.attempts.once && found.cutover_file.is_none() && config.listen_metrics_urls.is_empty());
    assert_eq!(config.data_dir.display().to_string(), "d");
    let urls: Vec<_> = found.source.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(urls, ["http://a:1", "http://b:2"]);
    assert!(!found.follows && !found.restarts && found.until_revision.is_none() && found.source.user.is_none());
    let (_, found) = command("import -from-endpoints=b:2 --cacert c --cert d --key=e --data-dir d --follow --restart");
    assert_eq!(found.source.endpoints[0].to_string(), "https://b:2");
    assert!(found.follows && found.restarts && found.source.tls.pair.is_some());
    let (_, found) =
        command("import --from-endpoints b:2 --data-dir d --user n:secret --until-revision 7 --dial-timeout 3s");
    assert_eq!(
        (found.until_revision, found.source.dial_timeout.as_secs()),
        (Some(7), 3)
    );
    assert!(!format!("{found:?}").contains("secret"));
    for (line, is_system) in [("https://b:2", true), ("https://b:2 --cacert c", false)] {
        let (_, found) = command(&format!("import --data-dir d --from-endpoints {line}"));
        assert_eq!(found.source.tls.system_roots, is_system, "{line}");
    }
    let (config, _) = command("import --from-endpoints b:2 --storage tikv --tikv-pd-endpoints p:1 --tikv-key-prefix p");
    assert!(matches!(config.storage, Storage::Tikv(_)));
    let line = "import --from-endpoints b:2 --data-dir d --user n";
    let Ok(Asked::Serve(config, _)) = ask(line, &[("ETCDCTL_PASSWORD", "v"), ("ETCD_NAME", "x")]) else {
        panic!("{line}");
    };
    assert_eq!(import_of(&config).source.user.unwrap().1.0, "v");
    assert_eq!(config.name, "default");
}

#[test]
fn import_refuses_what_it_would_ignore() {
    for (line, text) in [
        ("import --data-dir d", "import needs --from-endpoints"),
        ("import --from-endpoints a:1", "needs --data-dir"),
        ("import --from-endpoints a:1 --data-dir d f", "import takes no \"f\""),
        ("import --from-endpoints unix:///s --data-dir d", "a scheme other than"),
        (
            "import --from-endpoints a:1 --cert c --data-dir d",
            "must be set together",
        ),
        ("import --from-endpoints a:1 --user n --data-dir d", "ETCDCTL_PASSWORD"),
        ("import --from-endpoints a:1 --password p --data-dir d", "needs --user"),
        (
            "import --from-endpoints a:1 --data-dir d --name n",
            "import takes no --name",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --follow=maybe",
            "--follow is not valid: \"maybe\": must be true or false",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --until-revision 0",
            "--until-revision is not valid: \"0\": not a revision",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --until-revision -5",
            "--until-revision is not valid: \"-5\"",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --dial-timeout 5",
            "--dial-timeout is not valid: \"5\": ",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --dial-timeout 0s",
            "--dial-timeout is not valid: \"0s\": must be >0",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --follow --until-revision 5",
            "exclude each other",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --follow --cutover-file=",
            "--cutover-file needs the path of a file",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --result-file=",
            "--result-file needs the path of a file",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --cutover-file f",
            "--cutover-file needs --follow",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --request-id r",
            "--request-id needs --once",
        ),
        (
            "import --from-endpoints a:1 --data-dir d --once --restart",
            "--once and --restart exclude each other",
        ),
        ("import --from-endpoints", "needs a value"),
        (
            "import --from-endpoints a:1 --storage tikv --tikv-pd-endpoints p:1",
            "needs --tikv-key-prefix",
        ),
    ] {
        let error = refused(line);
        assert!(error.contains(text), "{line}: {error}");
    }
}

#[test]
fn last_flag_of_a_subcommand_wins() {
    let line = "import --from-endpoints a:1 --data-dir d --from-endpoints b:2 --data-dir e --follow --follow=false --dial-timeout 1s \
                --dial-timeout 4s";
    let (config, found) = command(line);
    assert_eq!(config.data_dir.to_str(), Some("e"));
    let urls: Vec<_> = found.source.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!((urls, found.follows), (vec!["http://b:2".to_owned()], false));
    assert_eq!(found.source.dial_timeout.as_secs(), 4);
}

#[test]
fn help_of_import_says_how_to_migrate() {
    let words = [
        "--follow",
        "--from-endpoints",
        "SIGUSR1",
        "ETCDCTL_PASSWORD",
        "[default: 2s]",
        "--data-dir",
    ];
    help_has("import --help", &words);
    help_has("help import", &words);
}
