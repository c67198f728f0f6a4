//! The options of TLS, as flags give them.

use std::path::PathBuf;

/// Certificates of one kind of listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file of the certificate and its chain, and PEM file of its key.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// PEM files of the certificate and key presented when dialling, if different.
    pub dial_pair: Option<(PathBuf, PathBuf)>,
    /// PEM file of the CAs that must have signed clients' certificates; without it none are required.
    pub trusted_ca: Option<PathBuf>,
    /// True if servers are trusted when dialling by the CAs that the system trusts, unless `trusted_ca` names others.
    pub system_roots: bool,
    /// PEM or DER file of revoked certificates.
    pub crl: Option<PathBuf>,
    /// A certificate needs one of these SAN host names, if there are any.
    pub allowed_hostnames: Vec<String>,
    /// A certificate needs one of these common names, if there are any.
    pub allowed_common_names: Vec<String>,
    /// The certificate that the member makes itself, and writes into the files of the pair; none if it is given one.
    pub self_signed: Option<SelfSigned>,
}

/// A certificate that a member makes for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfSigned {
    /// Its host names and IPs.
    pub hosts: Vec<String>,
    /// The years for which it is valid.
    pub years: u32,
}

/// The versions and cipher suites of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Oldest version.
    pub min: TlsVersion,
    /// Newest version.
    pub max: TlsVersion,
    /// Suites of TLS 1.2 by their Go names; empty means all.
    pub cipher_suites: Vec<String>,
}

impl Default for TlsPolicy {
    fn default() -> Self {
        Self {
            min: TlsVersion::Tls12,
            max: TlsVersion::Tls13,
            cipher_suites: Vec::new(),
        }
    }
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}
