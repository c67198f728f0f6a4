//! The flags that name the other members.

use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs as _;

use super::super::config::{SrvDiscovery, Storage};
use super::super::url::Url;
use super::Values;

/// Returns the domain in which members are looked up, if there is one.
pub(super) fn discovery(values: &Values<'_>, storage: &Storage) -> Result<Option<SrvDiscovery>, String> {
    let (domain, name) = (values.text("discovery-srv"), values.text("discovery-srv-name"));
    if domain.is_empty() {
        return match name {
            "" => Ok(None),
            _ => Err(format!("{} needs --discovery-srv", values.origin("discovery-srv-name"))),
        };
    }
    if !values.text("initial-cluster").is_empty() {
        return Err(
            "multiple discovery or bootstrap flags are set: choose one of --initial-cluster and --discovery-srv"
                .to_owned(),
        );
    }
    if *storage == Storage::Embedded {
        return Err("--discovery-srv needs --storage tikv: the embedded store has exactly one member".to_owned());
    }
    Ok(Some(SrvDiscovery {
        domain: domain.to_owned(),
        name: name.to_owned(),
    }))
}

/// Returns the peer URLs by name. An embedded store has one member.
pub(super) fn cluster(
    values: &Values<'_>,
    name: &str,
    storage: &Storage,
) -> Result<BTreeMap<String, Vec<Url>>, String> {
    let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
    for pair in values.list("initial-cluster") {
        let Some((member, url)) = pair.split_once('=') else {
            return Err(values.error("initial-cluster", format!("{pair:?} is not <name>=<peer URL>")));
        };
        let url = Url::parse(url).map_err(|what| values.error("initial-cluster", what))?;
        members.entry(member.to_owned()).or_default().push(url);
    }
    let advertised = values.urls("initial-advertise-peer-urls")?;
    if members.is_empty() {
        members.insert(name.to_owned(), advertised.clone());
    }
    let Some(listed) = members.get(name) else {
        return Err(values.error("initial-cluster", format!("couldn't find local name {name:?} in it")));
    };
    let others: Vec<&str> = members
        .keys()
        .map(String::as_str)
        .filter(|member| *member != name)
        .collect();
    if !others.is_empty() && *storage == Storage::Embedded {
        let others = others.join(", ");
        return Err(format!(
            "--initial-cluster names other members ({others}): the embedded store has exactly one"
        ));
    }
    check_advertised(name, listed, &advertised)?;
    Ok(members)
}

/// Checks that the peer URLs of this member are the same in both flags, literally or after resolving their hosts, as etcd requires:
/// the advertised URLs are recorded at the first start, and later starts are compared with them.
fn check_advertised(name: &str, listed: &[Url], advertised: &[Url]) -> Result<(), String> {
    let joined = |urls: &[&Url], prefix: &str| {
        let texts: Vec<String> = urls.iter().map(|url| format!("{prefix}{url}")).collect();
        texts.join(",")
    };
    let (missing, unlisted) = (without(listed, advertised), without(advertised, listed));
    if missing.is_empty() && unlisted.is_empty() {
        return Ok(());
    }
    let resolved = (resolve(listed), resolve(advertised));
    let reason = match resolved {
        (Ok(listed), Ok(advertised)) if listed == advertised => return Ok(()),
        (Ok(_), Ok(_)) => "the URLs resolve to different addresses".to_owned(),
        (Err(error), _) | (_, Err(error)) => error,
    };
    let prefix = format!("{name}=");
    Err(if missing.is_empty() {
        format!(
            "--initial-advertise-peer-urls has {} but missing from --initial-cluster={} ({reason})",
            joined(&unlisted, &prefix),
            joined(&listed.iter().collect::<Vec<_>>(), &prefix),
        )
    } else {
        format!(
            "--initial-cluster has {} but missing from --initial-advertise-peer-urls={} ({reason})",
            joined(&missing, &prefix),
            joined(&advertised.iter().collect::<Vec<_>>(), ""),
        )
    })
}

/// Returns the URLs in `urls` that are not in `others`.
fn without<'a>(urls: &'a [Url], others: &[Url]) -> Vec<&'a Url> {
    urls.iter().filter(|url| !others.contains(url)).collect()
}

/// Returns the schemes and first addresses that URLs resolve to.
fn resolve(urls: &[Url]) -> Result<BTreeSet<(bool, String)>, String> {
    let resolved = urls.iter().map(|url| {
        let is_tls = url.scheme().is_tls();
        let Some(host_port) = url.host_port() else {
            return Ok((is_tls, url.address().to_owned()));
        };
        let found = host_port.to_socket_addrs();
        let mut found = found.map_err(|error| format!("{url} does not resolve: {error}"))?;
        let first = found.next().ok_or_else(|| format!("{url} does not resolve"))?;
        Ok((is_tls, first.to_string()))
    });
    resolved.collect()
}
