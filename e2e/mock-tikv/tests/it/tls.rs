//! All ports use TLS, with certificates on both sides.

use std::path::{Path, PathBuf};

use mock_tikv::{MockTikv, Options, StartError, Tls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tikv_client::{Config, TransactionClient};

use crate::client::{get, insert};

/// A CA, and a certificate for this machine signed by it, as files in `directory`.
fn write_certificates(directory: &Path) -> Tls {
    std::fs::create_dir_all(directory).unwrap();
    let file = |name: &str, text: String| -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_certificate = ca.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    Tls {
        ca: file("ca.pem", ca_certificate.pem()),
        cert: file("cert.pem", leaf.pem()),
        key: file("key.pem", key.serialize_pem()),
    }
}

async fn connect(mock_tikv: &MockTikv, tls: &Tls) -> Result<TransactionClient, tikv_client::Error> {
    let pd = mock_tikv.pd();
    let config = Config::default().with_security(&tls.ca, &tls.cert, &tls.key);
    TransactionClient::new_with_config(vec![pd], config).await
}

#[tokio::test]
async fn clients_with_a_certificate_of_the_ca_are_served_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| write_certificates(&directory.path().join(name)));
    let options = Options {
        tls: Some(ours.clone()),
        advertised_host: Some("localhost".to_owned()),
        ..Options::default()
    };
    let mock_tikv = MockTikv::start(options).await.unwrap();
    let client = connect(&mock_tikv, &ours).await.unwrap();
    insert(&client, "a", "1").await.unwrap();
    assert_eq!(get(&client, "a").await.as_deref(), Some("1"));
    assert!(connect(&mock_tikv, &theirs).await.is_err());
    let stranger = Tls {
        ca: ours.ca.clone(),
        ..theirs
    };
    assert!(connect(&mock_tikv, &stranger).await.is_err());
    assert!(TransactionClient::new(vec![mock_tikv.pd()]).await.is_err());
}

#[tokio::test]
async fn unusable_certificates_are_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let tls = write_certificates(directory.path());
    let start = async |tls: Tls| {
        MockTikv::start(Options {
            tls: Some(tls),
            ..Options::default()
        })
        .await
        .unwrap_err()
    };
    let missing = directory.path().join("missing.pem");
    let error = start(Tls {
        cert: missing.clone(),
        ..tls.clone()
    })
    .await;
    assert!(
        matches!(&error, StartError::Credentials { path, .. } if *path == missing),
        "{error}"
    );
    let error = start(Tls {
        key: tls.ca.clone(),
        ..tls
    })
    .await;
    assert!(matches!(error, StartError::Tls(_)), "{error}");
}
