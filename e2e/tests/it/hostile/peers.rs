//! The peer port: it is for members alone.

use programs::tikv::Tikv;
use tonic::transport::Endpoint;
use wire::etcdserverpb::cluster_client::ClusterClient;

use super::tls::Pki;
use super::*;

const FOLLOW_PATH: &str = "/peerpb.Peer/Follow";

/// A member on TiKV that is alone, and its peer port.
struct Member {
    server: Server,
    peer: SocketAddr,
    _home: tempfile::TempDir,
    _tikv: Tikv,
}

impl Member {
    fn start(more: impl FnOnce(u16) -> Vec<String>) -> anyhow::Result<Self> {
        let (tikv, home) = (Tikv::for_test()?, tempfile::tempdir()?);
        let ports = free_ports()?;
        let mut flags = vec![
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={}", tikv.pd()),
            format!("--tikv-key-prefix=hostile-{:032x}", rand::random::<u128>()),
        ];
        flags.extend(more(ports.client));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let data = home.path().join("data");
        let server = Server::start_at(&Program::kubebrain()?, ports, &data, &flags)?;
        Ok(Self {
            server,
            peer: SocketAddr::from(([127, 0, 0, 1], ports.peer)),
            _home: home,
            _tikv: tikv,
        })
    }
}

/// peerpb's request to follow the leader.
#[derive(Clone, PartialEq, prost::Message)]
struct FollowRequest {
    #[prost(message, optional, tag = "1")]
    member: Option<pb::Member>,
    #[prost(string, tag = "2")]
    identity: String,
    #[prost(uint64, tag = "3")]
    cluster_id: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_neither_follows_nor_is_listed() {
    let _deadline = deadline();
    let member = Member::start(|_| Vec::new()).unwrap();
    let mut cluster = ClusterClient::new(member.server.connect().await.unwrap());
    let list = pb::MemberListRequest { linearizable: false };
    let before = cluster.member_list(list).await.unwrap().into_inner();
    let follow = FollowRequest {
        member: Some(pb::Member {
            id: 4_711,
            name: "stranger".to_owned(),
            peer_ur_ls: vec!["http://127.0.0.1:1".to_owned()],
            client_ur_ls: vec!["http://127.0.0.1:2".to_owned()],
            is_learner: false,
        }),
        identity: "stranger".to_owned(),
        cluster_id: before.header.unwrap().cluster_id,
    };
    let mut attacker = Http2::open(member.peer, 65_535).await.unwrap();
    // it may be cut off at once
    drop(attacker.unary(FOLLOW_PATH, &follow.encode_to_vec()).await);
    let refused = timeout(ANSWER_TIMEOUT, attacker.ended(1)).await;
    let after = cluster.member_list(list).await.unwrap().into_inner();
    let names: Vec<_> = after.members.iter().map(|member| member.name.clone()).collect();
    assert_eq!(after.members.len(), before.members.len(), "{names:?}");
    refused.expect("the stranger's stream ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_to_the_peer_port_are_bounded() {
    let _deadline = deadline();
    let mut member = Member::start(|_| Vec::new()).unwrap();
    let before = member.server.usage().unwrap().rss;
    let body = http2::framed(&put("large", vec![b'v'; 96 << 20]).encode_to_vec());
    let mut attackers = Vec::new();
    for _ in 0..6 {
        attackers.push(Http2::open(member.peer, 65_535).await.unwrap());
    }
    let attacks = attackers.iter_mut().map(async |attacker| {
        let stream = attacker.call(PUT, &[]).await?;
        attacker.body(stream, &body[..body.len() - 1], false).await
    });
    drop(join_all(attacks).await);
    let grown = member.server.usage().unwrap().peak_rss.saturating_sub(before) >> 20;
    assert!(grown < 320, "{grown} MiB more at the peak");
    assert!(member.server.ended().unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_port_is_no_way_around_client_certificates() {
    let _deadline = deadline();
    let pki = Pki::new();
    let member = match Member::start(|client| pki.flags(client)) {
        Ok(member) => member,
        Err(refused) => {
            let said = format!("{refused:#}");
            assert!(said.contains("peer"), "{said}");
            return;
        }
    };
    let answered = timeout(ANSWER_TIMEOUT, async {
        let endpoint = Endpoint::new(format!("http://{}", member.peer))?;
        let mut client = KvClient::new(endpoint.connect().await?);
        let written = client.put(put("a", b"b".to_vec())).await;
        anyhow::Ok(written.map(drop)?)
    });
    assert!(!matches!(answered.await, Ok(Ok(()))), "a put without a certificate");
}
