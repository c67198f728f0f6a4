//! Chains from a certificate to a trusted one, by the rules of Go's `ParsedCertificate.Verify`, which are those of etcd: a certificate that is
//! itself trusted needs no CA; certificates of version 1 and `anyExtendedKeyUsage` count; a CA of version 3 needs basicConstraints.
//!
//! Policies are not evaluated: a CA that demands one is refused.

use std::collections::HashMap;

use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::algorithms::BadSignature;
use super::certificate::{CertificateUsage, ParsedCertificate, Validity, time};
use super::names;

/// The signatures that are verified for one certificate at most, by their [cost](super::algorithms::PublicKey::cost): chains of strangers must not cost more.
const MAX_SIGNATURES: usize = 100;

/// The trusted certificates.
#[derive(Debug, Default)]
pub(super) struct TrustedRoots {
    certificates: Vec<CertificateDer<'static>>,
    by_subject: HashMap<Vec<u8>, Vec<usize>>,
}

impl TrustedRoots {
    /// Adds a certificate. Fails if it does not parse.
    pub(super) fn add(&mut self, der: CertificateDer<'static>) -> Result<(), String> {
        let subject = ParsedCertificate::parse(&der)?.subject().to_vec();
        if !self.contains(&subject, &der) {
            self.by_subject
                .entry(subject)
                .or_default()
                .push(self.certificates.len());
            self.certificates.push(der);
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// Returns the subjects, by which clients choose the certificate that they show.
    pub(super) fn subjects(&self) -> Vec<DistinguishedName> {
        self.by_subject.keys().cloned().map(DistinguishedName::from).collect()
    }

    fn named(&self, subject: &[u8]) -> impl Iterator<Item = &CertificateDer<'static>> {
        let named = self.by_subject.get(subject).into_iter().flatten();
        named.filter_map(|index| self.certificates.get(*index))
    }

    fn contains(&self, subject: &[u8], der: &[u8]) -> bool {
        self.named(subject).any(|root| root.as_ref() == der)
    }
}

/// The reason why a certificate is refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum CertificateRefusal {
    #[error("{0}")]
    Malformed(String),
    #[error("the certificate of {name} has a critical extension that is not understood")]
    UnhandledExtension { name: String },
    #[error("the certificate of {name} expired at {}", time(*.at))]
    Expired { name: String, at: i64 },
    #[error("the certificate of {name} is not valid before {}", time(*.at))]
    NotValidYet { name: String, at: i64 },
    #[error("the certificate of {name} is signed by {issuer}, which is not among the trusted CAs{hint}")]
    UnknownIssuer { name: String, issuer: String, hint: String },
    #[error("the extended key usages of {name} or of its CAs do not allow it as that of a {usage}")]
    WrongUsage { name: String, usage: &'static str },
    #[error("{0}")]
    Name(String),
    #[error("the certificate of {name} is revoked")]
    Revoked { name: String },
}

/// The text, too: rustls shows errors of verifiers in this form.
impl std::fmt::Debug for CertificateRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// The rules for one certificate.
pub(super) struct ChainRules<'a> {
    pub(super) roots: &'a TrustedRoots,
    pub(super) usage: CertificateUsage,
    pub(super) now: UnixTime,
}

impl ChainRules<'_> {
    /// Verifies a certificate with those that were sent along. Returns when the first one of the chain that was found expires, in seconds
    /// since 1970.
    pub(super) fn verify<'c>(
        &self,
        leaf: &'c ParsedCertificate<'c>,
        sent: &'c [ParsedCertificate<'c>],
    ) -> Result<i64, CertificateRefusal> {
        self.check(leaf)?;
        if self.roots.contains(leaf.subject(), leaf.der) {
            return self.check_whole(&[leaf]);
        }
        let mut search = ChainSearch {
            rules: self,
            sent,
            signatures: 0,
            hint: None,
            refusal: None,
        };
        if let Some(ends) = search.extend(&[leaf]) {
            return Ok(ends);
        }
        if let Some(refusal) = search.refusal {
            return Err(refusal);
        }
        Err(CertificateRefusal::UnknownIssuer {
            name: leaf.name(),
            issuer: leaf.issuer_name(),
            hint: search.hint.map(|hint| format!(" ({hint})")).unwrap_or_default(),
        })
    }

    /// Checks what every certificate of a chain must fulfil by itself.
    fn check(&self, certificate: &ParsedCertificate<'_>) -> Result<(), CertificateRefusal> {
        let name = || certificate.name();
        if certificate.has_unhandled_extension() {
            return Err(CertificateRefusal::UnhandledExtension { name: name() });
        }
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        let Validity { not_before, not_after } = certificate.validity();
        if now < not_before {
            return Err(CertificateRefusal::NotValidYet {
                name: name(),
                at: not_before,
            });
        }
        if now > not_after {
            return Err(CertificateRefusal::Expired {
                name: name(),
                at: not_after,
            });
        }
        Ok(())
    }

    /// Checks a chain that begins with the leaf and ends with a trusted certificate. Returns when the first one of it expires.
    fn check_whole(&self, chain: &[&ParsedCertificate<'_>]) -> Result<i64, CertificateRefusal> {
        if !chain.iter().all(|certificate| certificate.allows(self.usage)) {
            let name = chain.first().map(|leaf| leaf.name()).unwrap_or_default();
            let usage = match self.usage {
                CertificateUsage::Client => "client",
                CertificateUsage::Server => "server",
            };
            return Err(CertificateRefusal::WrongUsage { name, usage });
        }
        names::check_constraints(chain).map_err(CertificateRefusal::Name)?;
        let ends = chain.iter().map(|certificate| certificate.validity().not_after);
        Ok(ends.min().unwrap_or(i64::MAX))
    }
}

/// The search for a chain.
struct ChainSearch<'r, 'c> {
    rules: &'r ChainRules<'r>,
    sent: &'c [ParsedCertificate<'c>],
    signatures: usize,
    /// The first reason why a certificate with the right name is not the issuer.
    hint: Option<String>,
    /// The first reason why a chain up to a root does not count.
    refusal: Option<CertificateRefusal>,
}

impl<'c> ChainSearch<'_, 'c> {
    /// Completes a chain, first by roots, then by certificates that were sent. Returns when the first one of it expires.
    fn extend(&mut self, chain: &[&'c ParsedCertificate<'c>]) -> Option<i64> {
        let child = *chain.last()?;
        for root in self.rules.roots.named(child.issuer()) {
            let Ok(root) = ParsedCertificate::parse(root) else {
                continue;
            };
            if !self.is_parent(&root, chain, true) {
                continue;
            }
            let whole: Vec<&ParsedCertificate<'_>> = chain.iter().copied().chain([&root]).collect();
            match self.rules.check_whole(&whole) {
                Ok(ends) => return Some(ends),
                Err(refusal) => drop(self.refusal.get_or_insert(refusal)),
            }
        }
        let sent = self.sent;
        for parent in sent.iter().filter(|parent| parent.subject() == child.issuer()) {
            if self.is_parent(parent, chain, false) {
                let longer: Vec<_> = chain.iter().copied().chain([parent]).collect();
                if let Some(ends) = self.extend(&longer) {
                    return Some(ends);
                }
            }
        }
        let (name, issuer) = (child.name(), child.issuer_name());
        let missing = || format!("the certificate of {issuer}, which signed that of {name}, was not sent");
        if chain.len() > 1 {
            self.hint.get_or_insert_with(missing);
        }
        None
    }

    /// Returns true if a certificate signed the last one of the chain, and may do so.
    fn is_parent(&mut self, parent: &ParsedCertificate<'_>, chain: &[&ParsedCertificate<'_>], is_root: bool) -> bool {
        let Some(child) = chain.last() else { return false };
        if self.signatures >= MAX_SIGNATURES || chain.iter().any(|earlier| earlier.is_same_authority(parent)) {
            return false;
        }
        self.signatures += parent.key().cost();
        match self.check_parent(parent, child, (chain.len() - 1, is_root)) {
            Ok(()) => true,
            Err(why) => {
                self.hint.get_or_insert(why);
                false
            }
        }
    }

    fn check_parent(
        &self,
        parent: &ParsedCertificate<'_>,
        child: &ParsedCertificate<'_>,
        (between, is_root): (usize, bool),
    ) -> Result<(), String> {
        let name = parent.name();
        let authority = parent.authority();
        match authority {
            None if parent.has_version_3() => {
                return Err(format!(
                    "the certificate of {name} has no basicConstraints, so it is not a CA"
                ));
            }
            // Only a trusted one may be of a version that has no such field.
            None if !is_root => return Err(format!("the certificate of {name} is not marked as a CA")),
            Some(authority) if !authority.is_ca => {
                return Err(format!("according to its basicConstraints {name} is not a CA"));
            }
            _ => {}
        }
        if !parent.may_sign() {
            return Err(format!("the key usages of {name} do not allow it to sign certificates"));
        }
        child.verify_signed_by(parent).map_err(|bad| match bad {
            BadSignature::Invalid => format!("it is not signed by the key of {name}"),
            BadSignature::Unsupported => format!("the kind of signature, or the key of {name}, is not supported"),
        })?;
        self.rules.check(parent).map_err(|refusal| refusal.to_string())?;
        let path_len = authority.and_then(|authority| authority.path_len);
        if path_len.is_some_and(|most| between > usize::try_from(most).unwrap_or(usize::MAX)) {
            return Err(format!("more CAs follow {name} than its basicConstraints allow"));
        }
        Ok(())
    }
}
