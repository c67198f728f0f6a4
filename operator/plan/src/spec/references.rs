//! Secrets and ConfigMaps that a spec names. They must not be ones that the operator created for another cluster.
//!
//! Otherwise a user who may create a cluster could read the keys of other clusters by naming them.

use crds::KubeBrainCluster;

use super::{OperatorSettings, SpecRefusal, invalid, pod_template};
use crate::objects::ObjectKind;

/// Refuses a spec that names an object of another cluster; `owner` returns the owner of an object.
///
/// # Errors
/// The first such field.
pub fn check(
    cluster: &KubeBrainCluster,
    settings: &OperatorSettings,
    owner: impl Fn(ObjectKind, &str) -> Option<String>,
) -> Result<(), SpecRefusal> {
    let own = cluster.metadata.name.as_deref();
    for (path, kind, name) in references(cluster, settings) {
        if let Some(other) = owner(kind, &name).filter(|other| Some(other.as_str()) != own) {
            return Err(invalid(format!(
                "{path}: {kind:?} {name} belongs to the cluster {other}"
            )));
        }
    }
    Ok(())
}

/// Returns the objects that a spec names, by field.
fn references(cluster: &KubeBrainCluster, settings: &OperatorSettings) -> Vec<(String, ObjectKind, String)> {
    let spec = &cluster.spec;
    let mut named: Vec<(&str, &String)> = Vec::new();
    if let Some(given) = &spec.tls.secrets {
        named.extend([
            ("tls.secrets.caBundle", &given.ca_bundle.name),
            ("tls.secrets.server", &given.server.name),
            ("tls.secrets.peer", &given.peer.name),
            ("tls.secrets.operatorClient", &given.operator_client.name),
        ]);
    }
    let own_authority = spec.tls.ca_secret_ref.as_ref();
    named.extend(own_authority.map(|reference| ("tls.caSecretRef", &reference.name)));
    if let Some(tls) = spec.storage.tikv.as_ref().and_then(|tikv| tikv.tls.as_ref()) {
        named.push(("storage.tikv.tls.caSecretRef", &tls.ca_secret_ref.name));
        named.push(("storage.tikv.tls.clientSecretRef", &tls.client_secret_ref.name));
    }
    named.extend(
        spec.jwt_secret_ref
            .as_ref()
            .map(|reference| ("jwtSecretRef", &reference.name)),
    );
    let mut references: Vec<(String, ObjectKind, String)> = named
        .into_iter()
        .map(|(path, name)| (path.to_owned(), ObjectKind::Secret, name.clone()))
        .collect();
    let template = spec.pod_template.as_ref().filter(|_| !settings.allow_unsafe_pods);
    let maps = template.map(pod_template::config_maps).unwrap_or_default();
    references.extend(maps.into_iter().map(|(path, name)| (path, ObjectKind::ConfigMap, name)));
    references
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{cluster, settings};

    /// Returns the owners of `other-ca` and `dev-ca`; all other Secrets have none.
    fn owner(_: ObjectKind, name: &str) -> Option<String> {
        let (cluster, _) = name.split_once("-ca")?;
        Some(cluster.to_owned())
    }

    fn judged(spec: Value) -> String {
        let strict = OperatorSettings {
            allow_unsafe_pods: false,
            ..settings()
        };
        let refusal = check(&cluster(spec), &strict, owner).err();
        refusal.map(|refusal| refusal.message).unwrap_or_default()
    }

    fn tikv(tls: Value) -> Value {
        json!({"storage": {"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"], "tls": tls}}})
    }

    #[test]
    fn secret_of_another_cluster_is_refused_wherever_it_is_named() {
        let key = json!({"name": "other-ca", "key": "ca.key"});
        let named = |field: &str| {
            let mut secrets = json!({
                "caBundle": {"name": "a"}, "server": {"name": "b"}, "peer": {"name": "c"}, "operatorClient": {"name": "d"},
            });
            secrets[field]["name"] = json!("other-ca");
            json!({"tls": {"mode": "Secret", "secrets": secrets}})
        };
        for (spec, path) in [
            (
                tikv(json!({"caSecretRef": key, "clientSecretRef": {"name": "x"}})),
                "storage.tikv.tls.caSecretRef",
            ),
            (
                tikv(json!({"caSecretRef": {"name": "x"}, "clientSecretRef": {"name": "other-ca"}})),
                "storage.tikv.tls.clientSecretRef",
            ),
            (json!({"tls": {"caSecretRef": {"name": "other-ca"}}}), "tls.caSecretRef"),
            (named("caBundle"), "tls.secrets.caBundle"),
            (named("server"), "tls.secrets.server"),
            (named("peer"), "tls.secrets.peer"),
            (named("operatorClient"), "tls.secrets.operatorClient"),
            (json!({"jwtSecretRef": {"name": "other-ca"}}), "jwtSecretRef"),
        ] {
            let expected = format!("{path}: Secret other-ca belongs to the cluster other");
            assert_eq!(judged(spec.clone()), expected, "{spec}");
        }
        let own = tikv(json!({"caSecretRef": {"name": "dev-ca"}, "clientSecretRef": {"name": "nobodys"}}));
        assert_eq!(judged(own), "");
    }

    #[test]
    fn config_map_of_another_cluster_is_refused_in_a_pod_template() {
        let mount = |name: &str| {
            let volume = json!({"name": "a", "configMap": {"name": name}});
            json!({"podTemplate": {"spec": {"volumes": [volume]}}})
        };
        assert_eq!(
            judged(mount("other-ca-bundle")),
            "podTemplate.spec.volumes[0].configMap: ConfigMap other-ca-bundle belongs to the cluster other"
        );
        assert_eq!(judged(mount("dev-ca-bundle")), "");
        assert_eq!(judged(mount("settings")), "");
        assert!(
            check(&cluster(mount("other-ca-bundle")), &settings(), owner).is_ok(),
            "left to admission"
        );
    }
}
