//! Tokens that servers sign: a brain takes those that etcd signed, and etcd those of a brain.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use programs::progress::Progress;
use programs::server::{Program, Server};
use rcgen::KeyPair;
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Request};
use wire::etcdserverpb as pb;

use crate::harness::deadline;

/// Writes a pair of keys, and returns the flag that names them.
fn flag(dir: &Path, name: &str) -> String {
    let keys = KeyPair::generate().unwrap();
    let [private, public] = ["key", "pub"].map(|kind| dir.join(format!("{name}.{kind}")));
    fs::write(&private, keys.serialize_pem()).unwrap();
    fs::write(&public, keys.public_key_pem()).unwrap();
    let (private, public) = (private.display(), public.display());
    format!("--auth-token=jwt,sign-method=ES256,ttl=10m,priv-key={private},pub-key={public}")
}

/// The client of a server whose users are checked.
struct Client {
    auth: AuthClient<Channel>,
    kv: KvClient<Channel>,
}

impl Client {
    async fn of(server: &Server) -> Self {
        let channel = server.connect().await.unwrap();
        let (mut auth, kv) = (AuthClient::new(channel.clone()), KvClient::new(channel));
        let (name, role) = ("root".to_owned(), "root".to_owned());
        let user = pb::AuthUserAddRequest {
            name: name.clone(),
            password: "secret".to_owned(),
            ..Default::default()
        };
        auth.user_add(user).await.unwrap();
        auth.role_add(pb::AuthRoleAddRequest { name: role.clone() })
            .await
            .unwrap();
        let grant = pb::AuthUserGrantRoleRequest { user: name, role };
        auth.user_grant_role(grant).await.unwrap();
        auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
        Self { auth, kv }
    }

    async fn token(&mut self) -> String {
        let asked = pb::AuthenticateRequest {
            name: "root".to_owned(),
            password: "secret".to_owned(),
        };
        self.auth.authenticate(asked).await.unwrap().into_inner().token
    }

    /// Puts a key with a token. Returns the code and the text of the answer.
    async fn put(&mut self, token: &str) -> (Code, String) {
        let mut put = Request::new(pb::PutRequest {
            key: "k".into(),
            ..Default::default()
        });
        put.metadata_mut().insert("token", token.parse().unwrap());
        match self.kv.put(put).await {
            Ok(_) => (Code::Ok, String::new()),
            Err(status) => (status.code(), status.message().to_owned()),
        }
    }

    /// Makes all tokens so far too old.
    async fn change(&mut self, token: &str) {
        let mut role = Request::new(pb::AuthRoleAddRequest {
            name: "other".to_owned(),
        });
        role.metadata_mut().insert("token", token.parse().unwrap());
        self.auth.role_add(role).await.unwrap();
    }
}

/// A part of a token.
fn part(token: &str, n: usize) -> Value {
    let part = token.split('.').nth(n).expect("a token has three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// The same token without a signature.
fn unsigned(token: &str) -> String {
    let claims = token.split('.').nth(1).unwrap();
    let head = URL_SAFE_NO_PAD.encode(br#"{"alg":"none","typ":"JWT"}"#);
    format!("{head}.{claims}.")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_etcd_and_of_a_brain_are_valid_on_both() {
    let _deadline = deadline();
    let (progress, home) = (Progress::stderr(), tempfile::tempdir().unwrap());
    let (own, foreign) = (flag(home.path(), "own"), flag(home.path(), "foreign"));
    let etcd = Server::start(&Program::etcd(&progress).unwrap(), &[&own]).unwrap();
    let brain = Server::start(&Program::kubebrain().unwrap(), &[&own]).unwrap();
    let other = Server::start(&Program::kubebrain().unwrap(), &[&foreign]).unwrap();
    let (mut on_etcd, mut on_brain) = (Client::of(&etcd).await, Client::of(&brain).await);
    let tokens = [on_etcd.token().await, on_brain.token().await];
    for token in &tokens {
        assert_eq!(
            (&part(token, 0)["alg"], &part(token, 1)["username"]),
            (&"ES256".into(), &"root".into())
        );
    }
    let keys = tokens.each_ref().map(|token| {
        let claims = part(token, 1);
        claims.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    });
    assert_eq!(keys[0], keys[1], "they claim the same");
    assert_eq!(part(&tokens[0], 1)["revision"], part(&tokens[1], 1)["revision"]);
    let foreign = Client::of(&other).await.token().await;
    let mut cut = tokens[0].clone();
    cut.truncate(cut.len() - 8);
    let asked = [
        (tokens[0].clone(), Code::Ok),
        (tokens[1].clone(), Code::Ok),
        (foreign, Code::Unauthenticated),
        (unsigned(&tokens[0]), Code::Unauthenticated),
        (cut, Code::Unauthenticated),
        ("no.token".to_owned(), Code::Unauthenticated),
    ];
    for (token, code) in asked {
        let (expected, got) = (on_etcd.put(&token).await, on_brain.put(&token).await);
        assert_eq!((expected.0, &got), (code, &expected), "{token}");
    }
    on_etcd.change(&tokens[1]).await;
    on_brain.change(&tokens[0]).await;
    let (expected, got) = (on_etcd.put(&tokens[0]).await, on_brain.put(&tokens[0]).await);
    assert_eq!(got, expected, "a token of before that change");
    assert_ne!(got.0, Code::Ok);
    for server in [etcd, brain, other] {
        server.stop().unwrap();
    }
}
