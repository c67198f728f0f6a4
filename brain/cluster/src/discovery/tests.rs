use std::net::{IpAddr, Ipv4Addr};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, SRV};
use hickory_resolver::proto::rr::{Name, Record};
use tokio::net::UdpSocket;

use super::*;
use crate::members::Members;
use crate::peers::{PeerAddresses, Peers};
use runtime::tasks::Owned;

/// The records of a minimal DNS server: SRV records by name, addresses by host. It does not answer while there are none.
#[derive(Clone, Default)]
struct Zone(Arc<Mutex<Vec<(&'static str, RData)>>>);

impl Zone {
    fn set(&self, records: impl IntoIterator<Item = (&'static str, RData)>) {
        *self.0.lock().unwrap() = records.into_iter().collect();
    }

    async fn serve(self) -> (Discovery, Owned<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut connection = ConnectionConfig::udp();
        connection.port = socket.local_addr().unwrap().port();
        let server = NameServerConfig::new(IpAddr::V4(Ipv4Addr::LOCALHOST), true, vec![connection]);
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = SrvDiscovery {
            domain: "brains.test".to_owned(),
            name: String::new(),
        };
        let discovery = Discovery::with(builder, &options).unwrap();
        let serving = Owned::start(async move {
            let mut buffer = [0; 1500];
            loop {
                let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
                let asked = Message::from_vec(&buffer[..len]).unwrap();
                if let Some(answer) = self.answer(&asked) {
                    socket.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
                }
            }
        });
        (discovery, serving)
    }

    fn answer(&self, asked: &Message) -> Option<Message> {
        let query = asked.queries.first()?;
        let mut answer = Message::response(asked.metadata.id, asked.metadata.op_code);
        answer.add_query(query.clone());
        let zone = self.0.lock().unwrap();
        if zone.is_empty() {
            return None;
        }
        let named = |name: &str| Name::from_ascii(name).unwrap() == *query.name();
        for (name, data) in zone.iter().filter(|(name, _)| named(name)) {
            if data.record_type() == query.query_type() {
                answer.add_answer(Record::from_rdata(Name::from_ascii(name).unwrap(), 30, data.clone()));
            }
        }
        if answer.answers.is_empty() {
            answer.metadata.response_code = ResponseCode::NXDomain;
        }
        Some(answer)
    }
}

const PLAIN: &str = "_etcd-server._tcp.brains.test.";
const TLS: &str = "_etcd-server-ssl._tcp.brains.test.";

fn srv(target: &str, port: u16) -> RData {
    RData::SRV(SRV::new(0, 0, port, Name::from_ascii(target).unwrap()))
}

fn place(tls: bool, host: &str, port: u16) -> BTreeSet<DnsAddress> {
    BTreeSet::from([DnsAddress {
        tls,
        host: host.to_owned(),
        port,
    }])
}

#[tokio::test]
async fn members_are_called_as_their_hosts_and_found_under_both_services() {
    let zone = Zone::default();
    zone.set([
        (PLAIN, srv("b0.brains.test.", 2380)),
        (PLAIN, srv("B1.brains.test.", 2381)),
        (TLS, srv("b2.brains.test.", 2380)),
    ]);
    let (discovery, _serving) = zone.serve().await;
    assert_eq!(
        discovery.members().await.unwrap(),
        BTreeMap::from([
            ("b0".to_owned(), place(false, "b0.brains.test", 2380)),
            ("b1".to_owned(), place(false, "b1.brains.test", 2381)),
            ("b2".to_owned(), place(true, "b2.brains.test", 2380)),
        ])
    );
    let own = [Url::parse("http://10.0.0.1:2380").unwrap()];
    let cluster = discovery.cluster("b0", &own).await.unwrap();
    let urls: Vec<String> = cluster.values().flatten().map(ToString::to_string).collect();
    assert_eq!(
        urls,
        [
            "http://10.0.0.1:2380",
            "http://b1.brains.test:2381",
            "https://b2.brains.test:2380"
        ]
    );
    assert_eq!(
        discovery.find("B1").await.unwrap(),
        place(false, "b1.brains.test", 2381)
    );
    let error = discovery.find("b9").await.unwrap_err().to_string();
    assert_eq!(error, "the SRV records name no \"b9\", only b0, b1, b2");
}

#[tokio::test]
async fn a_member_that_came_later_or_moved_is_found_and_dialled() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let zone = Zone::default();
    zone.set([(PLAIN, srv("b0.brains.test.", port))]);
    let (discovery, _serving) = zone.clone().serve().await;
    let peers = Peers::new(
        PeerAddresses::Srv(Box::new(discovery.clone())),
        Default::default(),
        "token".to_owned(),
    );
    let nobody = Members::new([]);
    let error = format!("{:#}", peers.dial("b1", &nobody).await.unwrap_err());
    assert!(error.contains("name no \"b1\", only b0"), "{error}");

    zone.set([
        (PLAIN, srv("b1.brains.test.", port)),
        ("b1.brains.test.", RData::A(A::new(127, 0, 0, 1))),
    ]);
    discovery.found.lock().unwrap().at = None; // as if it was long ago
    let accepted = async { listener.accept().await.unwrap() };
    let (dialled, _stream) = tokio::join!(peers.dial("b1", &nobody), accepted);
    dialled.unwrap();
    let error = format!("{:#}", peers.dial("b0", &nobody).await.unwrap_err());
    assert!(error.contains("name no \"b0\", only b1"), "{error}");
}

#[tokio::test]
async fn a_plain_url_is_not_dialled_where_tls_is_set() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let zone = Zone::default();
    zone.set([
        (PLAIN, srv("b0.brains.test.", port)),
        ("b0.brains.test.", RData::A(A::new(127, 0, 0, 1))),
    ]);
    let (discovery, _serving) = zone.serve().await;
    let stored = Members::new([etcd_types::pb::etcdserverpb::Member {
        id: 1,
        name: "b1".to_owned(),
        peer_ur_ls: vec![format!("http://127.0.0.1:{port}")],
        ..Default::default()
    }]);
    let peers = Peers::new(
        PeerAddresses::Srv(Box::new(discovery)),
        Default::default(),
        String::new(),
    )
    .tls_only(true);
    for name in ["b0", "b1"] {
        let dialled = peers.dial(name, &stored).await;
        let error = format!("{:#}", dialled.expect_err("a plain URL was dialled"));
        assert!(error.contains("does not dial without it"), "{error}");
    }
}

#[tokio::test]
async fn a_silent_server_is_an_error_that_names_what_was_asked() {
    let (discovery, _serving) = Zone::default().serve().await;
    let error = format!("{:#}", discovery.members().await.unwrap_err());
    assert!(error.contains("look up SRV _etcd-server"), "{error}");
    assert!(discovery.found.lock().unwrap().failing);
}

#[test]
fn ids_depend_on_name_and_token_alone() {
    let peers = |token: &str| {
        Peers::new(
            PeerAddresses::Fixed(BTreeMap::new()),
            Default::default(),
            token.to_owned(),
        )
    };
    assert_eq!(peers("a").id("b0"), peers("a").id("b0"));
    assert_ne!(peers("a").id("b0"), peers("a").id("b1"));
    assert_ne!(peers("a").id("b0"), peers("b").id("b0"));
}
