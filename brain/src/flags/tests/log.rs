use super::*;
use telemetry::logs::LogRotation;

const ROTATED: &str = "--enable-log-rotation --log-outputs=stderr,/logs/brain.log";

#[test]
fn log_rotation_is_that_of_lumberjack() {
    assert_eq!(serve("").0.log.rotation, None);
    let default = LogRotation {
        max_bytes: 100 << 20,
        max_age: None,
        max_backups: 0,
        local_time: false,
        compress: false,
    };
    let json = |json: &str| serve(&format!("{ROTATED} --log-rotation-config-json={json}"));
    assert_eq!(serve(ROTATED).0.log.rotation, Some(default));
    assert_eq!(json("{\"maxsize\":0,\"maxage\":0}").0.log.rotation, Some(default));
    let (config, warnings) = json(r#"{"maxsize":7,"MaxAge":2,"maxbackups":3,"localtime":true,"compress":true}"#);
    let given = LogRotation {
        max_bytes: 7 << 20,
        max_age: Some(Duration::from_secs(2 * 24 * 3600)),
        max_backups: 3,
        local_time: true,
        compress: true,
    };
    assert_eq!(
        (config.log.rotation, warnings.len()),
        (Some(given), serve(ROTATED).1.len())
    );
    let (_, warnings) = json(r#"{"filename":"x"}"#);
    assert!(
        warnings.iter().any(|warning| warning.contains("\"filename\"")),
        "{warnings:?}"
    );
}

#[test]
fn log_rotation_that_cannot_be_is_refused() {
    for (line, reason) in [
        ("--enable-log-rotation", "requires a single file path"),
        ("--enable-log-rotation --log-outputs=a,b", "requires a single file path"),
        (
            &format!("{ROTATED} --log-rotation-config-json={{"),
            "--log-rotation-config-json is not valid",
        ),
        (
            &format!("{ROTATED} --log-rotation-config-json={{\"maxsize\":-1}}"),
            "maxsize is not a number in range",
        ),
        (
            &format!("{ROTATED} --log-rotation-config-json={{\"compress\":1}}"),
            "compress is neither true nor false",
        ),
    ] {
        let error = refused(line);
        assert!(error.contains(reason), "{line}: {error}");
    }
}
