//! The leaf certificates: one per use, each with its own key.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType};

use super::{Authority, BACKDATE, Error, Inspected, Pair, date, earlier};
use crate::names::Names;

/// Allowance for clock granularity and rounding: a lifetime that differs by less counts as requested.
const SLACK: Duration = Duration::from_secs(5);

/// The uses of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Leaf {
    /// The client port of the brains.
    Server,
    /// Both ends of the connections between brains.
    Peer,
    /// A kube-apiserver that stores its data in the brains.
    ApiserverClient,
    /// The operator's own requests to the brains.
    OperatorClient,
}

impl Leaf {
    pub const ALL: [Self; 4] = [Self::Server, Self::Peer, Self::ApiserverClient, Self::OperatorClient];

    /// Returns the suffix of the Secret's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Peer => "peer",
            Self::ApiserverClient => "apiserver-client",
            Self::OperatorClient => "operator-client",
        }
    }

    fn usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        match self {
            Self::Server | Self::Peer => vec![server, client],
            Self::ApiserverClient | Self::OperatorClient => vec![client],
        }
    }
}

/// Contents of a certificate to issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub common_name: String,
    pub organization: Option<String>,
    /// DNS names, IP addresses and URIs, each as its text.
    pub sans: BTreeSet<String>,
    pub validity: Duration,
    pub renew_before: Duration,
}

impl Request {
    /// Returns the request for one use of one cluster; `extra` names and addresses go into the server certificate.
    pub fn new(leaf: Leaf, names: &Names, extra: &[String], validity: Duration, renew_before: Duration) -> Self {
        let loopback = ["127.0.0.1", "::1"].map(str::to_owned);
        let (common_name, organization, sans): (_, _, BTreeSet<String>) = match leaf {
            Leaf::Server => {
                let extra = extra
                    .iter()
                    .map(|san| san.parse::<IpAddr>().map_or(san.clone(), |ip| ip.to_string()));
                (
                    names.client(),
                    None,
                    names.server_hosts().into_iter().chain(loopback).chain(extra).collect(),
                )
            }
            Leaf::Peer => {
                let identity = format!(
                    "spiffe://{}/ns/{}/kubebrain/{}/peer",
                    names.domain, names.namespace, names.cluster
                );
                (
                    "kubebrain-peer".to_owned(),
                    None,
                    names.member_hosts().into_iter().chain([identity]).collect(),
                )
            }
            Leaf::ApiserverClient => {
                let organization = Some("system:kubebrain:clients".to_owned());
                ("kube-apiserver-etcd-client".to_owned(), organization, BTreeSet::new())
            }
            Leaf::OperatorClient => ("kubebrain-operator".to_owned(), None, BTreeSet::new()),
        };
        Self {
            common_name,
            organization,
            sans,
            validity,
            renew_before,
        }
    }

    /// Returns the request that `certificate` satisfies, for a renewal that changes nothing else.
    pub fn kept(certificate: &Inspected, renew_before: Duration) -> Self {
        let validity = certificate.lifetime().saturating_sub(BACKDATE);
        Self {
            common_name: certificate.common_name.clone(),
            organization: certificate.organization.clone(),
            sans: certificate.sans.clone(),
            validity,
            renew_before: if renew_before < validity {
                renew_before
            } else {
                validity / 3
            },
        }
    }

    /// Returns the time of renewal: `renew_before` the end, but not within the first tenth of the validity, so that no setting makes the
    /// operator issue certificates endlessly.
    fn renewal(&self, certificate: &Inspected) -> Timestamp {
        let issued = certificate.issued();
        let floor = issued.checked_add(self.validity / 10).unwrap_or(issued);
        certificate
            .not_after
            .checked_sub(self.renew_before)
            .unwrap_or(floor)
            .max(floor)
    }

    /// The same for a certificate of an authority that ends at `end`. Returns `None` for a certificate that ends with its authority,
    /// because a renewal would not extend it.
    pub fn renewal_before(&self, end: Timestamp, certificate: &Inspected) -> Option<Timestamp> {
        lasts_longer(end, certificate.not_after).then(|| self.renewal(certificate))
    }

    /// Returns the end of a certificate of `authority` that is issued at `issued`. It does not outlast its authority.
    fn end(&self, authority: &Inspected, issued: Timestamp) -> Timestamp {
        let end = issued.checked_add(self.validity).unwrap_or(Timestamp::MAX);
        end.min(authority.not_after)
    }

    /// Returns the reason to reissue a stored certificate; `None` if it is usable.
    pub fn objection(&self, leaf: Leaf, pair: &Pair, authority: &Authority, now: Timestamp) -> Option<String> {
        let certificate = match Inspected::read(&pair.certificate) {
            Ok(certificate) => certificate,
            Err(error) => return Some(error.to_string()),
        };
        let end = |issued| self.end(authority.inspected(), issued);
        let wanted = end(certificate.issued());
        let is_due = now >= self.renewal(&certificate) && lasts_longer(end(now), certificate.not_after);
        let reason = match KeyPair::from_pem(&pair.key) {
            Err(_) => "its key cannot be used",
            Ok(key) if !certificate.has_key(&key) => "its key does not belong to it",
            Ok(_) if !certificate.is_signed_by(authority.inspected()) => "another authority signed it",
            Ok(_) if certificate.common_name != self.common_name => "its name changed",
            Ok(_) if certificate.organization != self.organization => "its organization changed",
            Ok(_) if certificate.sans != self.sans => "its alternative names changed",
            Ok(_) if certificate.usages() != leaf.usages() => "its usages changed",
            Ok(_) if lasts_longer(certificate.not_after, wanted) => "its validity changed",
            Ok(_) if lasts_longer(wanted, certificate.not_after) => "its validity changed",
            Ok(_) if now < certificate.not_before => "it is not valid yet",
            Ok(_) if is_due => "it is due for renewal",
            Ok(_) => return None,
        };
        Some(reason.to_owned())
    }
}

/// Returns true if `end` is later than `other` by more than clocks and rounding explain.
fn lasts_longer(end: Timestamp, other: Timestamp) -> bool {
    Duration::try_from(end.duration_since(other)).is_ok_and(|longer| longer > SLACK)
}

pub fn issue(
    (issuer, authority): (&Issuer<'_, KeyPair>, &Inspected),
    leaf: Leaf,
    request: &Request,
    now: Timestamp,
) -> Result<Pair, Error> {
    let mut params = CertificateParams::default();
    params.not_before = date(earlier(now, BACKDATE)?)?;
    params.not_after = date(request.end(authority, now))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, request.common_name.as_str());
    if let Some(organization) = &request.organization {
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization.as_str());
    }
    params.subject_alt_names = request
        .sans
        .iter()
        .map(|san| alternative_name(san))
        .collect::<Result<_, _>>()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = leaf.usages();
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(Error::Key)?;
    let certificate = params.signed_by(&key, issuer).map_err(Error::Certificate)?;
    Ok(Pair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn alternative_name(san: &str) -> Result<SanType, Error> {
    if let Ok(ip) = san.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let text = san.try_into().map_err(|_| Error::Name(san.to_owned()))?;
    Ok(if san.contains("://") {
        SanType::URI(text)
    } else {
        SanType::DnsName(text)
    })
}
