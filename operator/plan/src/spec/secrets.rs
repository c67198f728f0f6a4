//! The Secrets of the user that a spec names, and the parts of them that are read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::KubeBrainClusterSpec;
use crds::cluster::tls::TlsMode;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::core::ObjectMeta;

use crate::names::{CLUSTER, MANAGED_BY};

/// Maximum size of a Secret's value that is kept, in bytes. Certificates are smaller.
pub const MAX_VALUE_BYTES: usize = 128 << 10;
/// Maximum size of all values of a Secret that are kept, in bytes. Values that a spec names are kept first.
const MAX_VALUES_BYTES: usize = 160 << 10;
/// Secrets that a spec names, by their names; `None` for one that does not exist.
pub type GivenSecrets = BTreeMap<String, Option<Arc<Secret>>>;

/// Secrets that a spec names, with the keys of each whose values are read.
pub type NamedSecrets = BTreeMap<String, BTreeSet<String>>;

/// Drops unused metadata and values that are too large for a certificate, because the Secret may contain anything. Other values never
/// displace those of `keys`.
pub fn pruned(mut secret: Secret, keys: &BTreeSet<String>) -> Arc<Secret> {
    let own = |key: &str| {
        let labels = secret.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .map(|value| (key.to_owned(), value.clone()))
    };
    let labels = [CLUSTER, MANAGED_BY].into_iter().filter_map(own).collect();
    secret.metadata = ObjectMeta {
        name: secret.metadata.name.take(),
        namespace: secret.metadata.namespace.take(),
        uid: secret.metadata.uid.take(),
        resource_version: secret.metadata.resource_version.take(),
        deletion_timestamp: secret.metadata.deletion_timestamp.take(),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    let mut values: Vec<(String, ByteString)> = secret.data.take().unwrap_or_default().into_iter().collect();
    values.sort_by_key(|(key, value)| (!keys.contains(key), value.0.len()));
    let mut left = MAX_VALUES_BYTES;
    values.retain(|(key, value)| {
        let fits = value.0.len() <= MAX_VALUE_BYTES && key.len() + value.0.len() + 64 <= left;
        left -= if fits { key.len() + value.0.len() + 64 } else { 0 };
        fits
    });
    secret.data = Some(values.into_iter().collect());
    Arc::new(secret)
}

/// Returns true for a valid object name. Any other string could be read as a longer path.
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty() && name.len() <= 253 && name.chars().all(good)
}

/// Returns the Secrets of the user that a spec names. For Secrets with the keys of tokens, only their existence matters.
pub fn named(spec: &KubeBrainClusterSpec) -> NamedSecrets {
    const PAIR: [&str; 2] = ["tls.crt", "tls.key"];
    let mut named = NamedSecrets::new();
    let mut add = |name: &String, keys: &[&str]| {
        let read = named.entry(name.clone()).or_default();
        read.extend(keys.iter().map(|key| (*key).to_owned()));
    };
    if let Some(secrets) = spec.tls.secrets.as_ref().filter(|_| spec.tls.mode == TlsMode::Secret) {
        add(&secrets.ca_bundle.name, &[&secrets.ca_bundle.key]);
        for pair in [&secrets.server, &secrets.peer, &secrets.operator_client] {
            add(&pair.name, &PAIR);
        }
    }
    if let Some(authority) = &spec.tls.ca_secret_ref {
        add(&authority.name, &["ca.crt", "ca.key"]);
        add(&authority.name, &PAIR);
    }
    if let Some(tls) = spec.storage.tikv.as_ref().and_then(|tikv| tikv.tls.as_ref()) {
        add(&tls.ca_secret_ref.name, &[&tls.ca_secret_ref.key]);
        add(&tls.client_secret_ref.name, &PAIR);
    }
    if let Some(tokens) = &spec.jwt_secret_ref {
        add(&tokens.name, &[]);
    }
    named.remove("");
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_a_spec_names_is_kept_beside_any_others() {
        let value = |size: usize| ByteString(vec![b'x'; size]);
        let smaller = (0..100).map(|number| (format!("other-{number:03}"), value(3 << 10)));
        let secret = Secret {
            data: Some(smaller.chain([("ca.crt".to_owned(), value(4 << 10))]).collect()),
            ..Secret::default()
        };
        let kept = |keys: &[&str]| {
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            pruned(secret.clone(), &keys).data.clone().unwrap()
        };
        assert!(!kept(&[]).contains_key("ca.crt"), "the others take all there is");
        assert!(kept(&["ca.crt"]).contains_key("ca.crt"));
        let all: usize = kept(&["ca.crt"]).values().map(|value| value.0.len()).sum();
        assert!(all <= MAX_VALUES_BYTES, "{all}");
    }
}
