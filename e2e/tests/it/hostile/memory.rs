//! Few bytes that cost many.

use super::*;

/// Size of each stored value, in bytes.
const VALUE_BYTES: usize = 1 << 20;
const VALUES: usize = 20;

/// Attackers grant a byte for each answer: without any the server does not even begin to write it.
async fn with_values() -> Victim {
    let mut victim = Victim::start(&[]).await;
    for n in 0..VALUES {
        victim.put(format!("large/{n}"), vec![b'v'; VALUE_BYTES]).await;
    }
    victim.settle();
    victim
}

#[tokio::test(flavor = "multi_thread")]
async fn read_txn_cannot_multiply_what_is_stored() {
    let _deadline = deadline();
    let mut victim = with_values().await;
    let ranges = (0..120).map(|_| op(Op::RequestRange(all_keys()))).collect();
    let txn = pb::TxnRequest {
        success: ranges,
        ..pb::TxnRequest::default()
    };
    let mut attacker = Http2::open(victim.address(), 1).await.unwrap();
    attacker.unary(TXN, &txn.encode_to_vec()).await.unwrap();
    // its answer is the error, or waits for a window; others are served whatever it is
    drop(timeout(ANSWER_TIMEOUT, attacker.ended(1)).await);
    for _ in 0..3 {
        victim.serves().await;
    }
    victim.is_bounded(MAX_MEMORY_GROWTH / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_bounded() {
    let _deadline = deadline();
    let mut victim = with_values().await;
    let mut attackers = Vec::new();
    for _ in 0..4 {
        let mut attacker = Http2::open(victim.address(), 1).await.unwrap();
        for _ in 0..60 {
            if attacker.unary(RANGE, &all_keys().encode_to_vec()).await.is_err() {
                break;
            }
        }
        attackers.push(attacker);
    }
    for _ in 0..3 {
        victim.serves().await;
    }
    victim.is_bounded(MAX_MEMORY_GROWTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_operations_do_not_decode_to_gigabytes() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let request = [0x12, 0].repeat(1_000_000); // field 2, `success`: an operation without anything in it
    let mut attackers = Vec::new();
    for _ in 0..10 {
        attackers.push(Http2::open(victim.address(), 65_535).await.unwrap());
    }
    let sent = attackers.iter_mut().map(|attacker| attacker.unary(TXN, &request));
    // one that is refused early is cut off
    drop(join_all(sent).await);
    let ended = attackers
        .iter()
        .map(|attacker| timeout(ANSWER_TIMEOUT, attacker.ended(1)));
    drop(join_all(ended).await);
    victim.serves().await;
    victim.is_bounded(MAX_MEMORY_GROWTH / 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_puts_are_bounded() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let body = &http2::framed(&put("unfinished", vec![b'v'; 1_500_000]).encode_to_vec())[..1_500_000];
    let mut attackers = Vec::new();
    for _ in 0..10 {
        attackers.push(Http2::open(victim.address(), 65_535).await.unwrap());
    }
    let attacks = attackers.iter_mut().map(async |attacker| {
        for _ in 0..100 {
            let Ok(stream) = attacker.call(PUT, &[]).await else {
                break;
            };
            match attacker.body(stream, body, false).await {
                Ok(taken) if taken == body.len() => {}
                _ => break, // the server takes no more of this connection
            }
        }
    });
    join_all(attacks).await;
    victim.serves().await;
    victim.is_bounded(MAX_MEMORY_GROWTH);
}

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
    victim.is_bounded(MAX_MEMORY_GROWTH);
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_of_a_call_is_enforced_without_its_client() {
    let _deadline = deadline();
    let mut victim = Victim::start(&[]).await;
    let mut attacker = Http2::open(victim.address(), 65_535).await.unwrap();
    attacker.call(PUT, &[("grpc-timeout", "200m")]).await.unwrap();
    let ended = timeout(ANSWER_TIMEOUT, attacker.ended(1)).await;
    ended.expect("a call whose message never comes ends with its timeout");
    victim.serves().await;
}
