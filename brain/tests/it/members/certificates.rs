//! Certificates between members: either side refuses a wrong one and logs it once, and a replaced one is used at once.

use std::fs;
use std::path::Path;

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use tokio::time::Instant;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

/// Log lines of the member that accepts, and of the one that dials.
const ACCEPTOR_MESSAGE: &str = "rejected a peer";
const DIALLER_MESSAGE: &str = "the leader refuses this member's certificate, or has a wrong one";

pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Ca {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Ca { issuer, pem }
    }

    /// Writes a certificate of this machine under a common name, and its key.
    pub(crate) fn write(&self, dir: &Path, file: &str, name: &str, expires_in: Duration) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        params
            .subject_alt_names
            .push(SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = OffsetDateTime::now_utc() - Duration::days(2);
        params.not_after = OffsetDateTime::now_utc() + expires_in;
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        // Replaced as a whole: a reader sees one or the other.
        for (suffix, text) in [("crt", cert), ("key", key.serialize_pem())] {
            let path = dir.join(format!("{file}.{suffix}"));
            fs::write(path.with_extension("new"), text).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }
    }
}

/// Two members that speak TLS with each other, and the files of their certificates.
struct Pair {
    site: Site,
    dir: TempDir,
    ca: Ca,
}

impl Pair {
    async fn new() -> Pair {
        let pair = Pair {
            site: Site::new(2).await,
            dir: TempDir::new().unwrap(),
            ca: Ca::new("ours"),
        };
        fs::write(pair.dir.path().join("ca.crt"), &pair.ca.pem).unwrap();
        for (file, name) in [("listen0", "b0"), ("dial0", "b0"), ("listen1", "b1"), ("dial1", "b1")] {
            pair.ca.write(pair.dir.path(), file, name, Duration::days(1));
        }
        pair
    }

    /// Starts a member; the first one leads.
    fn begin(&self, member: usize, more: &[&str]) -> Process {
        let dir = self.dir.path().display();
        let mut flags = self.site.flags(member, 2);
        flags.extend(over_tls(&self.site, member));
        flags.extend([
            "--peer-client-cert-auth=true".to_owned(),
            format!("--peer-trusted-ca-file={dir}/ca.crt"),
            format!("--peer-cert-file={dir}/listen{member}.crt"),
            format!("--peer-key-file={dir}/listen{member}.key"),
            format!("--peer-client-cert-file={dir}/dial{member}.crt"),
            format!("--peer-client-key-file={dir}/dial{member}.key"),
        ]);
        flags.extend(more.iter().map(ToString::to_string));
        Process::begin(&flags, self.site.client_url(member))
    }

    async fn leader(&self, more: &[&str]) -> Process {
        let leader = self.begin(0, more);
        leader.says("ready to serve client requests").await;
        leader
    }
}

/// The flags by which one of two members is dialled over TLS.
fn over_tls(site: &Site, member: usize) -> [String; 3] {
    let url = |member: usize| site.peer_url(member).replace("http://", "https://");
    [
        format!("--listen-peer-urls={}", url(member)),
        format!("--initial-advertise-peer-urls={}", url(member)),
        format!("--initial-cluster=b0={},b1={}", url(0), url(1)),
    ]
}

/// Puts something wrong in the place of a certificate.
type Spoil = fn(&Pair);

/// Handshakes that the listeners of a member have seen fail.
async fn failed(member: &Process) -> u64 {
    let (_, metrics) = member.get("/metrics").await;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("kubebrain_network_handshakes_failed_total "));
    line.unwrap().parse().unwrap()
}

/// Waits until the leader has refused many dials.
async fn refuses_many(leader: &Process) {
    let begun = Instant::now();
    while failed(leader).await < 5 {
        assert!(begun.elapsed() < STEP_TIMEOUT, "nobody dials");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_with_a_wrong_certificate_is_refused_and_both_say_so_once() {
    let cases: [(&str, Spoil, &[&str], &str); 4] = [
        (
            "of another CA",
            |pair| Ca::new("other").write(pair.dir.path(), "dial1", "b1", Duration::days(1)),
            &[],
            "is not among the trusted CAs",
        ),
        (
            "expired",
            |pair| pair.ca.write(pair.dir.path(), "dial1", "b1", -Duration::days(1)),
            &[],
            "expired at",
        ),
        (
            "of no allowed common name",
            |_| {},
            &["--peer-cert-allowed-cn=b0"],
            "has no allowed common name",
        ),
        (
            "of no allowed host",
            |_| {},
            &["--peer-cert-allowed-hostname=b0.example"],
            "has no allowed host name",
        ),
    ];
    for (case, spoil, leaders, reason) in cases {
        let pair = Pair::new().await;
        spoil(&pair);
        let leader = pair.leader(leaders).await;
        let follower = pair.begin(1, &[]);
        leader.says(ACCEPTOR_MESSAGE).await;
        follower.says(DIALLER_MESSAGE).await;
        refuses_many(&leader).await;
        assert_eq!(
            (leader.said(ACCEPTOR_MESSAGE), follower.said(DIALLER_MESSAGE)),
            (1, 1),
            "{case}"
        );
        assert_eq!(leader.said(reason), 1, "{case}");
        assert_eq!(follower.said("ready to serve client requests"), 0, "{case}");
        follower.kill().await;
        leader.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_a_wrong_certificate_is_not_followed() {
    let cases: [(&str, Spoil, &[&str]); 3] = [
        (
            "of another CA",
            |pair| Ca::new("other").write(pair.dir.path(), "listen0", "b0", Duration::days(1)),
            &[],
        ),
        ("of no allowed common name", |_| {}, &["--peer-cert-allowed-cn=b1"]),
        (
            "of no allowed host",
            |_| {},
            &["--peer-cert-allowed-hostname=b1.example"],
        ),
    ];
    for (case, spoil, followers) in cases {
        let pair = Pair::new().await;
        spoil(&pair);
        let leader = pair.leader(&[]).await;
        let follower = pair.begin(1, followers);
        follower.says(DIALLER_MESSAGE).await;
        refuses_many(&leader).await;
        assert_eq!(follower.said(DIALLER_MESSAGE), 1, "{case}");
        assert_eq!(follower.said("ready to serve client requests"), 0, "{case}");
        follower.kill().await;
        leader.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_certificates_are_shown_without_a_restart() {
    for file in ["dial1", "listen0"] {
        let pair = Pair::new().await;
        let name = if file == "dial1" { "b1" } else { "b0" };
        Ca::new("other").write(pair.dir.path(), file, name, Duration::days(1));
        let leader = pair.leader(&[]).await;
        let follower = pair.begin(1, &[]);
        follower.says(DIALLER_MESSAGE).await;
        pair.ca.write(pair.dir.path(), file, name, Duration::days(1));
        follower.says("ready to serve client requests").await;
        follower.stop().await;
        leader.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_of_another_cluster_is_refused_and_both_say_so_once() {
    let (here, there) = (Site::new(2).await, Site::new(1).await);
    let stranger = there.lone().await;
    // A member whose flags lead to the leader of another cluster.
    let mut flags = here.flags(0, 1);
    flags.push(format!(
        "--initial-cluster=b0={},b1={}",
        here.peer_url(0),
        here.peer_url(1)
    ));
    let leader = Process::begin(&flags, here.client_url(0));
    leader.says("ready to serve client requests").await;
    leader.kill().await;
    // The leader of this one seems to be where the other one's is.
    let mut flags = here.flags(0, 1);
    flags.push(format!("--initial-advertise-peer-urls={}", there.peer_url(0)));
    flags.push(format!(
        "--initial-cluster=b0={},b1={}",
        there.peer_url(0),
        here.peer_url(1)
    ));
    flags.push("--initial-cluster-state=existing".to_owned());
    let leader = Process::begin(&flags, here.client_url(0));
    leader.says("ready to serve client requests").await;
    let mut flags = here.flags(1, 2);
    flags.push(format!(
        "--initial-cluster=b0={},b1={}",
        there.peer_url(0),
        here.peer_url(1)
    ));
    flags.push("--log-level=debug".to_owned());
    let follower = Process::begin(&flags, here.client_url(1));
    follower.says("the leader belongs to another cluster").await;
    stranger.says("a peer disconnected before it was authenticated").await;
    // It dials repeatedly, but logs the refusal only once.
    follower.says_often("cannot follow the leader", 10).await;
    assert_eq!(follower.said("the leader belongs to another cluster"), 1);
    assert_eq!(stranger.said("a peer disconnected before"), 1);
    follower.kill().await;
    leader.kill().await;
    stranger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_make_their_own_certificates_follow_each_other() {
    let (site, home) = (Site::new(2).await, TempDir::new().unwrap());
    let mut members = Vec::new();
    for member in 0..2 {
        let mut flags = site.flags(member, 2);
        flags.extend(over_tls(&site, member));
        let dir = home.path().join(format!("b{member}"));
        flags.extend(["--peer-auto-tls".to_owned(), format!("--data-dir={}", dir.display())]);
        let started = Process::begin(&flags, site.client_url(member));
        started.says("ready to serve client requests").await;
        assert!(dir.join("fixtures/peer").is_dir());
        members.push(started);
    }
    let put = pb::PutRequest {
        key: "a".into(),
        ..pb::PutRequest::default()
    };
    // Forwarded.
    KvClient::new(members[1].connect().await).put(put).await.unwrap();
    for member in members.into_iter().rev() {
        member.stop().await;
    }
}
