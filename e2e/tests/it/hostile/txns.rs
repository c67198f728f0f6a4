//! Transactions that keep one thread busy.

use super::*;

/// Deletes and puts of keys that differ: none of them meets another.
fn deletes_and_puts(count: usize) -> Vec<u8> {
    let ops = (0..count).map(|n| {
        op(match n % 2 {
            0 => Op::RequestDeleteRange(pb::DeleteRangeRequest {
                key: format!("d{n:015}").into_bytes().into(),
                range_end: format!("d{:015}", n + 1).into_bytes().into(),
                prev_kv: false,
            }),
            _ => Op::RequestPut(put(format!("p{n:015}"), Vec::new())),
        })
    });
    nested(ops.collect()).encode_to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_deletes_and_puts_stop_no_writes() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let request = deletes_and_puts(42_000);
    assert!(request.len() < 3 << 19, "{} bytes, which are allowed", request.len());
    attack(&mut victim, &request, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_txns_stop_no_writes() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let request = deletes_and_puts(56_000);
    assert!(request.len() > 3 << 19, "{} bytes, which are too many", request.len());
    attack(&mut victim, &request, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_counts_stop_no_writes() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    for batch in 0..300 {
        let puts = (0..100).map(|n| op(Op::RequestPut(put(format!("key/{batch:03}/{n:03}"), Vec::new()))));
        let txn = pb::TxnRequest {
            success: puts.collect(),
            ..pb::TxnRequest::default()
        };
        victim.quiet.txn(txn).await.unwrap();
    }
    // no two ranges are the same, and all keys are in each
    let counts = (0..20_000_u16).map(|n| {
        op(Op::RequestRange(pb::RangeRequest {
            key: [b"a", &n.to_be_bytes()[..]].concat().into(),
            count_only: true,
            ..all_keys()
        }))
    });
    // the put makes it a write, so the counts are not of the state that other clients see
    let ops = [op(Op::RequestPut(put("counted", Vec::new())))]
        .into_iter()
        .chain(counts);
    let request = nested(ops.collect()).encode_to_vec();
    attack(&mut victim, &request, 1).await;
}

/// Sends the request on `times` connections and leaves; other clients are served before and after.
async fn attack(victim: &mut Victim, request: &[u8], times: usize) {
    let mut attackers = Vec::new();
    for _ in 0..times {
        attackers.push(Http2::open(victim.address(), 65_535).await.unwrap());
    }
    let sent = attackers.iter_mut().map(|attacker| attacker.unary(TXN, request));
    // one that is refused early is cut off
    drop(join_all(sent).await);
    victim.serves().await;
    drop(attackers);
    victim.serves().await;
    victim.is_bounded(MAX_MEMORY_GROWTH);
}
