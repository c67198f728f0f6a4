//! containerd, with all it writes in the cluster's home.

use std::path::Path;

use anyhow::Context as _;
use programs::command::run;
use programs::tools::debian;
use serde_json::json;

use crate::cluster_context::ClusterContext;
use crate::cluster_dir::ClusterDir;
use crate::images;
use crate::namespace::NODE_PODS;
use crate::supervisor::SupervisedProgram;

/// The program's name in state and logs.
pub const NAME: &str = "containerd";

/// Writes its configuration and the pods' network, and tells what to run.
///
/// # Errors
///
/// A file cannot be written, or there is no containerd.
pub fn program(site: &ClusterContext) -> anyhow::Result<SupervisedProgram> {
    let home = &site.home;
    let config = home.write("config/containerd.toml", config(home))?;
    home.write("cni/10-pods.conflist", serde_json::to_vec_pretty(&network(home))?)?;
    let path = debian::find("containerd")?;
    Ok(site.program(NAME, &path, [Path::new("--config"), &config]))
}

fn config(home: &ClusterDir) -> String {
    let (node, socket) = (home.node(), home.containerd_socket());
    let (node, socket, cni) = (node.display(), socket.display(), home.path("cni"));
    format!(
        r#"version = 2
root = "{node}/containerd"
state = "{node}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # namespaces of pods are mounts below `state`, not in a directory that all of a machine's containerds share
  netns_mounts_under_state_dir = true
  # without CAP_SYS_RESOURCE runc may not lower oom_score_adj: it fails with "can't get final child's PID from pipe"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node}/opt"
"#,
        pause = images::POD,
        cni = cni.display(),
    )
}

/// A bridge; its name tells the cluster's files from others in the directory where CNI keeps results.
fn network(home: &ClusterDir) -> serde_json::Value {
    json!({"cniVersion": "0.4.0", "name": home.netns(), "plugins": [{
        "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
        "ipam": {
            "type": "host-local",
            "dataDir": home.node().join("addresses"),
            "ranges": [[{"subnet": NODE_PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }]})
}

/// Checks that it serves.
///
/// # Errors
///
/// It does not, and why.
pub fn serves(home: &ClusterDir) -> anyhow::Result<()> {
    ctr(home, &["version"])
}

/// Imports an image for pods.
///
/// # Errors
///
/// `ctr` fails.
pub fn import(home: &ClusterDir, archive: &Path) -> anyhow::Result<()> {
    let archive = archive.to_str().context("an archive's path is not UTF-8")?;
    ctr(home, &["--namespace", "k8s.io", "images", "import", archive])
}

/// Gives an existing image another name.
///
/// # Errors
///
/// `ctr` fails.
pub fn tag(home: &ClusterDir, image: &str, name: &str) -> anyhow::Result<()> {
    ctr(
        home,
        &["--namespace", "k8s.io", "images", "tag", "--force", image, name],
    )
}

fn ctr(home: &ClusterDir, args: &[&str]) -> anyhow::Result<()> {
    let socket = home.containerd_socket();
    let socket = socket
        .to_str()
        .context("the path of the cluster directory is not UTF-8")?;
    run(debian::find("ctr")?, ["--address", socket].iter().chain(args))?;
    Ok(())
}
