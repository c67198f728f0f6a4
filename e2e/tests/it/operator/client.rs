//! Connections to the member in a pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use wire::etcdserverpb as pb;

use super::brains::{Brains, Credentials};
use super::pods::address;

/// For a member to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For a member to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The way to the member that serves as `host` at `address`.
pub(super) fn endpoint(address: &str, host: String, credentials: &Credentials) -> Endpoint {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&credentials.trusted))
        .identity(Identity::from_pem(&credentials.certificate, &credentials.key))
        .domain_name(host);
    let endpoint = Endpoint::new(format!("https://{address}:2379")).unwrap();
    endpoint
        .tls_config(tls)
        .unwrap()
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
}

impl Brains<'_> {
    /// The name that the member in a pod serves as.
    pub(super) fn host(&self, pod: &str) -> String {
        format!("{pod}.{}-headless.{}.svc", self.name, self.kit.namespace)
    }

    async fn channel(&self, pod: &Pod) -> Result<Channel, String> {
        let host = self.host(&pod.name_any());
        let address = address(pod).ok_or("the pod has no address")?;
        let endpoint = endpoint(&address, host, &self.credentials().await).timeout(ANSWER_TIMEOUT);
        endpoint.connect().await.map_err(|error| error.to_string())
    }

    /// Returns the number of keys, read through the first member.
    pub(super) async fn count_keys(&self) -> i64 {
        let request = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            count_only: true,
            ..pb::RangeRequest::default()
        };
        let mut kv = Box::pin(self.kv()).await;
        kv.range(request).await.unwrap().into_inner().count
    }

    /// Connects to the first member.
    pub(super) async fn connect(&self) -> Channel {
        let pods = self.pods().await;
        Box::pin(self.channel(&pods[0])).await.unwrap()
    }

    /// The same, for requests about keys.
    pub(super) async fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.connect().await)
    }

    /// Makes the leader hand over to the member in another pod, as `etcdctl move-leader` does.
    ///
    /// # Errors
    /// One of them cannot be reached, or refuses: a roll-out may replace them at the same time.
    pub(super) async fn move_leader(&self, to: &Pod) -> Result<(), String> {
        let leader = self.leader().await;
        let leader = self.kit.api::<Pod>().get(&leader).await;
        let leader = leader.map_err(|error| error.to_string())?;
        let id = self.member(to).await?["memberID"].as_str().unwrap().to_owned();
        let request = pb::MoveLeaderRequest {
            target_id: u64::from_str_radix(&id, 16).unwrap(),
        };
        let mut maintenance = MaintenanceClient::new(Box::pin(self.channel(&leader)).await?);
        let moved = maintenance.move_leader(request).await;
        moved.map(|_| ()).map_err(|status| status.to_string())
    }
}

/// Writes a key through the member in a pod that speaks without TLS, and reads it.
pub(super) async fn write_in_the_clear(pod: &Pod) {
    let url = format!("http://{}:2379", address(pod).unwrap());
    let channel = Endpoint::new(url)
        .unwrap()
        .timeout(ANSWER_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let mut kv = KvClient::new(channel);
    let put = pb::PutRequest {
        key: "clear".into(),
        value: "text".into(),
        ..pb::PutRequest::default()
    };
    kv.put(put).await.unwrap();
    let range = pb::RangeRequest {
        key: "clear".into(),
        ..pb::RangeRequest::default()
    };
    let there = kv.range(range).await.unwrap().into_inner();
    assert_eq!(there.kvs[0].value, "text");
}
