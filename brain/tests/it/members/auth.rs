//! Users of a cluster: whichever member a client asks, all know its token, and the leader checks what it may do.

use bytes::Bytes;
use etcd_types::pb::authpb;
use etcd_types::pb::etcdserverpb as pb;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use super::Site;
use super::certificates::Ca;
use crate::program::Process;

const CHEAP_BCRYPT_FLAGS: &[&str] = &["--bcrypt-cost=4"];
const NOT_PERMITTED: &str = "etcdserver: permission denied";

/// Clients of one member.
struct Clients {
    auth: AuthClient<Channel>,
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
}

impl Clients {
    async fn of(member: &Process) -> Self {
        Self::on(member.connect().await)
    }

    fn on(channel: Channel) -> Self {
        Self {
            auth: AuthClient::new(channel.clone()),
            kv: KvClient::new(channel.clone()),
            watch: WatchClient::new(channel),
        }
    }

    /// Adds root, and the user u, who may read and write all keys that begin with u.
    async fn enable(&mut self) {
        for name in ["root", "u"] {
            let (name, password) = (name.to_owned(), format!("{name}'s"));
            let user = pb::AuthUserAddRequest {
                name,
                password,
                ..Default::default()
            };
            self.auth.user_add(user).await.unwrap();
        }
        let role = pb::AuthRoleAddRequest { name: "r".to_owned() };
        self.auth.role_add(role).await.unwrap();
        let permission = authpb::Permission {
            perm_type: authpb::permission::Type::Readwrite.into(),
            key: "u".into(),
            range_end: "v".into(),
        };
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: "r".to_owned(),
            perm: Some(permission),
        };
        self.auth.role_grant_permission(grant).await.unwrap();
        for (user, role) in [("root", "root"), ("u", "r")] {
            let (user, role) = (user.to_owned(), role.to_owned());
            let grant = pb::AuthUserGrantRoleRequest { user, role };
            self.auth.user_grant_role(grant).await.unwrap();
        }
        self.auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    }

    async fn token(&mut self, name: &str) -> String {
        let request = pb::AuthenticateRequest {
            name: name.to_owned(),
            password: format!("{name}'s"),
        };
        self.auth.authenticate(request).await.unwrap().into_inner().token
    }

    async fn put(&mut self, token: &str, key: &str) -> Result<(), Status> {
        let put = pb::PutRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            ..Default::default()
        };
        self.kv.put(by(token, put)).await.map(drop)
    }

    async fn range(&mut self, token: &str, key: &str) -> Result<(), Status> {
        let range = pb::RangeRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            ..Default::default()
        };
        self.kv.range(by(token, range)).await.map(drop)
    }

    /// Asks for a watcher of a key: the reason why it is cancelled at once, or nothing.
    async fn watch(&mut self, token: &str, key: &str) -> String {
        let create = pb::WatchCreateRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            ..Default::default()
        };
        let create = pb::WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        // The stream stays open, and so do its watchers.
        let requests = futures::StreamExt::chain(tokio_stream::once(create), futures::stream::pending());
        let mut stream = self.watch.watch(by(token, requests)).await.unwrap().into_inner();
        let created = stream.message().await.unwrap().unwrap();
        assert!(created.created, "{created:?}");
        assert_eq!(created.canceled, created.watch_id == -1, "{created:?}");
        created.cancel_reason
    }
}

fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn refused(answer: Result<(), Status>) -> String {
    answer.unwrap_err().message().to_owned()
}

#[tokio::test]
async fn token_of_any_member_is_valid_on_all() {
    let site = Site::new(2).await;
    let (leader, follower) = (
        site.start(0, 2, CHEAP_BCRYPT_FLAGS).await,
        site.start(1, 2, CHEAP_BCRYPT_FLAGS).await,
    );
    let (mut first, mut second) = (Clients::of(&leader).await, Clients::of(&follower).await);
    second.enable().await;
    let (of_first, of_second) = (first.token("u").await, second.token("u").await);
    for token in [&of_first, &of_second] {
        for clients in [&mut first, &mut second] {
            clients.put(token, "u/a").await.unwrap();
            clients.range(token, "u/a").await.unwrap();
            assert_eq!(refused(clients.put(token, "w").await), NOT_PERMITTED);
            assert_eq!(refused(clients.range(token, "w").await), NOT_PERMITTED);
            assert_eq!(refused(clients.put("", "u/a").await), "etcdserver: user name is empty");
            assert_eq!(clients.watch(token, "u/a").await, "");
            let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
            assert_eq!(clients.watch(token, "w").await, denied);
        }
    }
    let nobody = "rpc error: code = InvalidArgument desc = etcdserver: user name is empty";
    assert_eq!(second.watch("", "u/a").await, nobody);
    // The next leader knows users and tokens, too.
    leader.kill().await;
    while second.put(&of_first, "u/b").await.is_err() {}
    assert_eq!(refused(second.put(&of_second, "w").await), NOT_PERMITTED);
    follower.stop().await;
}

/// A member on a data directory that requires certificates of its clients, and channels to it by common name.
#[tokio::test]
async fn common_name_of_a_certificate_is_its_user() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), Ca::new("ours"));
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("ca.crt"), &ca.pem).unwrap();
    for name in ["server", "root", "u", "stranger"] {
        ca.write(dir.path(), name, name, time::Duration::days(1));
    }
    let (client, peer) = (super::free_port(), super::free_port());
    let (url, peer) = (
        format!("https://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let flags = [
        format!("--data-dir={}", path("data")),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--trusted-ca-file={}", path("ca.crt")),
        format!("--cert-file={}", path("server.crt")),
        format!("--key-file={}", path("server.key")),
        "--client-cert-auth".to_owned(),
        "--bcrypt-cost=4".to_owned(),
    ];
    let member = Process::begin(&flags, url.clone());
    member.says("ready to serve client requests").await;
    let clients = async |name: &str| {
        let read = |end: &str| std::fs::read(path(&format!("{name}.{end}"))).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&ca.pem))
            .identity(Identity::from_pem(read("crt"), read("key")));
        let endpoint = Endpoint::new(url.clone()).unwrap().tls_config(tls).unwrap();
        Clients::on(endpoint.connect().await.unwrap())
    };
    let (mut root, mut user, mut stranger) = (clients("root").await, clients("u").await, clients("stranger").await);
    stranger.enable().await;
    root.put("", "w").await.unwrap();
    user.put("", "u/a").await.unwrap();
    assert_eq!(refused(user.put("", "w").await), NOT_PERMITTED);
    assert_eq!(refused(stranger.put("", "u/a").await), NOT_PERMITTED);
    // A token says more than a certificate.
    let token = stranger.token("u").await;
    stranger.put(&token, "u/a").await.unwrap();
    assert_eq!(refused(root.put("lie.1", "w").await), "etcdserver: invalid auth token");
    // The gateway shows its own certificate for all of its clients.
    let put = pb::PutRequest {
        key: "w".into(),
        ..Default::default()
    };
    let mut request = Request::new(put);
    request
        .metadata_mut()
        .insert("grpcgateway-accept", "*/*".parse().unwrap());
    let answer = root.kv.put(request).await.map(drop);
    assert_eq!(refused(answer), "etcdserver: user name is empty");
    member.stop().await;
}

/// A client names the caller itself, as a member does that forwards.
#[tokio::test]
async fn client_cannot_speak_for_a_member() {
    let site = Site::new(2).await;
    let (leader, follower) = (
        site.start(0, 2, CHEAP_BCRYPT_FLAGS).await,
        site.start(1, 2, CHEAP_BCRYPT_FLAGS).await,
    );
    let (mut first, mut second) = (Clients::of(&leader).await, Clients::of(&follower).await);
    second.enable().await;
    for clients in [&mut first, &mut second] {
        let put = pb::PutRequest {
            key: "w".into(),
            ..Default::default()
        };
        let mut request = Request::new(put);
        // Field 1 of the message: this is a request of a server itself.
        let server = tonic::metadata::MetadataValue::from_bytes(&[0x08, 0x01]);
        request.metadata_mut().insert_bin("kubebrain-caller-bin", server);
        let answer = clients.kv.put(request).await.map(drop);
        assert_eq!(refused(answer), "etcdserver: user name is empty");
    }
    leader.kill().await;
    follower.kill().await;
}
