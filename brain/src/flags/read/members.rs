//! Who else there is.

use std::collections::BTreeMap;

use super::super::config::{SrvDiscovery, Storage};
use super::super::url::Url;
use super::Values;

/// Where members are looked up, if they are.
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

/// Peer URLs by name. An embedded store has one member.
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
    if members.is_empty() {
        members.insert(name.to_owned(), values.urls("initial-advertise-peer-urls")?);
    }
    if !members.contains_key(name) {
        return Err(values.error("initial-cluster", format!("couldn't find local name {name:?} in it")));
    }
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
    Ok(members)
}
