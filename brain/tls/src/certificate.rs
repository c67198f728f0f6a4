//! One certificate, read as Go's crypto/x509 reads it: a certificate that Go does not parse is refused, no matter who signed it.

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::{GeneralName, NameConstraints, ParsedExtension};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

use super::algorithms::{self, BadSignature, PublicKey};

/// The use for which a certificate is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificateUsage {
    Client,
    Server,
}

/// A parsed certificate.
#[derive(Debug)]
pub(super) struct ParsedCertificate<'a> {
    pub(super) der: &'a [u8],
    parsed: X509Certificate<'a>,
    signature_algorithm: &'a [u8],
    key_algorithm: &'a [u8],
    /// True if it has a critical extension that is not understood here.
    has_unhandled_extension: bool,
}

/// The seconds since 1970 between which a certificate is valid, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

/// Returns a time in seconds since 1970, to be read by people.
pub(crate) fn time(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds);
    time.map_or_else(|_| format!("{seconds} s after 1970"), |time| time.to_string())
}

/// The right of a certificate to sign others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SigningRight {
    pub(super) is_ca: bool,
    /// The CAs that may come between it and the leaf.
    pub(super) path_len: Option<u32>,
}

impl<'a> ParsedCertificate<'a> {
    /// Parses DER. Fails with the reason.
    pub(super) fn parse(der: &'a CertificateDer<'_>) -> Result<ParsedCertificate<'a>, String> {
        Self::from_der(der.as_ref())
    }

    pub(super) fn from_der(der: &'a [u8]) -> Result<ParsedCertificate<'a>, String> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|error| format!("malformed: {error}"))?;
        if !rest.is_empty() {
            return Err("malformed: bytes follow it".to_owned());
        }
        if parsed.version().0 > 2 {
            return Err(format!("unknown version {}", parsed.version().0 + 1));
        }
        if parsed.tbs_certificate.signature != parsed.signature_algorithm {
            return Err("malformed: it names two signature algorithms".to_owned());
        }
        if parsed.extensions_map().is_err() {
            return Err("malformed: it has an extension twice".to_owned());
        }
        let mut has_unhandled_extension = false;
        for extension in parsed.extensions() {
            match handled(extension.parsed_extension(), extension.value) {
                ExtensionSupport::Yes => {}
                ExtensionSupport::No => has_unhandled_extension |= extension.critical,
                ExtensionSupport::Malformed => return Err(format!("malformed: its extension {}", extension.oid)),
            }
        }
        Ok(ParsedCertificate {
            der,
            signature_algorithm: signature_algorithm(der)?,
            key_algorithm: key_algorithm(parsed.tbs_certificate.subject_pki.raw)?,
            has_unhandled_extension,
            parsed,
        })
    }

    pub(super) fn subject(&self) -> &[u8] {
        self.parsed.subject().as_raw()
    }

    pub(super) fn issuer(&self) -> &[u8] {
        self.parsed.issuer().as_raw()
    }

    /// Returns its subject, to be read by people.
    pub(super) fn name(&self) -> String {
        self.parsed.subject().to_string()
    }

    pub(super) fn issuer_name(&self) -> String {
        self.parsed.issuer().to_string()
    }

    pub(super) fn common_names(&self) -> impl Iterator<Item = &str> {
        let names = self.parsed.subject().iter_common_name();
        names.filter_map(|name| name.as_str().ok())
    }

    /// Returns its serial number: big-endian, without leading zeros.
    pub(super) fn serial(&self) -> Vec<u8> {
        self.parsed.serial.to_bytes_be()
    }

    pub(super) fn key(&self) -> PublicKey<'_> {
        PublicKey {
            algorithm: self.key_algorithm,
            bytes: &self.parsed.public_key().subject_public_key.data,
        }
    }

    /// Returns true if this is its public key, in the form of a SubjectPublicKeyInfo.
    pub(super) fn has_key(&self, spki: &[u8]) -> bool {
        let key = SubjectPublicKeyInfo::from_der(spki);
        key.is_ok_and(|(_, key)| {
            key.algorithm.algorithm == self.parsed.public_key().algorithm.algorithm
                && key.subject_public_key.data == self.parsed.public_key().subject_public_key.data
        })
    }

    pub(super) fn validity(&self) -> Validity {
        Validity {
            not_before: self.parsed.validity().not_before.timestamp(),
            not_after: self.parsed.validity().not_after.timestamp(),
        }
    }

    pub(super) fn has_unhandled_extension(&self) -> bool {
        self.has_unhandled_extension
    }

    /// Returns its basicConstraints, if it has any.
    pub(super) fn authority(&self) -> Option<SigningRight> {
        self.extension(|extension| match extension {
            ParsedExtension::BasicConstraints(found) => Some(SigningRight {
                is_ca: found.ca,
                path_len: found.path_len_constraint,
            }),
            _ => None,
        })
    }

    /// Returns true if it is of version 3, which has extensions.
    pub(super) fn has_version_3(&self) -> bool {
        self.parsed.version().0 == 2
    }

    /// Returns true unless its key usages leave out the signing of certificates.
    pub(super) fn may_sign(&self) -> bool {
        let usage = self.extension(|extension| match extension {
            ParsedExtension::KeyUsage(usage) => Some(*usage),
            _ => None,
        });
        usage.is_none_or(|usage| usage.flags == 0 || usage.key_cert_sign())
    }

    /// Returns true unless its extended key usages leave out a usage.
    pub(super) fn allows(&self, wanted: CertificateUsage) -> bool {
        let allowed = self.extension(|extension| {
            let ParsedExtension::ExtendedKeyUsage(usages) = extension else {
                return None;
            };
            let others = [
                usages.code_signing,
                usages.email_protection,
                usages.time_stamping,
                usages.ocsp_signing,
            ];
            let is_listed = match wanted {
                CertificateUsage::Client => usages.client_auth,
                CertificateUsage::Server => usages.server_auth,
            };
            let is_empty =
                !usages.client_auth && !usages.server_auth && !others.contains(&true) && usages.other.is_empty();
            Some(usages.any || is_listed || is_empty)
        });
        allowed.unwrap_or(true)
    }

    /// Returns the names of its subjectAltName; none if it has no such extension.
    pub(super) fn alternative_names(&self) -> Option<&[GeneralName<'a>]> {
        self.extension(|extension| match extension {
            ParsedExtension::SubjectAlternativeName(names) => Some(names.general_names.as_slice()),
            _ => None,
        })
    }

    pub(super) fn name_constraints(&self) -> Option<&NameConstraints<'a>> {
        self.extension(|extension| match extension {
            ParsedExtension::NameConstraints(constraints) => Some(constraints),
            _ => None,
        })
    }

    /// Verifies that another certificate signed this one.
    pub(super) fn verify_signed_by(&self, parent: &ParsedCertificate<'_>) -> Result<(), BadSignature> {
        let signed = self.parsed.tbs_certificate.as_ref();
        algorithms::verify(
            parent.key(),
            self.signature_algorithm,
            signed,
            &self.parsed.signature_value.data,
        )
    }

    /// Returns true if the other one has the same subject, key and alternative names: then a chain with both is a circle.
    pub(super) fn is_same_authority(&self, other: &ParsedCertificate<'_>) -> bool {
        self.subject() == other.subject()
            && self.parsed.public_key().raw == other.parsed.public_key().raw
            && self.alternative_names() == other.alternative_names()
    }

    fn extension<'s, T>(&'s self, found: impl Fn(&'s ParsedExtension<'a>) -> Option<T>) -> Option<T> {
        self.parsed
            .extensions()
            .iter()
            .find_map(|extension| found(extension.parsed_extension()))
    }
}

enum ExtensionSupport {
    Yes,
    No,
    Malformed,
}

/// Returns whether an extension is understood. Those that Go understands and that are not here (policies) are refused if they are
/// critical, or if they demand a policy.
fn handled(extension: &ParsedExtension<'_>, value: &[u8]) -> ExtensionSupport {
    match extension {
        ParsedExtension::ParseError { .. } => ExtensionSupport::Malformed,
        ParsedExtension::SubjectAlternativeName(names) => {
            let is_known = |name: &GeneralName<'_>| {
                matches!(
                    name,
                    GeneralName::DNSName(_)
                        | GeneralName::RFC822Name(_)
                        | GeneralName::URI(_)
                        | GeneralName::IPAddress(_)
                )
            };
            match names
                .general_names
                .iter()
                .any(|name| matches!(name, GeneralName::Invalid(..)))
            {
                true => ExtensionSupport::Malformed,
                false if names.general_names.iter().any(is_known) => ExtensionSupport::Yes,
                false => ExtensionSupport::No,
            }
        }
        ParsedExtension::NameConstraints(constraints) => constraints_handled(constraints, value),
        ParsedExtension::PolicyConstraints(constraints) if constraints.require_explicit_policy.is_some() => {
            ExtensionSupport::No
        }
        ParsedExtension::KeyUsage(_)
        | ParsedExtension::BasicConstraints(_)
        | ParsedExtension::CRLDistributionPoints(_)
        | ParsedExtension::AuthorityKeyIdentifier(_)
        | ParsedExtension::SubjectKeyIdentifier(_)
        | ParsedExtension::ExtendedKeyUsage(_)
        | ParsedExtension::CertificatePolicies(_)
        | ParsedExtension::PolicyMappings(_)
        | ParsedExtension::PolicyConstraints(_)
        | ParsedExtension::InhibitAnyPolicy(_) => ExtensionSupport::Yes,
        _ => ExtensionSupport::No,
    }
}

/// Constraints that cannot be read are malformed, as in Go, and those of kinds of names that are not matched are not understood.
fn constraints_handled(constraints: &NameConstraints<'_>, value: &[u8]) -> ExtensionSupport {
    let parts = [
        (0xa0, &constraints.permitted_subtrees),
        (0xa1, &constraints.excluded_subtrees),
    ];
    // The parser stops at a part that does not parse, and reports no error.
    let is_read = |tag| parts.iter().any(|(of, part)| *of == tag && part.is_some());
    let mut rest = match first(value) {
        Ok(all) => all.contents,
        Err(_) => return ExtensionSupport::Malformed,
    };
    while let Some(&tag) = rest.first() {
        match first(rest) {
            Ok(part) if is_read(tag) => rest = part.rest,
            _ => return ExtensionSupport::Malformed,
        }
    }
    let mut bases = parts
        .iter()
        .filter_map(|(_, part)| part.as_deref())
        .flatten()
        .peekable();
    if bases.peek().is_none() {
        return ExtensionSupport::Malformed;
    }
    let mut handled = ExtensionSupport::Yes;
    for subtree in bases {
        match &subtree.base {
            GeneralName::DNSName(_) | GeneralName::RFC822Name(_) | GeneralName::URI(_) => {}
            GeneralName::IPAddress(network) if is_network(network) => {}
            GeneralName::IPAddress(_) | GeneralName::Invalid(..) => return ExtensionSupport::Malformed,
            _ => handled = ExtensionSupport::No,
        }
    }
    handled
}

/// Returns true for an address and a mask whose ones all precede its zeros.
fn is_network(network: &[u8]) -> bool {
    if ![8, 32].contains(&network.len()) {
        return false;
    }
    let mask = &network[network.len() / 2..];
    let ones = mask.iter().take_while(|byte| **byte == 0xff).count();
    match &mask[ones..] {
        [] => true,
        [first, rest @ ..] => first.leading_ones() + first.trailing_zeros() >= 8 && rest.iter().all(|byte| *byte == 0),
    }
}

/// A value in DER.
struct DerValue<'a> {
    contents: &'a [u8],
    rest: &'a [u8],
}

/// Splits off the first value. Its tag has one byte, as all of a certificate's have.
fn first(der: &[u8]) -> Result<DerValue<'_>, String> {
    let malformed = || "malformed: its lengths".to_owned();
    let (_, after) = der.split_first().ok_or_else(malformed)?;
    let (len, after) = after.split_first().ok_or_else(malformed)?;
    let (len, after) = match len {
        short @ 0..0x80 => (usize::from(*short), after),
        long => {
            let bytes = after.get(..usize::from(long & 0x7f)).ok_or_else(malformed)?;
            if bytes.len() > 4 {
                return Err(malformed());
            }
            let len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
            (len, &after[bytes.len()..])
        }
    };
    let (contents, rest) = after.split_at_checked(len).ok_or_else(malformed)?;
    Ok(DerValue { contents, rest })
}

/// Returns the contents of the AlgorithmIdentifier of a key in a SubjectPublicKeyInfo.
pub fn key_algorithm(spki: &[u8]) -> Result<&[u8], String> {
    Ok(first(first(spki)?.contents)?.contents)
}

/// Returns the contents of the AlgorithmIdentifier of a signature: of a certificate or a revocation list.
pub(super) fn signature_algorithm(der: &[u8]) -> Result<&[u8], String> {
    let signed = first(first(der)?.contents)?;
    Ok(first(signed.rest)?.contents)
}
