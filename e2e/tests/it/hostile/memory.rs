//! Few bytes that cost many.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end_are_bounded() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let mut attackers = Vec::new();
    for _ in 0..80 {
        attackers.push(Http2::open(victim.address(), 65_535).await.unwrap());
    }
    let attacks = attackers.iter_mut().map(|attacker| attacker.endless_headers(14 << 20));
    drop(join_all(attacks).await);
    victim.serves().await;
    victim.is_bounded(GROWTH);
}
