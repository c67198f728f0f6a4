//! Loading of certificates, and the errors of those that do not load.

use std::process::Command;

use super::*;

#[test]
fn bad_files_are_named_in_one_line() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let check = |dir: &Dir, options: &TlsOptions, file: &str, reason: &str| {
        let error = refused(options);
        assert!(
            error.starts_with(&dir.path().join(file).display().to_string()) && error.contains(reason),
            "{error}"
        );
    };
    let dir = Dir::new(&ca.server(), &ca.pem);
    let with = |cert: &str, key: &str| TlsOptions {
        pair: Some((dir.path().join(cert), dir.path().join(key))),
        ..TlsOptions::default()
    };
    check(&dir, &with("none", "tls.key"), "none", "cannot be read");
    check(&dir, &with("tls.crt", "none"), "none", "cannot be read");
    check(&dir, &with("tls.key", "tls.key"), "tls.key", "no certificate in PEM");
    check(&dir, &with("tls.crt", "tls.crt"), "tls.crt", "no private key in PEM");
    check(
        &dir,
        &with("ca.crt", "tls.key"),
        "tls.key",
        "does not belong to the certificate",
    );
    fs::write(dir.path().join("ca.crt"), "nothing").unwrap();
    check(&dir, &dir.mutual(), "ca.crt", "no certificate in PEM");
    fs::write(
        dir.path().join("ca.crt"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
    )
    .unwrap();
    check(&dir, &dir.mutual(), "ca.crt", "certificate 1 of the file is malformed");
    let stranger = Dir::new(&other.server(), &ca.pem);
    let with = TlsOptions {
        pair: Some((dir.path().join("tls.crt"), stranger.path().join("tls.key"))),
        ..TlsOptions::default()
    };
    assert!(refused(&with).contains("does not belong to the certificate"));
}

/// A server that does not start serves no clients.
#[test]
fn certificates_of_other_times_are_loaded_and_replaced_by_any_but_never_replace_a_valid_one() {
    let ca = Ca::new("ca");
    let (expired, early) = (ca.leaf("s", true, -10, -1), ca.leaf("s", true, 1, 10));
    for leaf in [&expired, &early] {
        let dir = Dir::new(leaf, &ca.pem);
        let tls = ServerTls::load(&dir.mutual(), &POLICY).unwrap();
        let in_use = tls.in_use();
        assert!(!(in_use.not_before..=in_use.not_after).contains(&now()));
        dir.write(&early, &ca.pem);
        assert!(tls.reload().is_ok());
        dir.write(&ca.server(), &ca.pem);
        assert_eq!(tls.reload(), Ok(true));
        for (leaf, reason) in [
            (&expired, "the certificate expired at"),
            (&early, "is not valid before"),
        ] {
            dir.write(leaf, &ca.pem);
            assert!(tls.reload().is_err_and(|error| error.to_string().contains(reason)));
        }
        assert!(shake(&tls, &ca.pem, Some(&ca.client("c"))).is_ok());
    }
}

#[test]
fn versions_and_suites_follow_the_policy() {
    let ca = Ca::new("ca");
    let dir = Dir::new(&ca.server(), &ca.pem);
    let load = |min, max, suites: &[&str]| {
        let cipher_suites = suites.iter().map(ToString::to_string).collect();
        ServerTls::load(
            &dir.server_only(),
            &TlsPolicy {
                min,
                max,
                cipher_suites,
            },
        )
    };
    let version = |tls: ServerTls| shake(&tls, &ca.pem, None).unwrap();
    let (t12, t13) = (TlsVersion::Tls12, TlsVersion::Tls13);
    assert_eq!(version(load(t12, t12, &[]).unwrap()), rustls::ProtocolVersion::TLSv1_2);
    assert_eq!(version(load(t13, t13, &[]).unwrap()), rustls::ProtocolVersion::TLSv1_3);
    let chacha = load(
        t12,
        t12,
        &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_RSA_WITH_AES_128_CBC_SHA"],
    )
    .unwrap();
    assert_eq!(chacha.skipped_suites(), vec!["TLS_RSA_WITH_AES_128_CBC_SHA"]);
    assert_eq!(version(chacha), rustls::ProtocolVersion::TLSv1_2);
    let rsa_only = load(t12, t12, &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).unwrap();
    assert!(shake(&rsa_only, &ca.pem, None).is_err());
    assert!(load(t12, t13, &["NO_SUCH"]).is_err_and(|error| error.to_string().contains("NO_SUCH")));
    assert!(load(t12, t12, &["TLS_RSA_WITH_AES_128_CBC_SHA"]).is_err());
}

#[test]
fn keys_load_in_every_form_that_openssl_writes() {
    let dir = TempDir::new().unwrap();
    let openssl = |args: &str| {
        let output = Command::new("openssl")
            .current_dir(dir.path())
            .args(args.split(' '))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    openssl("genrsa -traditional -out rsa1.key 2048");
    openssl("pkcs8 -topk8 -nocrypt -in rsa1.key -out rsa8.key");
    openssl("ecparam -name prime256v1 -genkey -out sec1.key");
    openssl("pkcs8 -topk8 -nocrypt -in sec1.key -out ec8.key");
    openssl("genpkey -algorithm ed25519 -out ed.key");
    for (file, label) in [
        ("rsa1", "RSA PRIVATE"),
        ("rsa8", "BEGIN PRIVATE"),
        ("sec1", "EC PRIVATE"),
        ("ec8", "BEGIN PRIVATE"),
        ("ed", "BEGIN PRIVATE"),
    ] {
        let key = dir.path().join(format!("{file}.key"));
        assert!(fs::read_to_string(&key).unwrap().contains(label), "{file}");
        openssl(&format!(
            "req -x509 -new -key {file}.key -subj /CN=brain.example -addext subjectAltName=DNS:brain.example -days 2 -out {file}.crt"
        ));
        let options = TlsOptions {
            pair: Some((dir.path().join(format!("{file}.crt")), key)),
            ..TlsOptions::default()
        };
        assert!(ServerTls::load(&options, &POLICY).is_ok(), "{file}");
    }
    openssl("genrsa -aes128 -passout pass:secret -out locked.key 2048");
    let locked = TlsOptions {
        pair: Some((dir.path().join("rsa1.crt"), dir.path().join("locked.key"))),
        ..TlsOptions::default()
    };
    assert!(refused(&locked).contains("not encrypted"));
}
