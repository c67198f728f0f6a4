use super::*;
use telemetry::otel::TracingOptions;

const ENABLED: &str = "--enable-distributed-tracing";

#[test]
fn tracing_is_off_unless_enabled_and_its_defaults_are_etcds() {
    assert_eq!(serve("").0.tracing, None);
    // As in etcd, options are not checked then.
    let ignored = "--distributed-tracing-sampling-rate=-1 --distributed-tracing-address=nowhere";
    assert_eq!(serve(ignored).0.tracing, None);
    let default = TracingOptions {
        collector: "http://localhost:4317".parse().unwrap(),
        service_name: "etcd".to_owned(),
        instance_id: None,
        sampling_rate: 0,
    };
    assert_eq!(serve(ENABLED).0.tracing, Some(default));
}

#[test]
fn tracing_options_are_taken_by_new_and_old_names() {
    let given = TracingOptions {
        collector: "http://10.0.0.1:4318".parse().unwrap(),
        service_name: "brains".to_owned(),
        instance_id: Some("a".to_owned()),
        sampling_rate: 1_000_000,
    };
    for prefix in ["", "experimental-"] {
        let flag = |rest: &str| format!("--{prefix}distributed-tracing-{rest} ");
        let line = format!("--{prefix}enable-distributed-tracing ")
            + &flag("address=10.0.0.1:4318")
            + &flag("service-name=brains")
            + &flag("instance-id=a")
            + &flag("sampling-rate=1000000");
        let (config, warnings) = serve(&line);
        assert_eq!(config.tracing, Some(given.clone()), "{line}");
        assert!(!warnings.iter().any(|text| text.contains("no effect")), "{warnings:?}");
    }
}

#[test]
fn tracing_options_that_cannot_be_are_refused_in_etcds_words() {
    let not_valid = "distributed tracing configurition is not valid";
    for (flag, reason) in [
        (
            "sampling-rate=-1",
            format!("{not_valid}: (tracing sampling rate must be positive)"),
        ),
        (
            "sampling-rate=1000001",
            format!("{not_valid}: (tracing sampling rate must be less than 1000000)"),
        ),
        (
            "sampling-rate=half",
            "--distributed-tracing-sampling-rate is not valid: \"half\" is not a number in range".to_owned(),
        ),
        ("address=collector", "\"collector\" is not host:port".to_owned()),
        ("address=https://a:1", "\"https://a:1\" is not host:port".to_owned()),
        ("address=a:1/v1/traces", "\"a:1/v1/traces\" is not host:port".to_owned()),
    ] {
        let error = refused(&format!("{ENABLED} --distributed-tracing-{flag}"));
        assert!(error.contains(&reason), "{flag}: {error}");
    }
}
