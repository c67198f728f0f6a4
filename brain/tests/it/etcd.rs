//! The model against real etcd. Nothing is downloaded here: start a fresh etcd and name it in `ETCD`.
//!
//! ```text
//! etcd --data-dir $(mktemp -d) --unsafe-no-fsync &
//! ETCD=http://127.0.0.1:2379 cargo test -p brain --test it etcd -- --ignored
//! ```
//!
//! `SEED` and `REQUESTS` choose another script.

use crate::grpc::Grpc;
use crate::script::Run;
use crate::{number, watch};

#[tokio::test]
#[ignore = "needs a fresh etcd 3.6: ETCD=http://127.0.0.1:2379"]
async fn real_etcd_answers_like_the_model() {
    let endpoint = std::env::var("ETCD").expect("ETCD names a fresh etcd");
    let (mut run, requests) = (Run::new(number("SEED", 1)), number("REQUESTS", 20_000));
    let mut etcd = Grpc::connect(endpoint).await;
    for _ in 0..requests / 500 {
        run.go(&mut etcd, 500).await;
        watch::sees_what_happened(&mut etcd, &run.model).await;
    }
    run.was_worth_it();
}
