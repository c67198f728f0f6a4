use super::*;
use telemetry::logs::LogLevel;

#[test]
fn debug_takes_what_says_where_and_what() {
    let dump = |line: &str| {
        let (config, warnings) = serve(line);
        assert_eq!(warnings, Vec::<String>::new(), "{line}");
        (config.data_dir.display().to_string(), config.dump.unwrap())
    };
    let all = Dump {
        what: Dumped::Log,
        limit: None,
        prefix: Vec::new(),
        values: false,
    };
    assert_eq!(dump("debug dump-log --data-dir d"), ("d".to_owned(), all.clone()));
    let rows = Dump {
        what: Dumped::Rows,
        limit: Some(5),
        prefix: b"/a=b".to_vec(),
        values: true,
    };
    assert_eq!(
        dump("debug dump-rows --prefix=/a=b -limit 5 --name n --values"),
        ("n.etcd".to_owned(), rows)
    );
    let store = "--storage tikv --tikv-pd-endpoints pd:1 --tikv-key-prefix p";
    let (config, _) = serve(&format!("debug dump-manifest {store}"));
    assert!(matches!(config.storage, Storage::Tikv(_)) && config.dump.unwrap().what == Dumped::Manifest);
    assert_eq!(config.log.level, LogLevel::Warn);
    assert_eq!(serve("debug dump-log --log-level info").0.log.level, LogLevel::Info);
    assert_eq!(serve("--data-dir d").0.dump, None);
}

#[test]
fn debug_refuses_what_it_would_ignore() {
    for (line, reason) in [
        ("debug", "debug needs one of dump-log, dump-rows, dump-manifest"),
        ("debug --limit 3", "debug has no \"--limit\", only dump-log"),
        ("debug dump-keys", "debug has no \"dump-keys\", only dump-log"),
        ("debug dump-log --values", "dump-log takes no --values"),
        ("debug dump-manifest --limit 3", "dump-manifest takes no --limit"),
        ("debug dump-rows --limit", "--limit needs a value"),
        (
            "debug dump-rows --limit many",
            "--limit must be a number of lines, not \"many\"",
        ),
        ("debug dump-rows --unsafe-no-fsync", "debug takes no --unsafe-no-fsync"),
        ("debug dump-rows --tikv-key-prefix p", "needs --storage tikv"),
        ("dump-log", "\"dump-log\" is not a valid flag"),
    ] {
        let error = refused(line);
        assert!(error.contains(reason), "{line}: {error}");
    }
    // Variables do not select the store.
    let Ok(Asked::Serve(config, _)) = ask("debug dump-log", &[("ETCD_DATA_DIR", "elsewhere")]) else {
        panic!("it was refused")
    };
    assert_eq!(config.data_dir, Path::new("default.etcd"));
}

#[test]
fn debug_help_names_options_and_flags() {
    for line in ["debug --help", "debug dump-rows -h"] {
        let Ok(Asked::Print(text)) = ask(line, &[]) else {
            panic!("{line}")
        };
        for word in [
            "dump-manifest",
            "--prefix",
            "--limit",
            "--values",
            "--tikv-pd-endpoints",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
