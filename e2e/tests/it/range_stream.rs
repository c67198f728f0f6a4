//! `RangeStream` of etcd 3.7: on equal stores, a brain streams what a real etcd 3.7 does.

use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use programs::progress::Progress;
use programs::server::{Program, Server};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use wire::authpb::{Permission, UserAddOptions};
use wire::etcdserverpb as pb;

use crate::harness::deadline;

const SEED: u64 = 37;
const KEYS: usize = 300;
const REQUESTS: usize = 600;
const LEASE: i64 = 7;

type Streamed = Result<pb::RangeResponse, (Code, String)>;

struct Client {
    channel: Channel,
    token: Option<String>,
}

impl Client {
    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// All chunks as one answer, without what differs between any two servers.
    async fn stream(&self, range: &pb::RangeRequest) -> Streamed {
        let refused = |status: Status| (status.code(), status.message().to_owned());
        let mut request = Request::new(range.clone());
        if let Some(token) = &self.token {
            let token = MetadataValue::try_from(token).unwrap();
            request.metadata_mut().insert("token", token);
        }
        let mut chunks = self.kv().range_stream(request).await.map_err(refused)?.into_inner();
        let mut merged = pb::RangeResponse::default();
        while let Some(chunk) = chunks.message().await.map_err(refused)? {
            let chunk = chunk.range_response.expect("a chunk is never empty");
            assert!(merged.header.is_none(), "a chunk follows the last one: {range:?}");
            assert!(
                !chunk.kvs.is_empty() || merged.kvs.is_empty(),
                "a chunk without pairs: {range:?}"
            );
            assert!(
                chunk.header.is_some() || (chunk.count, chunk.more) == (0, false),
                "{range:?}"
            );
            merged.kvs.extend(chunk.kvs);
            merged.header = chunk.header.map(|header| pb::ResponseHeader {
                revision: header.revision,
                ..pb::ResponseHeader::default()
            });
            merged.count = chunk.count;
            merged.more = chunk.more;
        }
        assert!(merged.header.is_some(), "no chunk is the last one: {range:?}");
        Ok(merged)
    }

    /// Fills the store: keys of several versions, deleted ones, one with a lease; returns the revision and the compacted one.
    async fn fill(&self) -> (i64, i64) {
        let (mut kv, mut random) = (self.kv(), StdRng::seed_from_u64(SEED));
        let grant = pb::LeaseGrantRequest { ttl: 3_600, id: LEASE };
        LeaseClient::new(self.channel.clone()).lease_grant(grant).await.unwrap();
        let (mut revision, mut compacted) = (1, 0);
        for n in 0..KEYS * 3 {
            let key = format!("k/{:03}", random.random_range(0..KEYS));
            if random.random_range(0..5) == 0 {
                let delete = pb::DeleteRangeRequest {
                    key: key.into(),
                    ..pb::DeleteRangeRequest::default()
                };
                let answer = kv.delete_range(delete).await.unwrap().into_inner();
                revision = answer.header.unwrap().revision;
                continue;
            }
            let put = pb::PutRequest {
                key: key.into(),
                value: vec![b'v'; random.random_range(0..4_000)].into(),
                lease: if random.random_range(0..10) == 0 { LEASE } else { 0 },
                ..pb::PutRequest::default()
            };
            revision = kv.put(put).await.unwrap().into_inner().header.unwrap().revision;
            if n == KEYS {
                compacted = revision - 20;
                let compact = pb::CompactionRequest {
                    revision: compacted,
                    physical: true,
                };
                kv.compact(compact).await.unwrap();
            }
        }
        (revision, compacted)
    }

    /// Adds the administrator, and a user who may read `k/1` to `k/2`; checks permissions from now on.
    async fn protect(&self) {
        let mut auth = AuthClient::new(self.channel.clone());
        for (user, role) in [("root", "root"), ("reader", "readers")] {
            let add = pb::AuthUserAddRequest {
                name: user.into(),
                password: user.into(),
                options: Some(UserAddOptions::default()),
                ..pb::AuthUserAddRequest::default()
            };
            auth.user_add(add).await.unwrap();
            auth.role_add(pb::AuthRoleAddRequest { name: role.into() })
                .await
                .unwrap();
            let grant = pb::AuthUserGrantRoleRequest {
                user: user.into(),
                role: role.into(),
            };
            auth.user_grant_role(grant).await.unwrap();
        }
        let permission = pb::AuthRoleGrantPermissionRequest {
            name: "readers".into(),
            perm: Some(Permission {
                perm_type: 0,
                key: b"k/1".to_vec().into(),
                range_end: b"k/2".to_vec().into(),
            }),
        };
        auth.role_grant_permission(permission).await.unwrap();
        auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    }

    async fn log_in(&mut self, user: &str) {
        let request = pb::AuthenticateRequest {
            name: user.into(),
            password: user.into(),
        };
        let mut auth = AuthClient::new(self.channel.clone());
        self.token = Some(auth.authenticate(request).await.unwrap().into_inner().token);
    }
}

fn range(key: &str, range_end: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.as_bytes().to_vec().into(),
        range_end: range_end.as_bytes().to_vec().into(),
        ..pb::RangeRequest::default()
    }
}

/// Any request but one by another field than the key: etcd skips pairs there, see `brain/src/api/kv/stream.rs`.
fn any_range(random: &mut StdRng, (revision, compacted): (i64, i64)) -> pb::RangeRequest {
    let key = ["\0", "k/", "k/0", "k/150", "k/299", "z", "", "k/017"]
        .choose(random)
        .unwrap();
    let end = ["\0", "k0", "", "k/2", "k/150", "k/030", "a", "k/018"]
        .choose(random)
        .unwrap();
    let limits = [
        0,
        0,
        0,
        1,
        2,
        9,
        10,
        11,
        29,
        30,
        31,
        70,
        299,
        1_000,
        -1,
        i64::MIN,
        i64::MAX,
    ];
    let revisions = [
        0,
        0,
        0,
        revision,
        revision - 1,
        revision + 1,
        compacted,
        compacted + 5,
        compacted - 1,
        -1,
        1,
    ];
    let mut request = pb::RangeRequest {
        limit: *limits.choose(random).unwrap(),
        revision: *revisions.choose(random).unwrap(),
        serializable: random.random_ratio(1, 5),
        keys_only: random.random_ratio(1, 4),
        count_only: random.random_ratio(1, 8),
        ..range(key, end)
    };
    if random.random_ratio(1, 4) {
        request.sort_order = *[1, 1, 1, 2, 3, -1].choose(random).unwrap();
    }
    if random.random_ratio(1, 20) {
        (request.sort_order, request.sort_target) = *[(1, 1), (2, 3), (0, 5), (0, -1), (1, 4)].choose(random).unwrap();
    }
    let bounds = [
        &mut request.min_mod_revision,
        &mut request.max_mod_revision,
        &mut request.min_create_revision,
        &mut request.max_create_revision,
    ];
    for bound in bounds {
        if random.random_ratio(1, 40) {
            *bound = *[1, revision, -1].choose(random).unwrap();
        }
    }
    request
}

async fn same(clients: &[Client; 2], request: &pb::RangeRequest) -> Streamed {
    let (etcd, brain) = tokio::join!(clients[0].stream(request), clients[1].stream(request));
    assert!(brain == etcd, "{request:?}\n- {etcd:?}\n+ {brain:?}");
    brain
}

#[tokio::test(flavor = "multi_thread")]
async fn range_streams_are_those_of_etcd_3_7() {
    let _deadline = deadline();
    let programs = [
        Program::etcd_next(&Progress::stderr()).unwrap(),
        Program::kubebrain().unwrap(),
    ];
    let servers = programs.map(|program| Server::start(&program, &["--bcrypt-cost=4"]).unwrap());
    let mut clients = Vec::new();
    for server in &servers {
        let channel = server.connect().await.unwrap();
        clients.push(Client { channel, token: None });
    }
    let mut clients: [Client; 2] = clients.try_into().ok().unwrap();
    let (at, brain_at) = tokio::join!(clients[0].fill(), clients[1].fill());
    assert_eq!(at, brain_at);

    let mut random = StdRng::seed_from_u64(SEED);
    let (mut long, mut refused) = (0, std::collections::BTreeSet::new());
    for _ in 0..REQUESTS {
        match same(&clients, &any_range(&mut random, at)).await {
            Ok(answer) => long += usize::from(answer.kvs.len() > 30),
            Err((_, message)) => drop(refused.insert(message)),
        }
    }
    assert!(long > 50, "{long} answers of several chunks");
    assert!(refused.len() >= 5, "{refused:?}");

    for client in &clients {
        client.protect().await;
    }
    let spans = [("k/1", "k/2"), ("k/150", ""), ("k/0", "k/2"), ("\0", "\0"), ("k/2", "")];
    for user in [None, Some("reader"), Some("root")] {
        if let Some(user) = user {
            for client in &mut clients {
                client.log_in(user).await;
            }
        }
        for (key, end) in spans {
            let answer = same(&clients, &range(key, end)).await;
            let is_permitted = user == Some("root") || user == Some("reader") && key.starts_with("k/1");
            assert_eq!(answer.is_ok(), is_permitted, "{user:?}, {key:?} to {end:?}: {answer:?}");
        }
    }
    for server in servers {
        server.stop().unwrap();
    }
}
