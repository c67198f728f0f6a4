//! The operator's command line. An environment variable can set each flag, too.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Turns KubeBrainClusters into running brains.
#[derive(Debug, Clone, Parser)]
#[command(name = "kubebrain-operator", version)]
pub(crate) struct Flags {
    /// Image of brains whose spec does not name one; an image without tag or digest gets the spec's version
    #[arg(long, env = "KUBEBRAIN_DEFAULT_IMAGE", default_value = "kubebrain.io/kubebrain", value_parser = image)]
    pub(crate) default_image: String,

    /// Maximum number of clusters that move to a newer default image at a time; no further one begins while one of them is not ready with
    /// it
    #[arg(long, env = "KUBEBRAIN_MAX_CLUSTERS_UPDATING", default_value = "1", value_parser = at_least_one)]
    pub(crate) max_clusters_updating: usize,

    /// Namespaces whose clusters are managed, separated by commas; all namespaces if not set
    #[arg(long, env = "KUBEBRAIN_NAMESPACE", value_parser = label, value_delimiter = ',')]
    pub(crate) namespace: Vec<String>,

    /// DNS domain of the Kubernetes cluster
    #[arg(long, env = "KUBEBRAIN_CLUSTER_DOMAIN", default_value = "cluster.local", value_parser = domain)]
    pub(crate) cluster_domain: String,

    /// Time until a published trust bundle has reached all clients, such as `10m`; a CA key replacement waits this long
    #[arg(long, env = "KUBEBRAIN_CA_PROPAGATION", default_value = "10m", value_parser = duration)]
    pub(crate) ca_propagation: std::time::Duration,

    /// Allow a podTemplate to request rights that brains do not need: host namespaces, root, privileges, volumes of the node, service
    /// accounts and Secrets of others. Any user who may create a KubeBrainCluster can then create any pod in its namespace
    #[arg(long, env = "KUBEBRAIN_ALLOW_UNSAFE_PODS")]
    pub(crate) allow_unsafe_pods: bool,

    /// Labels and annotations that pods may have in addition to the known ones, as keys or as prefixes of keys followed by `*`, separated
    /// by commas, such as `example.com/*`; in Helm `allowedPodMetadata`
    #[arg(long, env = "KUBEBRAIN_ALLOWED_POD_METADATA", value_parser = pattern, value_delimiter = ',')]
    pub(crate) allowed_pod_metadata: Vec<String>,

    /// Directory of advisories about versions of brains, files `*.json` in the format of OSV that are about the package `kubebrain`. The
    /// condition VersionAffected of a cluster names those about its members; files are read again every half minute
    #[arg(long, env = "KUBEBRAIN_ADVISORIES_DIR")]
    pub(crate) advisories_dir: Option<PathBuf>,

    /// Address of /healthz, /readyz and /metrics; `[::]` means every address of both IP families
    #[arg(long, env = "KUBEBRAIN_LISTEN", default_value = "[::]:8080")]
    pub(crate) listen: SocketAddr,

    /// Work only while holding a Lease, so that several replicas may run
    #[arg(long, env = "KUBEBRAIN_LEADER_ELECT")]
    pub(crate) leader_elect: bool,

    /// Namespace of the Lease; default: the pod's own
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubebrain-system", value_parser = label)]
    pub(crate) leader_elect_namespace: String,

    /// Name of the Lease
    #[arg(long, env = "KUBEBRAIN_LEADER_ELECT_NAME", default_value = "kubebrain-operator", value_parser = domain)]
    pub(crate) leader_elect_name: String,

    /// Name of this replica in the Lease and in Events; default: the pod's name
    #[arg(long, env = "POD_NAME", default_value = "kubebrain-operator")]
    pub(crate) identity: String,

    /// Format of log lines
    #[arg(long, env = "KUBEBRAIN_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Log filter in the syntax of tracing, such as `info` or `operator=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info", value_parser = filter)]
    pub(crate) log: String,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

fn image(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if text.is_empty() || !text.chars().all(good) {
        return Err("must be a repository, optionally with a tag or digest".to_owned());
    }
    Ok(text.to_owned())
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    crds::duration::parse(text).map_err(|error| error.to_string())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a number of at least 1".to_owned()),
    }
}

fn pattern(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let beginning = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || !beginning.chars().all(good) {
        return Err("must be a key such as example.com/team, or a prefix of keys followed by *".to_owned());
    }
    Ok(text.to_owned())
}

fn label(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > 63 || !text.chars().all(good) || text.starts_with('-') || text.ends_with('-') {
        return Err("must have 1 to 63 characters of a-z, 0-9 and -, and not begin or end with -".to_owned());
    }
    Ok(text.to_owned())
}

fn domain(text: &str) -> Result<String, String> {
    text.split('.').try_for_each(|part| label(part).map(|_| ()))?;
    Ok(text.to_owned())
}

fn filter(text: &str) -> Result<String, String> {
    text.parse::<tracing_subscriber::EnvFilter>()
        .map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &[&str]) -> Result<Flags, String> {
        let all = ["kubebrain-operator"].iter().chain(more);
        Flags::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn no_flag_is_needed() {
        let flags = parse(&[]).unwrap();
        assert_eq!((flags.namespace.len(), flags.leader_elect), (0, false));
        assert_eq!(flags.cluster_domain, "cluster.local");
        assert_eq!(flags.default_image, "kubebrain.io/kubebrain");
        assert_eq!(flags.ca_propagation, std::time::Duration::from_secs(600));
    }

    #[test]
    fn lists_are_separated_by_commas() {
        assert_eq!(parse(&["--namespace=a,b"]).unwrap().namespace, ["a", "b"]);
        assert_eq!(
            parse(&["--namespace=a", "--namespace=b"]).unwrap().namespace,
            ["a", "b"]
        );
        assert!(parse(&["--namespace=a,,b"]).is_err());
        let allowed = parse(&["--allowed-pod-metadata=example.com/*,a/b"])
            .unwrap()
            .allowed_pod_metadata;
        assert_eq!(allowed, ["example.com/*", "a/b"]);
    }

    #[test]
    fn bad_values_are_refused_with_the_flag() {
        for bad in [
            "--namespace=A",
            "--cluster-domain=a..b",
            "--listen=8080",
            "--ca-propagation=10",
            "--max-clusters-updating=0",
            "--allowed-pod-metadata=*.example.com/a",
            "--log-format=xml",
            "--log=a=b=c",
        ] {
            let flag = bad.split_once('=').unwrap().0;
            let error = parse(&[bad]).unwrap_err();
            assert!(error.contains(flag), "{bad}: {error}");
        }
    }
}
