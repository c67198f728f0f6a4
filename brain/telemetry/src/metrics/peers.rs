//! The traffic with other members, under etcd's names. Labels are the ids of members, in hexadecimal digits.
//!
//! A follower dials its leader, and followers do not speak to each other: series exist for pairs of a leader and a follower.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::Registrar;

/// The traffic with other members. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerMetrics {
    sent: IntCounterVec,
    received: IntCounterVec,
    sent_failures: IntCounterVec,
    received_failures: IntCounterVec,
    round_trip: HistogramVec,
    active: IntGaugeVec,
    disconnected: IntCounterVec,
    known: IntGaugeVec,
}

/// The bytes of the connections with one member, within TLS.
#[derive(Debug, Clone)]
pub struct PeerBytes {
    /// Bytes sent to it.
    pub sent: IntCounter,
    /// Bytes received from it.
    pub received: IntCounter,
}

impl PeerMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            sent: r.counters("etcd_network_peer_sent_bytes_total", "Bytes sent to peers.", &["To"]),
            received: r.counters(
                "etcd_network_peer_received_bytes_total",
                "Bytes received from peers.",
                &["From"],
            ),
            sent_failures: r.counters(
                "etcd_network_peer_sent_failures_total",
                "Peers that could not be dialled, and requests to them that got no answer.",
                &["To"],
            ),
            received_failures: r.counters(
                "etcd_network_peer_received_failures_total",
                "Streams of committed records that broke.",
                &["From"],
            ),
            round_trip: r.histograms(
                "etcd_network_peer_round_trip_time_seconds",
                "Round trips to the leader, one every five seconds.",
                &["To"],
                0.0001,
                16,
            ),
            active: r.gauges(
                "etcd_network_active_peers",
                "Streams of committed records that are open between a leader and a follower.",
                &["Local", "Remote"],
            ),
            disconnected: r.counters(
                "etcd_network_disconnected_peers_total",
                "Streams of committed records that have ended.",
                &["Local", "Remote"],
            ),
            known: r.gauges(
                "etcd_network_known_peers",
                "1 for each member of the cluster, this one included.",
                &["Local", "Remote"],
            ),
        }
    }

    /// Returns the counters of the bytes of connections with a member.
    #[must_use]
    pub fn bytes(&self, member: u64) -> PeerBytes {
        let id = hex(member);
        PeerBytes {
            sent: self.sent.with_label_values(&[&id]),
            received: self.received.with_label_values(&[&id]),
        }
    }

    /// Sets the members that are known.
    pub fn set_known(&self, local: u64, members: impl Iterator<Item = u64>) {
        self.known.reset();
        for member in members {
            self.known.with_label_values(&[&hex(local), &hex(member)]).set(1);
        }
    }

    /// Counts a member that could not be dialled, or a request that it did not answer.
    pub fn send_failed(&self, member: u64) {
        self.sent_failures.with_label_values(&[&hex(member)]).inc();
    }

    /// Counts a stream of a member that broke.
    pub fn receive_failed(&self, member: u64) {
        self.received_failures.with_label_values(&[&hex(member)]).inc();
    }

    /// Records a round trip to a member.
    pub fn round_trip(&self, member: u64, took: Duration) {
        let trips = self.round_trip.with_label_values(&[&hex(member)]);
        trips.observe(took.as_secs_f64());
    }

    /// Counts a stream between two members as open until the returned guard is dropped.
    #[must_use]
    pub fn connect(&self, local: u64, remote: u64) -> ActivePeer {
        let (local, remote) = (hex(local), hex(remote));
        let active = self.active.with_label_values(&[&local, &remote]);
        active.inc();
        ActivePeer {
            active,
            disconnected: self.disconnected.with_label_values(&[&local, &remote]),
        }
    }
}

impl Default for PeerMetrics {
    /// Creates metrics that are not exported.
    fn default() -> Self {
        Self::register(&Registrar::new(Registry::new()))
    }
}

/// A stream between two members that is open.
#[derive(Debug)]
pub struct ActivePeer {
    active: IntGauge,
    disconnected: IntCounter,
}

impl Drop for ActivePeer {
    fn drop(&mut self) {
        self.active.dec();
        self.disconnected.inc();
    }
}

fn hex(member: u64) -> String {
    format!("{member:x}")
}
