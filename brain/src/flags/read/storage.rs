//! The flags of storage.

use std::time::Duration;

use super::super::config::{Storage, TikvOptions};
use super::super::table::Flag;
use super::Values;

/// The flags that select the store in a TiKV cluster.
pub(in crate::flags) const TIKV_STORE: [&str; 6] = [
    "tikv-pd-endpoints",
    "tikv-ca",
    "tikv-cert",
    "tikv-key",
    "tikv-key-prefix",
    "tikv-cluster-id",
];

/// The flags of garbage collection in TiKV.
const TIKV_GC: [&str; 2] = ["tikv-gc-interval", "tikv-gc-window"];

/// The flags that name the store of a data directory.
const EMBEDDED_STORE: [&str; 2] = ["embedded-cluster-id", "embedded-member"];

/// Returns the only cluster whose store the data directory may hold.
pub(super) fn embedded_cluster_id(values: &Values<'_>) -> Result<Option<u64>, String> {
    let name = "embedded-cluster-id";
    match values.text(name) {
        "" => Ok(None),
        text => match u64::from_str_radix(text, 16) {
            Ok(id) if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(Some(id)),
            _ => Err(values.error(name, format!("{text:?} is not up to 16 hexadecimal digits"))),
        },
    }
}

/// Refuses a member that is not the only one that may use a data directory.
pub(super) fn check_member(values: &Values<'_>, name: &str) -> Result<(), String> {
    match values.text("embedded-member") {
        "" => Ok(()),
        only if only == name => Ok(()),
        only => Err(format!(
            "{} is {only:?} and this member is {name:?}: embedded storage has one member; run only one",
            values.origin("embedded-member")
        )),
    }
}

pub(super) fn read(values: &Values<'_>) -> Result<Storage, String> {
    if !values.one_of("storage", &[("embedded", false), ("tikv", true)])? {
        let differs = |name: &&&str| Flag::named(name).is_some_and(|flag| values.text(name) != flag.default);
        return match TIKV_STORE.iter().chain(&TIKV_GC).find(differs) {
            Some(name) => Err(format!("{} needs --storage tikv", values.origin(name))),
            None => Ok(Storage::Embedded),
        };
    }
    if let Some(name) = EMBEDDED_STORE.iter().find(|name| !values.text(name).is_empty()) {
        return Err(format!("{} needs --storage embedded", values.origin(name)));
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
        _ => {
            return Err(
                "--tikv-ca, --tikv-cert and --tikv-key must be set together: TiKV supports only mutual TLS".to_owned(),
            );
        }
    };
    let key_prefix = values.text("tikv-key-prefix").to_owned();
    if key_prefix.is_empty() || key_prefix.len() > 255 {
        return Err(values.error("tikv-key-prefix", "it must have 1 to 255 bytes"));
    }
    let gc_window = values.duration("tikv-gc-window")?;
    if gc_window < Duration::from_secs(120) {
        return Err(values.error("tikv-gc-window", "it must be at least two minutes"));
    }
    let cluster_id = match values.text("tikv-cluster-id") {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            let what = format!("{text:?} is not an id in decimal digits");
            values.error("tikv-cluster-id", what)
        })?),
    };
    Ok(Storage::Tikv(TikvOptions {
        pd_endpoints,
        tls,
        key_prefix,
        cluster_id,
        gc_interval: values.duration("tikv-gc-interval")?,
        gc_window,
    }))
}
