//! The ports of a member, as its configuration names them.

use etcd_types::url::Url;

use crate::flags::Config;
use net::serve::{PortLimits, PortOptions, PortPurpose, Server};

/// Binds every URL for clients; see [`Server::bind`].
pub(crate) fn bind_clients(config: &Config) -> anyhow::Result<Server> {
    let client = match config.listen_client_http_urls.is_empty() {
        true => PortPurpose::Both,
        false => PortPurpose::Grpc,
    };
    let urls = [
        (&config.listen_client_urls, client),
        (&config.listen_client_http_urls, PortPurpose::Http),
        (&config.listen_metrics_urls, PortPurpose::Metrics),
    ];
    let urls: Vec<_> = urls.iter().flat_map(|(urls, purpose)| all(urls, *purpose)).collect();
    Server::bind(&urls, &config.client_tls, options(config))
}

/// Binds every URL for peers; see [`Server::bind`].
pub(crate) fn bind_peers(config: &Config) -> anyhow::Result<Server> {
    let urls: Vec<_> = all(&config.listen_peer_urls, PortPurpose::Peers).collect();
    Server::bind(&urls, &config.peer_tls, options(config))
}

/// Binds the URL on which plain HTTP serves the leader's name, if there is one; see [`Server::bind`].
pub(crate) fn bind_leader(config: &Config) -> anyhow::Result<Server> {
    let urls: Vec<_> = all(config.leader_http.as_slice(), PortPurpose::Metrics).collect();
    Server::bind(&urls, &config.client_tls, options(config))
}

/// Binds the URLs for metrics alone; see [`Server::bind`].
pub(crate) fn bind_metrics(config: &Config) -> anyhow::Result<Server> {
    let urls: Vec<_> = all(&config.listen_metrics_urls, PortPurpose::Metrics).collect();
    Server::bind(&urls, &config.client_tls, options(config))
}

fn all(urls: &[Url], purpose: PortPurpose) -> impl Iterator<Item = (Url, PortPurpose)> {
    urls.iter().map(move |url| (url.clone(), purpose))
}

fn options(config: &Config) -> PortOptions {
    let limits = &config.limits;
    PortOptions {
        tls_policy: config.tls_policy.clone(),
        socket: config.socket,
        keepalive: config.keepalive,
        browsers: config.browsers.clone(),
        grpc_gateway: config.grpc_gateway,
        limits: PortLimits {
            max_receive_bytes: limits.max_receive_bytes,
            max_txn_ops: limits.max_txn_ops,
            max_concurrent_streams: limits.max_concurrent_streams,
            max_inflight_bytes: limits.max_inflight_bytes,
        },
    }
}
