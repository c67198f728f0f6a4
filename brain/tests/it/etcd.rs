//! The model against real etcd. Nothing is downloaded here: start a fresh etcd and name it in `ETCD`.
//!
//! ```text
//! etcd --data-dir $(mktemp -d) --unsafe-no-fsync &
//! ETCD=http://127.0.0.1:2379 cargo test -p brain --test it etcd -- --ignored
//! ```
//!
//! `SEED` and `REQUESTS` choose another script.

use crate::grpc::Grpc;
use crate::script::run;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test]
#[ignore = "needs a fresh etcd 3.6: ETCD=http://127.0.0.1:2379"]
async fn real_etcd_answers_like_the_model() {
    let endpoint = std::env::var("ETCD").expect("ETCD names a fresh etcd");
    let (seed, requests) = (number("SEED", 1), number("REQUESTS", 20_000));
    let mut etcd = Grpc::connect(endpoint).await;
    let (report, _) = run(seed, requests as usize, &mut etcd).await;
    eprintln!("{report:#?}");
}
