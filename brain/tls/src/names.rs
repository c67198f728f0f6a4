//! Names of certificates, matched as Go's crypto/x509 matches them: alternative names alone, never the common name.

use std::net::IpAddr;

use x509_parser::extensions::{GeneralName, GeneralSubtree};

use super::certificate::ParsedCertificate;

/// Returns true if a certificate is one of a host, which is a name, or an IP with or without brackets.
pub(super) fn is_of_host(certificate: &ParsedCertificate<'_>, host: &str) -> bool {
    let names = certificate.alternative_names().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Ok(ip) = bare.unwrap_or(host).parse::<IpAddr>() {
        let ip = ip.to_canonical();
        return names
            .iter()
            .any(|name| matches!(name, GeneralName::IPAddress(found) if address(found) == Some(ip)));
    }
    let host = host.to_ascii_lowercase();
    let labels: Vec<&str> = host.strip_suffix('.').unwrap_or(&host).split('.').collect();
    names.iter().any(|name| {
        let GeneralName::DNSName(name) = name else { return false };
        let name = name.to_ascii_lowercase();
        if is_hostname(&host, false) && is_hostname(&name, true) {
            return matches_labels(&name, &labels);
        }
        ![host.as_str(), name.as_str()]
            .iter()
            .any(|name| ["", "."].contains(name))
            && name == host
    })
}

fn matches_labels(pattern: &str, host: &[&str]) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    let mut pairs = pattern.iter().zip(host).enumerate();
    pattern.len() == host.len()
        && pairs.all(|(index, (pattern, label))| index == 0 && *pattern == "*" || pattern == label)
}

/// Returns true for names as hosts have them; underscores are in use.
fn is_hostname(name: &str, is_pattern: bool) -> bool {
    let name = match is_pattern {
        true => name,
        false => name.strip_suffix('.').unwrap_or(name),
    };
    let is_label = |(index, label): (usize, &str)| {
        let is_wildcard = is_pattern && index == 0 && label == "*";
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        is_wildcard || !label.is_empty() && !label.starts_with('-') && label.bytes().all(allowed)
    };
    name != "*" && name.split('.').enumerate().all(is_label)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    let v6 = <[u8; 16]>::try_from(bytes).ok()?;
    Some(IpAddr::from(v6).to_canonical())
}

/// Checks the alternative names of every certificate of a chain, which begins with the leaf, by the name constraints of those above it.
pub(super) fn check_constraints(chain: &[&ParsedCertificate<'_>]) -> Result<(), String> {
    for (index, certificate) in chain.iter().enumerate() {
        let names = certificate.alternative_names().unwrap_or_default();
        for above in chain.iter().skip(index + 1) {
            let Some(constraints) = above.name_constraints() else {
                continue;
            };
            for name in names {
                let permitted = constraints.permitted_subtrees.as_deref().unwrap_or_default();
                let excluded = constraints.excluded_subtrees.as_deref().unwrap_or_default();
                check_name(name, permitted, excluded)
                    .map_err(|why| format!("{why}: the name constraints of {} are not met", above.name()))?;
            }
        }
    }
    Ok(())
}

fn check_name(
    name: &GeneralName<'_>,
    permitted: &[GeneralSubtree<'_>],
    excluded: &[GeneralSubtree<'_>],
) -> Result<(), String> {
    let of_kind = |trees: &[GeneralSubtree<'_>]| trees.iter().any(|tree| is_same_kind(name, &tree.base));
    if !of_kind(permitted) && !of_kind(excluded) {
        return Ok(());
    }
    let constrained = ConstrainedName::of(name).ok_or_else(|| format!("{name} cannot be matched"))?;
    if of_kind(permitted) && !permitted.iter().any(|tree| constrained.is_in(&tree.base, true)) {
        return Err(format!("{name} is not permitted"));
    }
    match excluded.iter().find(|tree| constrained.is_in(&tree.base, false)) {
        Some(tree) => Err(format!("{name} is excluded by {}", tree.base)),
        None => Ok(()),
    }
}

fn is_same_kind(name: &GeneralName<'_>, other: &GeneralName<'_>) -> bool {
    matches!(
        (name, other),
        (GeneralName::DNSName(_), GeneralName::DNSName(_))
            | (GeneralName::IPAddress(_), GeneralName::IPAddress(_))
            | (GeneralName::RFC822Name(_), GeneralName::RFC822Name(_))
            | (GeneralName::URI(_), GeneralName::URI(_))
    )
}

/// A name as constraints see it.
enum ConstrainedName<'a> {
    Domain(&'a str),
    Ip(&'a [u8]),
    Mailbox {
        local: &'a str,
        domain: &'a str,
    },
    /// The host of a URI.
    Host(&'a str),
}

impl<'a> ConstrainedName<'a> {
    /// Returns `None` for a name to which no constraint can be applied.
    fn of(name: &GeneralName<'a>) -> Option<Self> {
        let is_domain = |domain: &&str| !domain.is_empty() && domain.split('.').all(|label| !label.is_empty());
        match name {
            GeneralName::DNSName(domain) => Some(Self::Domain(Some(*domain).filter(is_domain)?)),
            GeneralName::IPAddress(bytes) => Some(Self::Ip(bytes)),
            GeneralName::RFC822Name(mailbox) => {
                let (local, domain) = mailbox.rsplit_once('@')?;
                Some(Self::Mailbox {
                    local,
                    domain: Some(domain).filter(is_domain)?,
                })
            }
            GeneralName::URI(uri) => {
                let (_, rest) = uri.split_once("://")?;
                let authority = rest.split(['/', '?', '#']).next()?;
                let host = authority.rsplit('@').next()?;
                let host = match host.rsplit_once(':') {
                    Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
                    _ => host,
                };
                let is_ip = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
                Some(Self::Host(Some(host).filter(|host| !is_ip && is_domain(host))?))
            }
            _ => None,
        }
    }

    fn is_in(&self, base: &GeneralName<'_>, is_permitted: bool) -> bool {
        match (self, base) {
            (Self::Domain(name), GeneralName::DNSName(base)) => is_in_domain(name, base, is_permitted),
            (Self::Host(name), GeneralName::URI(base)) => is_in_domain(name, base, is_permitted),
            (Self::Ip(ip), GeneralName::IPAddress(base)) => is_in_network(ip, base),
            (Self::Mailbox { local, domain }, GeneralName::RFC822Name(base)) => match base.rsplit_once('@') {
                Some((wanted, at)) => wanted == *local && at.eq_ignore_ascii_case(domain),
                None => is_in_domain(domain, base, is_permitted),
            },
            _ => false,
        }
    }
}

/// Returns true if a domain is below another, or the same one; with a leading dot in front of the other, only below.
fn is_in_domain(name: &str, base: &str, is_permitted: bool) -> bool {
    let (name, base) = (name.to_ascii_lowercase(), base.to_ascii_lowercase());
    let is_suffix = |name: &str, base: &str| {
        let Some(before) = name.strip_suffix(base) else {
            return false;
        };
        base.is_empty() || before.is_empty() || base.starts_with('.') || before.ends_with('.')
    };
    if is_suffix(&name, &base) {
        return true;
    }
    // A wildcard may stand for the excluded name.
    let (wildcard, parent) = (name.strip_prefix('*'), base.find('.').map(|dot| &base[dot..]));
    !is_permitted && wildcard.is_some() && wildcard == parent
}

/// Returns true if an address is in a network: an address of the same family, and its mask.
fn is_in_network(ip: &[u8], network: &[u8]) -> bool {
    if network.len() != 2 * ip.len() {
        return false;
    }
    let (base, mask) = network.split_at(ip.len());
    let mut bytes = ip.iter().zip(base).zip(mask);
    bytes.all(|((ip, base), mask)| ip & mask == base & mask)
}
