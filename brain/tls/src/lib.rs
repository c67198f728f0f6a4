//! TLS, mainly of listeners: certificates and client CAs are reloaded from their files without a restart.
//!
//! Files are compared by content every few seconds, so it does not matter how they are replaced (in place, renamed, or by kubelet's
//! swap of `..data`). Invariant: the served configuration was always loaded as a whole; if new files do not load, the old
//! configuration stays. Connections keep the one that they began with.
//!
//! It must not know what is served over these connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tracing::warn;

pub use certificate::key_algorithm;
use certificate::{Validity, time};
pub use dial::{client_config, dial, refusal};
use files::TlsFiles;
pub use io::Io;
pub use keys::signing_key;
pub use options::{SelfSigned, TlsOptions, TlsPolicy, TlsVersion};
pub use reload::RELOAD_INTERVAL;
pub use verifier::{HandshakeFindings, observed};

pub mod algorithms;
mod allowed;
mod certificate;
mod chain;
mod config;
mod dial;
mod files;
mod io;
mod keys;
mod names;
mod options;
mod pem;
mod reload;
mod revoked;
mod self_signed;
mod verifier;

/// An error of certificates, in one line that names the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// The TLS of listeners that share their certificates.
#[derive(Debug)]
pub struct ServerTls {
    options: TlsOptions,
    policy: TlsPolicy,
    current: ArcSwap<LoadedTls>,
}

/// The result of loading one set of files.
#[derive(Debug)]
struct LoadedTls {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    in_use: InUse,
}

/// The certificate in use, for status reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InUse {
    /// SHA-256 in hex digits over the trusted CAs: their DER, sorted and joined; empty without any.
    pub trust_bundle: String,
    /// SHA-256 of the leaf's DER, in hex digits.
    pub fingerprint: String,
    /// The expiry of the leaf, in seconds since 1970.
    pub not_after: i64,
    /// The beginning of its validity, in seconds since 1970.
    pub not_before: i64,
}

impl InUse {
    fn validity(&self) -> Validity {
        Validity {
            not_before: self.not_before,
            not_after: self.not_after,
        }
    }
}

impl ServerTls {
    /// Loads the files, and makes them first if the member signs its certificate itself. Fails if a file is missing, cannot be parsed, or
    /// does not match. A certificate that is not valid now is loaded with a warning, as in etcd: a server that does not start serves no
    /// clients, and clients judge by their own clocks.
    pub fn load(options: &TlsOptions, policy: &TlsPolicy) -> Result<ServerTls, TlsError> {
        if let Some(wanted) = &options.self_signed {
            self_signed::ensure(pair(options)?, wanted)?;
        }
        let loaded = LoadedTls::from(TlsFiles::read(options)?, options, policy)?;
        if let Err(error) = check_dates(options, loaded.in_use.validity()) {
            warn!(%error, "clients that verify the certificate of this server refuse it");
        }
        Ok(ServerTls {
            options: options.clone(),
            policy: policy.clone(),
            current: ArcSwap::from_pointee(loaded),
        })
    }

    /// Returns the configuration for a new connection. If there are trusted CAs, clients need a certificate signed by them: etcd's
    /// rule, also for metrics.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// Returns when the certificate in use expires, in seconds since 1970.
    #[must_use]
    pub fn not_after(&self) -> i64 {
        self.current.load().in_use.not_after
    }

    /// Returns the certificates in use.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        self.current.load().in_use.clone()
    }

    /// Returns the suites in the policy that are not offered.
    #[must_use]
    pub fn skipped_suites(&self) -> Vec<String> {
        config::skipped_suites(&self.policy)
    }
}

impl LoadedTls {
    fn from(files: TlsFiles, options: &TlsOptions, policy: &TlsPolicy) -> Result<LoadedTls, TlsError> {
        let material = files.parse(options)?;
        for odd in &material.odd {
            warn!(%odd, "its serial numbers are refused anyway, as in etcd");
        }
        let in_use = InUse {
            trust_bundle: material.trust_bundle.clone(),
            fingerprint: material
                .pair
                .cert
                .first()
                .map(|leaf| files::digest([leaf]))
                .unwrap_or_default(),
            not_after: material.validity.not_after,
            not_before: material.validity.not_before,
        };
        Ok(LoadedTls {
            config: Arc::new(config::server(material, policy)?),
            in_use,
            files,
        })
    }
}

/// Checks that the certificate of a listener is valid now.
fn check_dates(options: &TlsOptions, validity: Validity) -> Result<(), TlsError> {
    let (path, _) = pair(options)?;
    let now = now();
    if now > validity.not_after {
        return Err(bad(
            path,
            format!("the certificate expired at {}", time(validity.not_after)),
        ));
    }
    if now < validity.not_before {
        let from = time(validity.not_before);
        return Err(bad(path, format!("the certificate is not valid before {from}")));
    }
    Ok(())
}

/// Returns the time by the clock of this machine, in seconds since 1970.
#[must_use]
pub fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn bad(path: &std::path::Path, what: impl std::fmt::Display) -> TlsError {
    TlsError(format!("{}: {what}", path.display()))
}

/// Returns the certificate and key that a listener needs.
fn pair(options: &TlsOptions) -> Result<&(PathBuf, PathBuf), TlsError> {
    let missing = || TlsError("TLS needs a certificate and a key".to_owned());
    options.pair.as_ref().ok_or_else(missing)
}

#[cfg(test)]
mod tests;
