//! The leaf certificates: one per use, each with its own key.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType};

use super::{BACKDATE, CertificateError, CertificatePair, InspectedCertificate, date, earlier};
use crate::names::Names;

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

    pub(super) fn usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        match self {
            Self::Server | Self::Peer => vec![server, client],
            Self::ApiserverClient | Self::OperatorClient => vec![client],
        }
    }
}

/// Contents of a certificate to issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    pub common_name: String,
    pub organization: Option<String>,
    /// DNS names, IP addresses and URIs, each as its text.
    pub sans: BTreeSet<String>,
    pub validity: Duration,
    pub renew_before: Duration,
}

impl CertificateRequest {
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
    pub fn kept(certificate: &InspectedCertificate, renew_before: Duration) -> Self {
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

    /// Returns the end of a certificate of `authority` that is issued at `issued`. It does not outlast its authority.
    pub(super) fn end(&self, authority: &InspectedCertificate, issued: Timestamp) -> Timestamp {
        let end = issued.checked_add(self.validity).unwrap_or(Timestamp::MAX);
        end.min(authority.not_after)
    }
}

pub fn issue(
    (issuer, authority): (&Issuer<'_, KeyPair>, &InspectedCertificate),
    leaf: Leaf,
    request: &CertificateRequest,
    now: Timestamp,
) -> Result<CertificatePair, CertificateError> {
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
    let key = KeyPair::generate().map_err(CertificateError::Key)?;
    let certificate = params.signed_by(&key, issuer).map_err(CertificateError::Certificate)?;
    Ok(CertificatePair {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn alternative_name(san: &str) -> Result<SanType, CertificateError> {
    if let Ok(ip) = san.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let text = san.try_into().map_err(|_| CertificateError::Name(san.to_owned()))?;
    Ok(if san.contains("://") {
        SanType::URI(text)
    } else {
        SanType::DnsName(text)
    })
}
