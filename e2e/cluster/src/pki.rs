//! Certificates of one cluster: an authority, and one key pair per user of the API server.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use time::{Duration, OffsetDateTime};

use crate::cluster_dir::ClusterDir;

/// Long enough for a demo that is left running, short enough to be no treasure.
const CERTIFICATE_VALIDITY: Duration = Duration::days(30);

/// A certificate authority with its files in a cluster's `pki` directory.
pub struct Authority {
    home: ClusterDir,
    issuer: Issuer<'static, KeyPair>,
}

/// The subject of a certificate.
pub struct CertificateSubject<'a> {
    /// The files' name.
    pub file: &'a str,
    /// The name that Kubernetes takes as the user.
    pub user: &'a str,
    /// The name that Kubernetes takes as the user's group.
    pub group: Option<&'a str>,
    /// Names and addresses it may serve under.
    pub serves: &'a [&'a str],
}

impl Authority {
    /// Makes one, and writes `pki/<name>.crt`.
    ///
    /// # Errors
    ///
    /// No key can be made, or no file written.
    pub fn create(home: &ClusterDir, name: &str) -> anyhow::Result<Self> {
        let mut params = params(&[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().context("make the authority's key")?;
        let certificate = params.self_signed(&key).context("sign the authority's certificate")?;
        home.write(&format!("pki/{name}.crt"), certificate.pem())?;
        Ok(Self {
            home: home.clone(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Writes `pki/<file>.crt` and `pki/<file>.key`.
    ///
    /// # Errors
    ///
    /// No key can be made, or no file written.
    pub fn issue(&self, subject: &CertificateSubject<'_>) -> anyhow::Result<()> {
        let mut params = params(subject.serves).with_context(|| format!("names of {}", subject.file))?;
        params.distinguished_name.push(DnType::CommonName, subject.user);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().with_context(|| format!("make the key of {}", subject.file))?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign {}", subject.file))?;
        self.home.write(&format!("pki/{}.crt", subject.file), signed.pem())?;
        write_key(&self.home, subject.file, &key)
    }
}

/// Writes the key pair that service account tokens are signed with: `pki/<name>.key` and `pki/<name>.pub`.
///
/// # Errors
///
/// No key can be made, or no file written.
pub fn service_accounts(home: &ClusterDir, name: &str) -> anyhow::Result<()> {
    let key = KeyPair::generate().context("make the key of service accounts")?;
    home.write(&format!("pki/{name}.pub"), key.public_key_pem())?;
    write_key(home, name, &key)
}

fn params(serves: &[&str]) -> anyhow::Result<CertificateParams> {
    let names: Vec<String> = serves.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - Duration::hours(1), now + CERTIFICATE_VALIDITY);
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

fn write_key(home: &ClusterDir, name: &str, key: &KeyPair) -> anyhow::Result<()> {
    let path: PathBuf = home.path(format!("pki/{name}.key"));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("create {}", path.display()))?;
    file.write_all(key.serialize_pem().as_bytes())
        .with_context(|| format!("write {}", path.display()))
}
