use std::time::Duration;

use futures::stream::{StreamExt as _, iter};
use mock_tikv::{Action, Fault, GcApi, MockTikv, Rpc};
use tikv_client::{ProtoKeyError, Transaction, TransactionClient, TransactionOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::ConnectionSupervisor;
use super::super::options::ConnectOptions;
use super::super::pd::SafePointCalls;
use super::super::testing::{prefix, until};
use super::*;

const GC_INTERVAL: Duration = Duration::from_secs(1);

async fn mock_tikv(gc: GcApi) -> MockTikv {
    let setup = mock_tikv::Options {
        gc,
        ..mock_tikv::Options::default()
    };
    MockTikv::start(setup).await.unwrap()
}

/// A store that lets data get so old.
async fn store(mock_tikv: &MockTikv, window: Duration) -> (Tikv, ConnectionSupervisor) {
    let mut options = ConnectOptions::new(vec![mock_tikv.pd()], prefix());
    options.gc_window = window;
    options.gc = GcOwner::Every(GC_INTERVAL);
    Tikv::connect(options).await.unwrap()
}

/// Returns the age of the safe point.
async fn age(tikv: &Tikv, mock_tikv: &MockTikv) -> Duration {
    let now = tikv.timestamp().await.unwrap();
    Duration::from_millis(now.millis() - Ts(mock_tikv.safe_point()).millis())
}

/// Waits until PD has received this many requests.
async fn rounds(mock_tikv: &MockTikv, rpc: Rpc, number: u64) {
    mock_tikv.reset_requests();
    let asked = || mock_tikv.requests().get(&rpc).copied().unwrap_or(0);
    until("it goes on", || asked() >= number).await;
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(60 * number)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_member_that_leads_moves_the_safe_point() {
    for (gc, rpc) in [
        (GcApi::Services, Rpc::UpdateServiceGcSafePoint),
        (GcApi::States, Rpc::AdvanceTxnSafePoint),
    ] {
        let mock_tikv = mock_tikv(gc).await;
        let (mut tasks, mut members) = (JoinSet::new(), Vec::new());
        for window in [60, 30, 10].map(minutes) {
            let (tikv, _keeper) = store(&mock_tikv, window).await;
            let leads = watch::Sender::new(false);
            tasks.spawn(
                tikv.clone()
                    .collect_garbage(leads.subscribe(), |leads| *leads, CancellationToken::new()),
            );
            members.push((tikv, window, leads));
        }
        for (tikv, window, leads) in &members {
            leads.send_replace(true);
            let before = mock_tikv.safe_point();
            until("the leader moves the safe point", || mock_tikv.safe_point() > before).await;
            rounds(&mock_tikv, rpc, 3).await;
            let age = age(tikv, &mock_tikv).await;
            assert!(
                (*window..*window + minutes(1)).contains(&age),
                "{age:?} old, window {window:?}"
            );
            leads.send_replace(false);
        }
        // A member that leads no more does not continue: of the versions left to collect, the first member wants the least.
        members[0].2.send_replace(true);
        rounds(&mock_tikv, rpc, 2).await;
        let before = mock_tikv.safe_point();
        rounds(&mock_tikv, rpc, 3).await;
        assert_eq!(mock_tikv.safe_point(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_that_another_service_needs_are_kept() {
    for gc in [GcApi::Services, GcApi::States] {
        let mock_tikv = mock_tikv(gc).await;
        let (tikv, _keeper) = store(&mock_tikv, minutes(10)).await;
        let now = tikv.timestamp().await.unwrap();
        let needed = (now.millis() - 3_600_000) << 18;
        mock_tikv.hold_gc("backup", needed);
        let round = tikv.collect_once().await.unwrap();
        assert!(
            matches!(&round, GcRound::Held(by) if by.contains("backup")),
            "{round:?}"
        );
        assert_eq!(mock_tikv.safe_point(), needed);
        mock_tikv.hold_gc("backup", now.0);
        assert_eq!(tikv.collect_once().await.unwrap(), GcRound::Done);
        assert!(age(&tikv, &mock_tikv).await < minutes(11));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_who_is_further_is_left_alone() {
    for gc in [GcApi::Services, GcApi::States] {
        let mock_tikv = mock_tikv(gc).await;
        let (owner, _keeper) = store(&mock_tikv, minutes(2)).await;
        assert_eq!(owner.collect_once().await.unwrap(), GcRound::Done);
        let before = mock_tikv.safe_point();
        let (tikv, _keeper) = store(&mock_tikv, minutes(10)).await;
        assert_eq!(tikv.collect_once().await.unwrap(), GcRound::Foreign);
        assert_eq!(mock_tikv.safe_point(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pd_with_gc_states_refuses_what_nobody_permitted() {
    let mock_tikv = mock_tikv(GcApi::States).await;
    let (tikv, _keeper) = store(&mock_tikv, minutes(2)).await;
    for calls in [SafePointCalls::States, SafePointCalls::Services] {
        let refused = tikv.shared.pd.collect(7, calls).await.unwrap_err();
        assert!(
            format!("{refused:#}").contains("ErrGCSafePointExceedsTxnSafePoint"),
            "{refused:#}"
        );
    }
    assert_eq!(mock_tikv.safe_point(), 0);
}

/// Returns a cluster whose locks live this long, and a client of another application.
async fn with_locks(lock_ttl: Duration) -> (MockTikv, Tikv, TransactionClient) {
    let setup = mock_tikv::Options {
        lock_ttl: Some(lock_ttl),
        ..mock_tikv::Options::default()
    };
    let mock_tikv = MockTikv::start(setup.with_stores(3)).await.unwrap();
    mock_tikv.split(b"m").await.unwrap();
    let (tikv, _keeper) = store(&mock_tikv, minutes(10)).await;
    let stranger = TransactionClient::new(vec![mock_tikv.pd()]).await.unwrap();
    (mock_tikv, tikv, stranger)
}

async fn begin(client: &TransactionClient, options: TransactionOptions) -> Transaction {
    client.begin_with_options(options).await.unwrap()
}

/// A transaction that comes as far as its locks; answers with its beginning.
async fn leave_locks(mock_tikv: &MockTikv, client: &TransactionClient, options: TransactionOptions) -> Ts {
    let mut txn = begin(client, options).await;
    for key in ["a", "b", "x"] {
        txn.put(key.to_owned(), "value".to_owned()).await.unwrap();
    }
    let lost = Fault::new(Rpc::Commit, Action::LoseRequest { silent: false });
    let id = mock_tikv.faults().add(lost.times(1_000)).unwrap();
    // An asynchronous commit is acknowledged before its commit request is sent; another commit fails as far as its client can see.
    drop(txn.commit().await);
    until("the commit is lost", || mock_tikv.faults().happened(id).unwrap() > 0).await;
    Ts::of(&txn.start_timestamp())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_transactions_that_are_over_are_ended_wherever_they_are() {
    let (mock_tikv, tikv, stranger) = with_locks(Duration::from_millis(1)).await;
    let begun = leave_locks(&mock_tikv, &stranger, TransactionOptions::new_optimistic()).await;
    assert_eq!(mock_tikv.sizes().locks, 3);
    assert_eq!(tikv.end_older(begun).await.unwrap(), begun);
    assert_eq!(
        mock_tikv.sizes().locks,
        3,
        "who reads at the safe point may write there, too"
    );
    let now = tikv.timestamp().await.unwrap();
    assert_eq!(tikv.end_older(now).await.unwrap(), now);
    assert_eq!(mock_tikv.sizes().locks, 0);
}

/// A pessimistic lock leaves no trace, and an attempt whose reply is late is made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_an_earlier_attempt_has_ended_are_no_failure() {
    let (mock_tikv, tikv, stranger) = with_locks(Duration::from_millis(1)).await;
    let mut txn = begin(&stranger, TransactionOptions::new_pessimistic()).await;
    txn.lock_keys(["a".to_owned()]).await.unwrap();
    let now = tikv.timestamp().await.unwrap();
    let scan = |client: TransactionClient| async move {
        let all = range(&Bytes::new(), &Bytes::new());
        client.scan_locks(&now.timestamp(), all, LOCKS_PER_SCAN).await
    };
    let locks = tikv.patiently("scan_locks", 2, scan).await.unwrap();
    assert_eq!(locks.len(), 1);
    for _ in 0..2 {
        assert_eq!(tikv.end(locks.clone(), now).await.unwrap(), now);
        assert_eq!(mock_tikv.sizes().locks, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_not_over_holds_the_safe_point() {
    let (mock_tikv, tikv, stranger) = with_locks(minutes(60)).await;
    let begun = leave_locks(&mock_tikv, &stranger, TransactionOptions::new_optimistic()).await;
    let now = tikv.timestamp().await.unwrap();
    assert_eq!(tikv.end_older(now).await.unwrap(), begun);
    assert_eq!(mock_tikv.sizes().locks, 3);
}

#[test]
fn transaction_of_a_wrong_primary_key_is_found_in_the_error() {
    let mut error = ProtoKeyError {
        primary_mismatch: Some(Default::default()),
        ..Default::default()
    };
    error.primary_mismatch.as_mut().unwrap().lock_info = Some(ProtoLockInfo {
        lock_version: 7,
        ..Default::default()
    });
    let error = ClientError::MultipleKeyErrors(vec![ClientError::KeyError(Box::new(error))]);
    assert_eq!(mismatched(&error), Some(Ts(7)));
    assert_eq!(mismatched(&ClientError::KeyError(Box::default())), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_commit_is_left_to_those_who_understand_it() {
    let (mock_tikv, tikv, stranger) = with_locks(Duration::from_millis(1)).await;
    let options = TransactionOptions::new_optimistic().use_async_commit();
    let begun = leave_locks(&mock_tikv, &stranger, options).await;
    let now = tikv.timestamp().await.unwrap();
    assert_eq!(tikv.end_older(now).await.unwrap(), begun);
    assert_eq!(mock_tikv.sizes().locks, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_locks_than_one_answer_holds_are_all_ended() {
    let (mock_tikv, tikv, stranger) = with_locks(Duration::from_millis(1)).await;
    let number = LOCKS_PER_SCAN as usize + 20;
    let locked = iter(0..number).map(|n| {
        let stranger = &stranger;
        async move {
            let mut txn = begin(stranger, TransactionOptions::new_pessimistic()).await;
            txn.lock_keys([format!("k{n:05}")]).await.unwrap();
        }
    });
    locked.buffer_unordered(64).collect::<Vec<()>>().await;
    assert_eq!(mock_tikv.sizes().locks, number);
    let now = tikv.timestamp().await.unwrap();
    assert_eq!(tikv.end_older(now).await.unwrap(), now);
    assert_eq!(mock_tikv.sizes().locks, 0);
}
