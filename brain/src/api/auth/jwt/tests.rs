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
    use SignMethod::{Es256, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
    let dir = tempfile::tempdir().unwrap();
    let paths = files(
        dir.path(),
        &[
            ("ec", include_str!("tests/ec-sec1.pem")),
            ("rsa", include_str!("tests/rsa-pkcs1.pem")),
            ("public", include_str!("tests/rsa-public.pem")),
        ],
    );
    let ec = Jwt::new(&options(Es256, Some(&paths[0]), None)).unwrap();
    assert_eq!(ec.verify(&ec.sign(&somebody()).unwrap()), Some(somebody()));
    for method in [Rs256, Rs384, Rs512, Ps256, Ps384, Ps512] {
        let jwt = Jwt::new(&options(method, Some(&paths[1]), Some(&paths[2]))).unwrap();
        let public = Jwt::new(&options(method, None, Some(&paths[2]))).unwrap();
        assert_eq!(
            public.verify(&jwt.sign(&somebody()).unwrap()),
            Some(somebody()),
            "{method:?}"
        );
    }
    let wrong = Jwt::new(&options(Rs256, Some(&paths[0]), None)).unwrap_err();
    assert_eq!(wrong.to_string(), "the private key is not one for RS256");
    assert!(Jwt::new(&options(Rs256, Some(&dir.path().join("nothing")), None)).is_err());
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
