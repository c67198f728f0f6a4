//! Where the data is, who else there is, and how they agree on a leader.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::config::{Storage, TikvOptions};
use super::super::table::Flag;
use super::super::url::Url;
use super::Values;

pub(super) fn read(values: &Values<'_>) -> Result<Storage, String> {
    const TIKV: [&str; 7] = [
        "tikv-pd-endpoints",
        "tikv-ca",
        "tikv-cert",
        "tikv-key",
        "tikv-key-prefix",
        "tikv-gc-interval",
        "tikv-gc-window",
    ];
    if !values.one_of("storage", &[("embedded", false), ("tikv", true)])? {
        let differs = |name: &&&str| Flag::named(name).is_some_and(|flag| values.text(name) != flag.default);
        return match TIKV.iter().find(differs) {
            Some(name) => Err(format!("{} needs --storage tikv", values.origin(name))),
            None => Ok(Storage::Embedded),
        };
    }
    let pd_endpoints = values.list("tikv-pd-endpoints");
    if pd_endpoints.is_empty() {
        return Err("--storage tikv needs --tikv-pd-endpoints".to_owned());
    }
    let files = ["tikv-ca", "tikv-cert", "tikv-key"].map(|name| values.text(name));
    let tls = match files {
        ["", "", ""] => None,
        [ca, cert, key] if !ca.is_empty() && !cert.is_empty() && !key.is_empty() => {
            Some((ca.into(), cert.into(), key.into()))
        }
        _ => return Err("--tikv-ca, --tikv-cert and --tikv-key go together: TiKV knows mutual TLS only".to_owned()),
    };
    let key_prefix = values.text("tikv-key-prefix").to_owned();
    if key_prefix.is_empty() || key_prefix.len() > 255 {
        return Err(values.error("tikv-key-prefix", "it has 1 to 255 bytes"));
    }
    let gc_window = values.duration("tikv-gc-window")?;
    if gc_window < Duration::from_secs(60) {
        return Err(values.error("tikv-gc-window", "it is a minute at least"));
    }
    Ok(Storage::Tikv(TikvOptions {
        pd_endpoints,
        tls,
        key_prefix,
        gc_interval: values.duration("tikv-gc-interval")?,
        gc_window,
    }))
}

/// Lease duration, renew deadline and retry period. The elector checks them against each other.
pub(super) fn election(values: &Values<'_>) -> Result<(Duration, Duration, Duration), String> {
    Ok((
        values.duration("election-lease-duration")?,
        values.duration("election-renew-deadline")?,
        values.duration("election-retry-period")?,
    ))
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
