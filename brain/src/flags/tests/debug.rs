use std::os::unix::ffi::OsStringExt as _;

use super::*;
use telemetry::logs::LogLevel;

fn dump_of(config: Config) -> Dump {
    match config.subcommand {
        Some(Subcommand::Dump(dump)) => dump,
        other => panic!("{other:?}"),
    }
}

#[test]
fn debug_takes_what_says_where_and_what() {
    let dump = |line: &str| {
        let (config, warnings) = serve(line);
        assert_eq!(warnings, Vec::<String>::new(), "{line}");
        (config.data_dir.display().to_string(), dump_of(config))
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
    assert!(matches!(config.storage, Storage::Tikv(_)) && config.log.level == LogLevel::Warn);
    assert_eq!(dump_of(config).what, Dumped::Manifest);
    assert_eq!(serve("debug dump-log --log-level info").0.log.level, LogLevel::Info);
    assert_eq!(serve("--data-dir d").0.subcommand, None);
}

#[test]
fn prefix_of_a_dump_is_any_bytes() {
    for bytes in [&b"/\xff\xfe"[..], b"-dash", b"--limit", b""] {
        let value = OsString::from_vec(bytes.to_vec());
        let inline = |dashes: &str| {
            let mut arg = OsString::from(format!("{dashes}prefix="));
            arg.push(&value);
            vec![arg]
        };
        for prefix in [inline("-"), inline("--"), vec!["-prefix".into(), value.clone()]] {
            let args = ["debug", "dump-rows"].map(OsString::from).into_iter().chain(prefix);
            let Ok(Asked::Serve(config, _)) = parse(args, []) else {
                panic!("{value:?}")
            };
            assert_eq!(dump_of(*config).prefix, bytes);
        }
    }
}

#[test]
fn debug_refuses_what_it_would_ignore() {
    for (line, reason) in [
        ("debug", "debug needs one of dump-log, dump-rows, dump-manifest"),
        ("debug --limit 3", "debug takes no --limit"),
        ("debug dump-keys", "debug has no \"dump-keys\", only dump-log"),
        ("debug dump-log dump-rows", "debug dump-log takes no \"dump-rows\""),
        ("debug dump-log --values", "dump-log takes no --values"),
        ("debug dump-rows --values=maybe", "--values is not valid: \"maybe\""),
        ("debug dump-manifest --limit 3", "dump-manifest takes no --limit"),
        ("debug dump-rows --limit", "--limit needs a value"),
        ("debug dump-rows --limit many", "--limit is not valid: \"many\""),
        ("debug dump-rows --limit -1", "--limit is not valid: \"-1\""),
        ("debug dump-rows --data-dir", "--data-dir needs a value"),
        (
            "debug dump-rows --unsafe-no-fsync",
            "debug dump-rows takes no --unsafe-no-fsync",
        ),
        ("debug dump-rows --tikv-key-prefix p", "needs --storage tikv"),
        ("debug dump-rows --snapshot", "debug dump-rows takes no --snapshot"),
        ("dump-log", "kubebrain has no \"dump-log\", only wipe, debug"),
        ("--data-dir d debug dump-log", "\"debug\" is not a valid flag"),
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
fn help_of_a_dump_names_its_options_and_flags() {
    let dumps = ["dump-log", "dump-rows", "dump-manifest"];
    for line in ["debug --help", "debug -h", "help debug"] {
        help_has(line, &dumps);
    }
    for line in ["debug dump-rows -h", "debug dump-rows -help", "help debug dump-rows"] {
        help_has(
            line,
            &[
                "--prefix",
                "--limit",
                "--values",
                "--tikv-pd-endpoints",
                "--data-dir",
                "$TMPDIR",
            ],
        );
        help_has(line, &["[default: embedded]", "[default: warn]"]);
    }
}
