use std::path::PathBuf;

use super::*;

/// Writes files, and returns their paths.
fn files(dir: &Path, contents: &[(&str, &str)]) -> Vec<PathBuf> {
    let write = |(name, text): &(&str, &str)| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    contents.iter().map(write).collect()
}

fn options(method: SignMethod, private: Option<&Path>, public: Option<&Path>) -> JwtOptions {
    JwtOptions {
        method: Some(method),
        public_key: public.map(Path::to_owned),
        private_key: private.map(Path::to_owned),
        ttl: Duration::from_secs(60),
    }
}

fn somebody() -> Identity {
    Identity {
        name: "somebody".to_owned(),
        revision: 7,
    }
}

#[test]
fn token_is_verified_by_its_key_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (method, algorithm) in [
        (SignMethod::Es256, &rcgen::PKCS_ECDSA_P256_SHA256),
        (SignMethod::Es384, &rcgen::PKCS_ECDSA_P384_SHA384),
        (SignMethod::EdDsa, &rcgen::PKCS_ED25519),
    ] {
        let pair = || rcgen::KeyPair::generate_for(algorithm).unwrap();
        let (pair, other) = (pair(), pair());
        let paths = files(
            dir.path(),
            &[
                ("private", &pair.serialize_pem()),
                ("public", &pair.public_key_pem()),
                ("other", &other.public_key_pem()),
            ],
        );
        let both = Jwt::new(&options(method, Some(&paths[0]), Some(&paths[1]))).unwrap();
        let token = both.sign(&somebody()).unwrap();
        let public = Jwt::new(&options(method, None, Some(&paths[1]))).unwrap();
        assert_eq!(public.verify(&token), Some(somebody()));
        assert_eq!(both.verify(&token), Some(somebody()));
        assert_eq!(public.sign(&somebody()), Err(Error::TokenVerifyOnly));
        let another = Jwt::new(&options(method, None, Some(&paths[2]))).unwrap();
        assert_eq!(another.verify(&token), None);
        let mismatch = Jwt::new(&options(method, Some(&paths[0]), Some(&paths[2]))).unwrap_err();
        assert_eq!(mismatch.to_string(), "auth: public and private keys don't match");
    }
}

fn shared_secret(dir: &Path, ttl: Duration) -> Jwt {
    let paths = files(dir, &[("secret", "not a PEM file")]);
    Jwt::new(&JwtOptions {
        ttl,
        ..options(SignMethod::Hs256, Some(&paths[0]), None)
    })
    .unwrap()
}

#[test]
fn token_that_was_changed_or_has_expired_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let jwt = shared_secret(dir.path(), Duration::from_secs(60));
    let token = jwt.sign(&somebody()).unwrap();
    assert_eq!(jwt.verify(&token), Some(somebody()));
    let parts: Vec<&str> = token.split('.').collect();
    let claims = URL_SAFE_NO_PAD.encode(json!({"exp": 1u64 << 40, "revision": 7, "username": "root"}).to_string());
    assert_eq!(jwt.verify(&[parts[0], &claims, parts[2]].join(".")), None);
    let unsigned = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","typ":"JWT"}"#);
    assert_eq!(jwt.verify(&[&unsigned, parts[1], ""].join(".")), None);
    for broken in ["", ".", "..", "a.b.c", "token.7"] {
        assert_eq!(jwt.verify(broken), None, "{broken:?}");
    }
    let expired = shared_secret(dir.path(), Duration::ZERO);
    assert_eq!(expired.verify(&expired.sign(&somebody()).unwrap()), None);
}

/// Keys as openssl writes them: `ecparam -genkey -name prime256v1 -noout`, `genrsa -traditional 2048`, `rsa -pubout`.
#[test]
fn keys_in_the_forms_of_openssl_are_read() {
    use SignMethod::{Es256, Es512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
    let dir = tempfile::tempdir().unwrap();
    let paths = files(
        dir.path(),
        &[
            ("p256", include_str!("tests/ec-sec1.pem")),
            ("p521", include_str!("tests/ec-521-sec1.pem")),
            ("rsa", include_str!("tests/rsa-pkcs1.pem")),
            ("public", include_str!("tests/rsa-public.pem")),
            ("short", include_str!("tests/rsa-1024.pem")),
            ("short-public", include_str!("tests/rsa-1024-public.pem")),
            ("long", include_str!("tests/rsa-4160.pem")),
        ],
    );
    let rsa = [Rs256, Rs384, Rs512, Ps256, Ps384, Ps512];
    let pairs = rsa.map(|method| (method, &paths[2], Some(&paths[3])));
    // A signature of PS512 does not fit into 1024 bits.
    let short = rsa[..5].iter().map(|method| (*method, &paths[4], Some(&paths[5])));
    let alone = [
        (Es256, &paths[0], None),
        (Es512, &paths[1], None),
        (Rs512, &paths[6], None),
    ];
    for (method, private, public) in pairs.into_iter().chain(short).chain(alone) {
        let jwt = Jwt::new(&options(method, Some(private), public.map(|path| &**path))).unwrap();
        // Numbers of different lengths are in signatures of elliptic curves.
        for _ in 0..20 {
            let token = jwt.sign(&somebody()).unwrap();
            assert_eq!(jwt.verify(&token), Some(somebody()), "{method:?}");
            if let Some(public) = public {
                let public = Jwt::new(&options(method, None, Some(public))).unwrap();
                assert_eq!(public.verify(&token), Some(somebody()), "{method:?}");
            }
        }
    }
}

/// They would verify no token.
#[test]
fn key_that_does_not_fit_is_refused_at_the_start() {
    use SignMethod::{EdDsa, Es256, Es384, Es512, Ps512, Rs256};
    let dir = tempfile::tempdir().unwrap();
    let p256 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let paths = files(
        dir.path(),
        &[
            ("p256", include_str!("tests/ec-sec1.pem")),
            ("p256-public", &p256.public_key_pem()),
            ("rsa-public", include_str!("tests/rsa-public.pem")),
            ("short", include_str!("tests/rsa-1024.pem")),
            ("too-short", include_str!("tests/rsa-512-public.pem")),
            ("text", "no PEM file"),
        ],
    );
    let refused = |method, private: Option<&PathBuf>, public: Option<&PathBuf>| {
        let options = options(method, private.map(|path| &**path), public.map(|path| &**path));
        format!("{:#}", Jwt::new(&options).unwrap_err())
    };
    for (method, public) in [(Rs256, 1), (Es384, 1), (Es512, 1), (EdDsa, 1), (Es256, 2), (EdDsa, 2)] {
        let name = method.name();
        let said = refused(method, None, Some(&paths[public]));
        assert_eq!(said, format!("the public key is not one for {name}"));
    }
    let said = refused(Rs256, None, Some(&paths[4]));
    assert_eq!(
        said,
        "the public key has 512 bits: keys of 1024 to 8192 bits are supported"
    );
    assert_eq!(
        refused(Rs256, Some(&paths[0]), None),
        "the private key is not one for RS256"
    );
    let said = refused(Ps512, Some(&paths[3]), None);
    assert!(said.starts_with("the private key does not sign: "), "{said}");
    assert!(refused(Rs256, None, Some(&paths[5])).starts_with("read the public key: "));
    assert!(refused(Rs256, Some(&dir.path().join("nothing")), None).starts_with("read "));
}

#[test]
fn short_secret_is_warned_of() {
    for (method, least) in [
        (SignMethod::Hs256, 32),
        (SignMethod::Hs384, 48),
        (SignMethod::Hs512, 64),
    ] {
        assert_eq!(weakness(method, &vec![b'x'; least]), None);
        for len in [0, 1, least - 1] {
            let warning = weakness(method, &vec![b'x'; len]).unwrap();
            assert!(warning.contains(&format!("has {len} bytes")), "{warning}");
        }
    }
    assert_eq!(weakness(SignMethod::Rs256, b"x"), None);
}
