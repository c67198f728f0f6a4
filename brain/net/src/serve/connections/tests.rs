use std::task::Poll;

use super::state::IDLE_TIMEOUT;
use super::*;
use crate::serve::HANDSHAKE_TIMEOUT;
use crate::serve::headers::BlockCharge;
use telemetry::metrics::Metrics;

fn connections(limit: usize) -> Connections {
    let network = Metrics::new(false).network;
    Connections::new(limit, Budget::new(BUDGET_BYTES, network.held.clone()), network)
}

fn ip(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, last]))
}

/// The memory budget of all connections in these tests.
const BUDGET_BYTES: usize = 1 << 20;

fn reason(admitted: &AdmittedConnection) -> Option<CloseReason> {
    admitted.connection.reason.get().copied()
}

#[tokio::test]
async fn oldest_idle_connection_of_the_heaviest_address_makes_room() {
    let connections = connections(4);
    let mut open = Vec::new();
    for address in [2, 1, 1, 3] {
        open.push(connections.admit(ip(address)).await.unwrap());
    }
    let busy = open[1].connection.begin();
    let newcomer = connections.admit(ip(4)).await.unwrap();
    let reasons: Vec<_> = open.iter().map(reason).collect();
    assert_eq!(reasons, [None, None, Some(CloseReason::Evicted), None]);
    drop((busy, newcomer));
    // No connection of the address is idle: it has reached its share.
    let first = connections.admit(ip(1)).await.unwrap();
    let work: Vec<_> = [&open[1], &first].map(|open| open.connection.begin()).into();
    assert!(connections.admit(ip(1)).await.is_none());
    assert_eq!(
        connections.0.network.closed.with_label_values(&["address_share"]).get(),
        1
    );
    drop(work);
    assert!(connections.admit(ip(1)).await.is_some());
    assert_eq!(reason(&open[1]), Some(CloseReason::Evicted));
}

#[tokio::test]
async fn newcomers_wait_while_all_are_busy() {
    let connections = connections(2);
    let open = [
        connections.admit(ip(1)).await.unwrap(),
        connections.admit(ip(2)).await.unwrap(),
    ];
    let work = open.each_ref().map(|open| open.connection.begin());
    let waiting = connections.admit(ip(3));
    tokio::pin!(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    let [first, _second] = open;
    drop(first);
    assert!(waiting.await.is_some());
    drop(work);
}

#[tokio::test(start_paused = true)]
async fn connections_are_closed_when_their_time_is_over() {
    let connections = connections(9);
    let mut open = Vec::new();
    for address in 0..5 {
        open.push(connections.admit(ip(address)).await.unwrap());
    }
    let [_silent, polite, served, busy, stuck] = &open[..] else {
        unreachable!()
    };
    polite.connection.expect_request(FIRST_REQUEST_TIMEOUT);
    drop(served.connection.begin());
    let _work = busy.connection.begin();
    let _blocked = stuck.connection.begin();
    stuck.connection.blocked();
    let mut closed = Vec::new();
    for age in [
        2 * HANDSHAKE_TIMEOUT,
        FIRST_REQUEST_TIMEOUT + Duration::from_millis(1),
        IDLE_TIMEOUT,
    ] {
        tokio::time::advance(age - Duration::from_millis(1)).await;
        connections.sweep(0);
        closed.push(
            open.iter()
                .map(|open| reason(open).map(CloseReason::label))
                .collect::<Vec<_>>(),
        );
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    tokio::time::advance(Duration::from_millis(2)).await;
    connections.sweep(0);
    closed.push(open.iter().map(|open| reason(open).map(CloseReason::label)).collect());
    assert_eq!(closed[0], [None; 5]);
    assert_eq!(
        closed[1],
        [Some("no_request"), Some("no_request"), None, None, Some("stalled")]
    );
    assert_eq!(
        closed[3],
        [
            Some("no_request"),
            Some("no_request"),
            Some("idle"),
            None,
            Some("stalled")
        ]
    );
}

#[tokio::test]
async fn connection_is_closed_when_its_certificate_has_expired() {
    let connections = connections(9);
    let (shown, anonymous) = (
        connections.admit(ip(1)).await.unwrap(),
        connections.admit(ip(1)).await.unwrap(),
    );
    shown.connection.ends_at(1_000);
    let _work = [&shown, &anonymous].map(|open| open.connection.begin());
    let reasons = |clock| {
        connections.sweep(clock);
        [&shown, &anonymous].map(reason)
    };
    assert_eq!(reasons(1_000), [None, None]);
    assert_eq!(reasons(1_001), [Some(CloseReason::Certificate), None]);
    assert_eq!(
        connections
            .0
            .network
            .closed
            .with_label_values(&["certificate_expired"])
            .get(),
        1
    );
}

#[tokio::test]
async fn charges_of_headers_are_taken_in_the_order_of_streams() {
    let connections = connections(9);
    let open = connections.admit(ip(1)).await.unwrap();
    let account = &open.connection.account;
    let before = account.used();
    let charges = [(1, 100), (3, 200), (7, 300)];
    let charges = charges.map(|(stream, bytes)| BlockCharge {
        stream,
        charge: account.charge(bytes).unwrap(),
    });
    open.connection.keep_headers(charges.into());
    assert_eq!(account.used() - before, 600);
    // The first one was never accepted.
    assert_eq!(open.connection.take_headers(3).unwrap().bytes(), 200);
    assert_eq!(account.used() - before, 300);
    assert!(open.connection.take_headers(5).is_none());
    assert_eq!(open.connection.take_headers(7).unwrap().bytes(), 300);
    assert_eq!(account.used(), before);
    // Trailers.
    let charge = account.charge(400).unwrap();
    open.connection.keep_headers(vec![BlockCharge { stream: 5, charge }]);
    assert_eq!(account.used(), before);
}

#[tokio::test(start_paused = true)]
async fn connections_that_hold_much_and_move_little_make_room() {
    let connections = connections(99);
    let (mut open, mut held) = (Vec::new(), Vec::new());
    for address in 0..12 {
        let admitted = connections.admit(ip(address)).await.unwrap();
        held.push(admitted.connection.begin());
        open.push(admitted);
    }
    // Eleven have idle streams, and one of them holds more than the others.
    let mut charges = Vec::new();
    for (n, open) in open.iter().take(11).enumerate() {
        let bytes = BUDGET_BYTES / 32 + if n == 7 { 20_000 } else { 0 };
        charges.push(open.connection.account.charge(bytes).unwrap());
    }
    let reasons = |open: &[AdmittedConnection]| open.iter().map(reason).collect::<Vec<_>>();
    assert!(connections.0.budget.shortage() > 0);
    for _ in 0..6 {
        // The first client reads its data; pings and their answers are no progress.
        charges[0].moved(10_000);
        open.iter().for_each(|open| open.connection.sent(1));
        connections.sweep(0);
        assert_eq!(reasons(&open), [None; 12]);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    connections.sweep(0);
    let closed: Vec<_> = (0..12)
        .filter(|n| reason(&open[*n]) == Some(CloseReason::Memory))
        .collect();
    assert!(
        closed.contains(&7) && !closed.contains(&0) && !closed.contains(&11),
        "{closed:?}"
    );
    // The memory of the closed connections suffices: no more are closed in the meantime.
    connections.sweep(0);
    assert_eq!(reasons(&open).iter().flatten().count(), closed.len());
    let newcomer = connections.admit(ip(99)).await.unwrap();
    drop((newcomer, charges, held));
}

#[tokio::test]
async fn connections_are_charged_and_idle_ones_make_room() {
    let connections = connections(99);
    let mut open = Vec::new();
    let newcomer = loop {
        let address = u8::try_from(open.len() / 4).unwrap();
        let mut admitted = Box::pin(connections.admit(ip(address)));
        match futures::poll!(&mut admitted) {
            Poll::Ready(admitted) => open.push(admitted.unwrap()),
            Poll::Pending => break admitted,
        }
    };
    let evicted = open.iter().position(|open| reason(open) == Some(CloseReason::Evicted));
    drop(open.remove(evicted.unwrap()));
    let _admitted = newcomer.await.unwrap();
    assert!(connections.0.budget.used() > BUDGET_BYTES / 8 * 7 - 2 * CONNECTION_BYTES);
}

#[tokio::test]
async fn only_some_connections_are_looked_at_for_room() {
    let mut order = ExamineOrder::default();
    let mut open = BTreeMap::new();
    let budget = Budget::new(BUDGET_BYTES, Metrics::new(false).network.held);
    let mut work = Vec::new();
    for id in 0..10 * MAX_EXAMINED_CONNECTIONS as u64 {
        let connection = Arc::new(ConnectionState::new(None, budget.account(None)));
        work.push(connection.begin());
        open.insert(id, connection);
        order.silent.insert(id);
    }
    let idle = 3 * MAX_EXAMINED_CONNECTIONS as u64 + 5;
    work.swap_remove(usize::try_from(idle).unwrap());
    let looks: Vec<_> = (0..4).map(|_| order.idle(&open)).collect();
    assert_eq!(looks, [None, None, None, Some(idle)]);
}

#[tokio::test(start_paused = true)]
async fn oldest_handshake_gives_up_its_turn() {
    let connections = connections(9);
    let (greedy, other) = (
        connections.admit(ip(1)).await.unwrap(),
        connections.admit(ip(1)).await.unwrap(),
    );
    let mut turns = Vec::new();
    for _ in 0..MAX_HANDSHAKES_PER_ADDRESS {
        turns.push(connections.handshake(&greedy.connection).await);
    }
    for (age, expected) in [
        (Duration::ZERO, None),
        (2 * MIN_ABORTED_HANDSHAKE_AGE, Some(CloseReason::Handshake)),
    ] {
        tokio::time::advance(age).await;
        let next = connections.handshake(&other.connection);
        tokio::pin!(next);
        assert!(futures::poll!(&mut next).is_pending());
        assert_eq!(reason(&greedy), expected);
    }
    drop(turns);
}

#[tokio::test]
async fn turns_of_one_address_leave_turns_for_others() {
    let connections = connections(9);
    let (greedy, other) = (
        connections.admit(ip(1)).await.unwrap(),
        connections.admit(ip(2)).await.unwrap(),
    );
    let mut turns = Vec::new();
    for _ in 0..MAX_HANDSHAKES_PER_ADDRESS {
        turns.push(connections.handshake(&greedy.connection).await);
    }
    let next = connections.handshake(&greedy.connection);
    tokio::pin!(next);
    assert!(futures::poll!(&mut next).is_pending());
    assert!(connections.handshake(&other.connection).await.is_some());
    turns.pop();
    assert!(next.await.is_some());
}
