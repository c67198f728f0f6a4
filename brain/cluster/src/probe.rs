//! Measures round trips to the leader, as etcd's members probe each other.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::Code;
use tonic::transport::Channel;

use etcd_types::pb::peerpb::ProbeRequest;
use etcd_types::pb::peerpb::peer_client::PeerClient;
use telemetry::metrics::PeerMetrics;

/// The interval between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The timeout of a probe: longer round trips count as failures.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Sends probes to the member `leader` over `channel`, one at a time, until the future is dropped.
pub(super) async fn run(channel: Channel, leader: u64, metrics: PeerMetrics) {
    let mut client = PeerClient::new(channel);
    let mut probes = interval(PROBE_INTERVAL);
    probes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        probes.tick().await;
        let began = Instant::now();
        let answer = timeout(PROBE_TIMEOUT, client.probe(ProbeRequest {})).await;
        let is_answer = match &answer {
            // A leader of an older version does not know probes, but answers.
            Ok(Err(status)) => status.code() == Code::Unimplemented,
            Ok(Ok(_)) => true,
            Err(_) => false,
        };
        if is_answer {
            metrics.round_trip(leader, began.elapsed());
        } else {
            metrics.send_failed(leader);
        }
    }
}
