//! Logins with wrong passwords: they do not keep a user with the right password waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pb::auth_client::AuthClient;
use tokio::task::JoinSet;

use super::*;

/// Wrong logins in flight, all for one user, on connections of their own.
const WRONG_LOGINS: usize = 200;
/// Right logins, one after the other, while the wrong ones are in flight.
const RIGHT_LOGINS: usize = 3;

fn login(name: &str, password: &str) -> pb::AuthenticateRequest {
    pb::AuthenticateRequest {
        name: name.to_owned(),
        password: password.to_owned(),
    }
}

/// Enables auth, with a user beside root.
async fn with_users(server: &Server) {
    let mut auth = AuthClient::new(server.connect().await.unwrap());
    for name in ["root", "known"] {
        auth.user_add(pb::AuthUserAddRequest {
            name: name.to_owned(),
            password: "right".to_owned(),
            ..pb::AuthUserAddRequest::default()
        })
        .await
        .unwrap();
    }
    let grant = pb::AuthUserGrantRoleRequest {
        user: "root".to_owned(),
        role: "root".to_owned(),
    };
    auth.role_add(pb::AuthRoleAddRequest {
        name: "root".to_owned(),
    })
    .await
    .unwrap();
    auth.user_grant_role(grant).await.unwrap();
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

/// By numbers, not by time: of two hundred that wait, no more than a part is answered before one that is right.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_logins_do_not_starve_a_right_one() {
    let _deadline = deadline();
    let server = Server::start(&Program::kubebrain().unwrap(), &["--bcrypt-cost=8"]).unwrap();
    with_users(&server).await;
    let failed = Arc::new(AtomicUsize::new(0));
    let mut attackers = JoinSet::new();
    for _ in 0..WRONG_LOGINS {
        let mut auth = AuthClient::new(server.connect().await.unwrap());
        let failed = Arc::clone(&failed);
        attackers.spawn(async move {
            loop {
                assert!(auth.authenticate(login("root", "wrong")).await.is_err());
                failed.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while failed.load(Ordering::SeqCst) < WRONG_LOGINS / 10 {
        tokio::task::yield_now().await;
    }
    let mut auth = AuthClient::new(server.connect().await.unwrap());
    for _ in 0..RIGHT_LOGINS {
        let before = failed.load(Ordering::SeqCst);
        let answer = timeout(ANSWER_TIMEOUT, auth.authenticate(login("known", "right"))).await;
        answer.expect("a right login is answered").unwrap();
        let meanwhile = failed.load(Ordering::SeqCst) - before;
        eprintln!("{meanwhile} wrong logins were answered before a right one");
        assert!(meanwhile < WRONG_LOGINS / 4, "{meanwhile} wrong logins came first");
    }
    drop(attackers);
}
