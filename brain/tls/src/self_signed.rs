//! Certificates that a member makes for itself: `--auto-tls` and `--peer-auto-tls`.
//!
//! They encrypt, but clients that have not seen them before cannot verify whose they are.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use time::{Duration, OffsetDateTime};
use tracing::warn;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{TlsError, bad, now};
use crate::SelfSigned;

/// The file beside a certificate that a process locks while it makes the certificate.
const LOCK_FILE: &str = "lock";

/// Makes a certificate and its key, unless both files exist and the certificate has not expired. Of processes that start at the same time
/// one makes them.
pub(super) fn ensure((cert, key): &(PathBuf, PathBuf), wanted: &SelfSigned) -> Result<(), TlsError> {
    // The data directory is not locked yet, nor is it at all on TiKV.
    let _locked = lock(cert).map_err(|error| bad(cert, format!("its directory cannot be locked: {error}")))?;
    if key.exists() && is_valid(cert)? {
        return Ok(());
    }
    // Without its key it is of no use, and it must not be taken for that of the next key.
    remove(cert).map_err(|error| bad(cert, format!("cannot be removed: {error}")))?;
    let not_after = OffsetDateTime::now_utc() + Duration::days(365 * i64::from(wanted.years));
    let made = make(wanted, not_after).map_err(|error| bad(cert, format!("cannot create a certificate: {error}")))?;
    // The certificate is written last, so a pair is complete once it exists.
    for (path, mode, pem) in [(key, 0o600, &made.key), (cert, 0o644, &made.cert)] {
        write(path, mode, pem).map_err(|error| bad(path, format!("cannot be written: {error}")))?;
    }
    warn!(path = %cert.display(), expires = %not_after.date(), "automatically generate certificates");
    Ok(())
}

/// A certificate and its key, in PEM.
struct GeneratedPair {
    cert: String,
    key: String,
}

fn make(wanted: &SelfSigned, not_after: OffsetDateTime) -> Result<GeneratedPair, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.serial_number = Some(SerialNumber::from(rand::random::<u64>() >> 1));
    // Clocks of clients may be behind.
    params.not_before = OffsetDateTime::now_utc() - Duration::minutes(5);
    params.not_after = not_after;
    // Its own CA, as etcd has it, so that clients can be given it as one.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    for host in &wanted.hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(host.as_str().try_into()?),
        });
    }
    let key = KeyPair::generate()?;
    Ok(GeneratedPair {
        cert: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

/// Returns false if the file does not exist, or if its certificate has expired, or counts only from a later time on. Fails if it is damaged.
fn is_valid(path: &Path) -> Result<bool, TlsError> {
    let pem = match fs::read(path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(bad(path, format!("cannot be read: {error}"))),
    };
    let der = CertificateDer::from_pem_slice(&pem).map_err(|error| bad(path, error))?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|error| bad(path, error))?;
    let validity = certificate.validity();
    Ok((validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now()))
}

/// Waits for the lock of the directory of a file, which is made if there is none; dropping the file unlocks it.
fn lock(path: &Path) -> io::Result<fs::File> {
    let dir = directory(path);
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut options = OpenOptions::new();
    let file = options
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))?;
    file.lock()?;
    Ok(file)
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Removes a file, if there is one.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::File::open(directory(path))?.sync_all(),
    }
}

/// Writes a file as a whole, with its directory.
fn write(path: &Path, mode: u32, content: &str) -> io::Result<()> {
    let dir = directory(path);
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(dir)?.sync_all()
}

/// Accepts the certificate of any server that has its key. Members then prove their identity to each other inside TLS.
#[derive(Debug)]
pub(super) struct AnyServer(pub(super) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    fn pair(dir: &TempDir) -> (PathBuf, PathBuf) {
        let dir = dir.path().join("data/fixtures/client");
        (dir.join("cert.pem"), dir.join("key.pem"))
    }

    fn wanted() -> SelfSigned {
        SelfSigned {
            hosts: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
            years: 2,
        }
    }

    #[test]
    fn certificate_is_made_once_for_the_hosts_and_years_wanted() {
        let dir = TempDir::new().unwrap();
        let pair = pair(&dir);
        ensure(&pair, &wanted()).unwrap();
        let pem = fs::read(&pair.0).unwrap();
        let der = CertificateDer::from_pem_slice(&pem).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let names = certificate.subject_alternative_name().unwrap().unwrap();
        let names: Vec<_> = names.value.general_names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["IPAddress(7f:00:00:01)", "DNSName(localhost)"]);
        let days = certificate.validity().time_to_expiration().unwrap().whole_days();
        assert!((728..=730).contains(&days), "{days}");
        assert_eq!(certificate.subject().to_string(), "O=etcd");
        assert_eq!(fs::metadata(&pair.1).unwrap().permissions().mode() & 0o777, 0o600);
        ensure(&pair, &wanted()).unwrap();
        assert_eq!(fs::read(&pair.0).unwrap(), pem);
        fs::remove_file(&pair.1).unwrap();
        ensure(&pair, &wanted()).unwrap();
        assert!(fs::read(&pair.0).unwrap() != pem && pair.1.exists());
    }

    #[test]
    fn expired_certificate_is_replaced_and_a_damaged_one_refused() {
        let dir = TempDir::new().unwrap();
        let pair = pair(&dir);
        drop(lock(&pair.0).unwrap());
        let yesterday = OffsetDateTime::now_utc() - Duration::days(1);
        let old = make(&wanted(), yesterday).unwrap();
        write(&pair.0, 0o644, &old.cert).unwrap();
        write(&pair.1, 0o600, &old.key).unwrap();
        ensure(&pair, &wanted()).unwrap();
        assert!(is_valid(&pair.0).unwrap());
        fs::write(&pair.0, "damaged").unwrap();
        let refused = ensure(&pair, &wanted()).unwrap_err().to_string();
        assert!(refused.contains("cert.pem"), "{refused}");
    }

    /// The certificate and the key fit together.
    fn check_pair((cert, key): &(PathBuf, PathBuf)) {
        let cert = fs::read(cert).unwrap();
        let der = CertificateDer::from_pem_slice(&cert).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let key = KeyPair::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
        assert_eq!(
            certificate.public_key().subject_public_key.data.as_ref(),
            key.public_key_raw()
        );
    }

    #[test]
    fn processes_that_start_together_make_one_pair() {
        let dir = TempDir::new().unwrap();
        let pair = pair(&dir);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    ensure(&pair, &wanted()).unwrap();
                    check_pair(&pair);
                });
            }
        });
        let first = fs::read(&pair.0).unwrap();
        ensure(&pair, &wanted()).unwrap();
        assert_eq!(fs::read(&pair.0).unwrap(), first);
    }

    #[test]
    fn pair_that_was_replaced_in_part_is_made_again() {
        let dir = TempDir::new().unwrap();
        let pair = pair(&dir);
        ensure(&pair, &wanted()).unwrap();
        fs::remove_file(&pair.1).unwrap();
        // The key cannot be written.
        fs::create_dir(pair.1.with_extension("new")).unwrap();
        ensure(&pair, &wanted()).unwrap_err();
        assert!(!pair.0.exists(), "it has no key");
        fs::remove_dir(pair.1.with_extension("new")).unwrap();
        ensure(&pair, &wanted()).unwrap();
        check_pair(&pair);
    }
}
