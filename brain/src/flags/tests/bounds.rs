use super::super::values::Values;
use super::*;

/// Flags that a value at its bound needs beside it.
fn beside(flag: &str) -> &'static str {
    match flag {
        "election-timeout" => "--heartbeat-interval=1",
        "heartbeat-interval" => "--election-timeout=50000",
        "max-inflight-bytes" => "--max-request-bytes=1572864",
        "tikv-gc-window" | "tikv-gc-interval" | "election" => "--storage=tikv --tikv-pd-endpoints=pd:2379",
        "self-signed-cert-validity" => "--auto-tls=false",
        "tls-min-version" => "--tls-max-version=TLS1.3",
        "initial-cluster-state" => "--name=default",
        _ => "",
    }
}

/// Returns the answer to one flag.
fn give(flag: &str, value: &str) -> Result<Asked, String> {
    let line = format!("--{flag}={value} {}", beside(flag));
    ask(&line, &[])
}

/// Returns true if a value is refused, or corrected with a warning, or keeps a store from being begun.
fn is_faulty(flag: &str, value: &str) -> bool {
    match give(flag, value) {
        Ok(Asked::Serve(config, warnings)) => !warnings.is_empty() || !config.bootstrap.faults().is_empty(),
        Ok(Asked::Print(_)) => false,
        Err(_) => true,
    }
}

/// Checks that the table of values, which other programs go by, refuses nothing that the flags take, and that the flags refuse or correct
/// what the table does not have.
#[test]
fn values_of_flags_are_those_of_the_table() {
    let works = FLAGS
        .iter()
        .filter(|flag| matches!(flag.treatment, Treatment::Works(_)));
    for flag in works.filter(|flag| flag.name != "version") {
        let (mut good, mut bad) = (Vec::new(), vec!["x-y".to_owned()]);
        match Values::of(flag) {
            Values::Text => continue,
            Values::Bool => good.extend(["true", "0"].map(str::to_owned)),
            Values::Number(least, most) => {
                good.extend([least, most].map(|bound| bound.to_string()));
                bad.extend([least - 1, most + 1].map(|bound| bound.to_string()));
            }
            Values::Duration(least, most) => {
                good.extend([least, most].map(|bound| format!("{bound}ns")));
                bad.push(format!("{}ns", u128::from(most) + 1));
                bad.extend((least > 0).then(|| format!("{}ns", least - 1)));
            }
            Values::OneOf(words) => good.extend(words.iter().map(|word| (*word).to_owned())),
        }
        // Nothing is said of what is refused in company with other flags.
        let alone = ![
            "max-inflight-bytes",
            "storage",
            "election",
            "enable-log-rotation",
            "auto-tls",
        ]
        .contains(&flag.name)
            && !flag.name.starts_with("peer-auto-tls")
            && !flag.name.ends_with("cert-auth");
        for value in good.iter().filter(|_| alone) {
            let given = give(flag.name, value);
            assert!(given.is_ok(), "--{}={value}: {given:?}", flag.name);
        }
        for value in bad {
            let tracing = flag.name == "distributed-tracing-sampling-rate" && value != "x-y";
            assert!(tracing || is_faulty(flag.name, &value), "--{}={value}", flag.name);
        }
    }
}
