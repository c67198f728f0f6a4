//! The flags that name the other members.

use std::collections::{BTreeMap, BTreeSet};

use super::super::bootstrap::Bootstrap;
use super::super::config::Storage;
use super::Values;
use cluster::discovery::SrvDiscovery;
use etcd_types::url::Url;

/// Returns the domain in which members are looked up, if one is given. Errors that only the first start must refuse become faults of
/// `bootstrap`.
pub(super) fn discovery(
    values: &Values<'_>,
    storage: &Storage,
    bootstrap: &mut Bootstrap,
    warnings: &mut Vec<String>,
) -> Result<Option<SrvDiscovery>, String> {
    let (domain, name) = (values.text("discovery-srv"), values.text("discovery-srv-name"));
    if domain.is_empty() {
        if !name.is_empty() {
            let origin = values.origin("discovery-srv-name");
            warnings.push(format!("{origin} has no effect without --discovery-srv"));
        }
        return Ok(None);
    }
    if !values.text("initial-cluster").is_empty() {
        return Err(
            "multiple discovery or bootstrap flags are set: choose one of --initial-cluster and --discovery-srv"
                .to_owned(),
        );
    }
    if *storage == Storage::Embedded {
        bootstrap
            .faults
            .push("--discovery-srv needs --storage tikv: the embedded store has exactly one member".to_owned());
        return Ok(None);
    }
    Ok(Some(SrvDiscovery {
        domain: domain.to_owned(),
        name: name.to_owned(),
    }))
}

/// Refuses the fallback that etcd refuses, with its text.
pub(super) fn check_fallback(values: &Values<'_>) -> Result<(), String> {
    if values.one_of("discovery-fallback", &[("exit", false), ("proxy", true)])? {
        return Err("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"".to_owned());
    }
    Ok(())
}

/// Returns the peer URLs by name. This member is always among them. An embedded store has one member.
pub(super) fn cluster(values: &Values<'_>, storage: &Storage, bootstrap: &mut Bootstrap) -> BTreeMap<String, Vec<Url>> {
    let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
    let pairs = values.list("initial-cluster");
    for pair in &pairs {
        match parse(pair) {
            Ok((member, url)) => members.entry(member).or_default().push(url),
            Err(what) => bootstrap.faults.push(values.error("initial-cluster", what)),
        }
    }
    let name = bootstrap.name.clone();
    if !pairs.is_empty() {
        check_names(values, &members, storage, bootstrap);
    }
    if let Some(listed) = members.get(&name) {
        bootstrap.listed.clone_from(listed);
    }
    members.entry(name).or_insert_with(|| bootstrap.advertised.clone());
    members
}

/// Parses one pair of `--initial-cluster`.
fn parse(pair: &str) -> Result<(String, Url), String> {
    let (member, url) = pair
        .split_once('=')
        .ok_or_else(|| format!("{pair:?} is not <name>=<peer URL>"))?;
    Ok((member.to_owned(), Url::parse(url)?))
}

/// Checks that the list names this member, the others only where there can be others, and no URL twice.
fn check_names(
    values: &Values<'_>,
    members: &BTreeMap<String, Vec<Url>>,
    storage: &Storage,
    bootstrap: &mut Bootstrap,
) {
    let name = &bootstrap.name;
    if !members.contains_key(name) {
        let what = format!("couldn't find local name {name:?} in it");
        bootstrap.faults.push(values.error("initial-cluster", what));
    }
    let others: Vec<&str> = members
        .keys()
        .map(String::as_str)
        .filter(|member| member != name)
        .collect();
    if !others.is_empty() && *storage == Storage::Embedded {
        let others = others.join(", ");
        bootstrap.faults.push(format!(
            "--initial-cluster names other members ({others}): the embedded store has exactly one"
        ));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = members.values().flatten().find(|url| !seen.insert(url.to_string())) {
        let what = format!("it has the URL {twice} twice");
        bootstrap.faults.push(values.error("initial-cluster", what));
    }
}
