//! The files by which programs and people find an API server.

use std::path::PathBuf;

use serde_json::json;

use crate::cluster_dir::ClusterDir;

/// Writes `inside` the home: `server` as the user whose certificate is `pki/<user>.crt`.
///
/// # Errors
///
/// It cannot be written.
pub fn write(home: &ClusterDir, inside: &str, server: &str, authority: &str, user: &str) -> anyhow::Result<PathBuf> {
    let name = home.name();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {
            "server": server,
            "certificate-authority": home.path(format!("pki/{authority}.crt")),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate": home.path(format!("pki/{user}.crt")),
            "client-key": home.path(format!("pki/{user}.key")),
        }}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    });
    home.write(inside, serde_yaml::to_string(&config)?)
}
