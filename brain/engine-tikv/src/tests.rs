use std::time::Duration;

use mock_tikv::{Action, Fault, MockTikv, RegionFault, Rpc};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::testing::{Connected, on_mock, prefix};
use bytes::Bytes;
use engine::cas_register::{Cas, CasRegister as _};

use super::*;
use crate::TikvMetrics;
use testkit::certificates::{Ca, Leaf};

const LOSE_REPLY: Action = Action::LoseReply { silent: false };

async fn won(register: &TikvRegister, expected: Option<&'static str>, new: &'static str) -> bool {
    let expected = expected.map(Bytes::from);
    match register.compare_and_set(expected, Some(Bytes::from(new))).await {
        Cas::Swapped => true,
        Cas::Mismatch => false,
        Cas::Unknown(error) => panic!("the outcome of a swap is not known: {error:#}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_of_cells_hold_in_tikv() {
    let here = testing::fresh().await;
    let mut number = 0;
    engine::cas_register::laws::hold(async || {
        number += 1;
        here.tikv.register(&format!("test {number}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_replies_are_lost_is_decided() {
    let here = on_mock(|_| {}).await;
    let register = here.tikv.register("test").within(Duration::from_secs(30));
    let faults = here.mock_tikv().faults();
    for (action, times) in [
        (LOSE_REPLY, 1),
        (LOSE_REPLY, 100),
        (Action::LoseRequest { silent: false }, 100),
    ] {
        let landed = action == LOSE_REPLY;
        let before = register.get().await.unwrap();
        let id = faults.add(Fault::new(Rpc::Prewrite, action).times(times)).unwrap();
        let swapped = register.compare_and_set(before.clone(), Some(Bytes::from(format!("{times} {landed}"))));
        if landed {
            assert!(matches!(swapped.await, Cas::Swapped));
        } else {
            // It can have no effect, so it is tried until it has.
            let (swap, ()) = tokio::join!(swapped, async {
                testing::until("it is tried again", || faults.happened(id).unwrap() >= 15).await;
                faults.clear();
            });
            assert!(matches!(swap, Cas::Swapped), "{swap:?}");
        }
        faults.clear();
        assert_ne!(register.get().await.unwrap(), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_the_client_does_not_retry_are_retried() {
    let here = on_mock(|_| {}).await;
    let register = here.tikv.register("test");
    let faults = here.mock_tikv().faults();
    let mut before = None;
    for (error, new) in [
        (RegionFault::ServerIsBusy, "busy"),
        (RegionFault::MaxTimestampNotSynced, "max ts"),
        (RegionFault::EpochNotMatch, "epoch"),
        (RegionFault::NotLeader, "leader"),
    ] {
        for rpc in [Rpc::Get, Rpc::Prewrite] {
            faults.add(Fault::new(rpc, Action::Region { error }).times(3)).unwrap();
        }
        assert!(won(&register, before, new).await, "{error:?}");
        before = Some(new);
    }
}

/// A connection that gives up soon, and a register that was set.
async fn impatient() -> (Connected, TikvRegister) {
    let here = on_mock(|options| {
        options.rpc_timeout = Duration::from_millis(400);
        options.timeout = Duration::from_millis(800);
    })
    .await;
    let register = here.tikv.register("test");
    assert!(won(&register, None, "before").await);
    (here, register)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pd_that_hangs_fails_calls_in_time_and_is_forgotten_when_it_returns() {
    let (here, register) = impatient().await;
    here.mock_tikv().pause(MockTikv::PD).unwrap();
    for _ in 0..8 {
        let begun = Instant::now();
        assert!(register.get().await.is_err());
        assert!(here.tikv.timestamp().await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
    here.mock_tikv().resume(MockTikv::PD).unwrap();
    comes_back(&register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_failures_and_replacements_are_counted() {
    let metrics = TikvMetrics::default();
    let here = on_mock(|options| options.metrics = metrics.clone()).await;
    let register = here.tikv.register("test");
    assert!(won(&register, None, "before").await);
    let error = RegionFault::ServerIsBusy;
    let busy = Fault::new(Rpc::Get, Action::Region { error }).times(3);
    here.mock_tikv().faults().add(busy).unwrap();
    assert_eq!(register.get().await.unwrap(), Some(Bytes::from("before")));
    let failed = metrics.failures.with_label_values(&["get_now", "unreachable"]);
    assert_eq!(failed.get(), 3);
    let swaps = metrics.requests.with_label_values(&["swap"]);
    assert!(swaps.get_sample_count() > 0);
    assert_eq!(metrics.replaced.get(), 0);
    lose_clients(&here, &register).await;
    comes_back(&register).await;
    testing::until("a replacement is counted", || metrics.replaced.get() > 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_were_gone_are_found_again() {
    let (here, register) = impatient().await;
    let processes: Vec<u64> = here.mock_tikv().stores().into_keys().chain([MockTikv::PD]).collect();
    for process in &processes {
        here.mock_tikv().kill(*process).await.unwrap();
    }
    for _ in 0..5 {
        assert!(register.get().await.is_err());
    }
    for process in &processes {
        here.mock_tikv().revive(*process).await.unwrap();
    }
    comes_back(&register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_could_not_connect_to_a_server_is_replaced() {
    let here = on_mock(|_| {}).await;
    let register = here.tikv.register("test");
    assert!(won(&register, None, "before").await);
    lose_clients(&here, &register).await;
    comes_back(&register).await;
}

/// Brings clients to a state that they do not get over.
async fn lose_clients(here: &Connected, register: &TikvRegister) {
    let (mock_tikv, key) = (here.mock_tikv(), here.tikv.keys().register("test"));
    mock_tikv.kill(2).await.unwrap();
    mock_tikv.move_region(&key, 2).await.unwrap();
    for _ in 0..4 {
        assert!(register.get().await.is_err());
    }
    // The clients do not ask PD again: they keep trying the server that they know.
    mock_tikv.move_region(&key, 1).await.unwrap();
}

/// An address that accepts connections and never answers.
async fn mute() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// An address where not even connections are made, as if the machine were gone.
async fn gone() -> (TcpListener, Vec<TcpStream>, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (listener, waiting, address.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_pd_where_nothing_answers_cost_a_moment_only() {
    let ((_mute, mute), (_gone, _waiting, gone)) = (mute().await, gone().await);
    let begun = Instant::now();
    let here = on_mock(|options| {
        options.pd_endpoints.splice(0..0, [mute, gone]);
        options.rpc_timeout = Duration::from_secs(1);
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let register = here.tikv.register("test");
    assert!(won(&register, None, "before").await);
    // Clients that are replaced need no more.
    lose_clients(&here, &register).await;
    comes_back(&register).await;
}

/// The clients recover by themselves, within seconds.
async fn comes_back(register: &TikvRegister) {
    let begun = Instant::now();
    while let Err(error) = register.get().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{error:#}");
    }
    assert_eq!(register.get().await.unwrap(), Some(Bytes::from("before")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_read_again_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(file(name), text).unwrap();
    let (ca, stranger) = (Ca::new("tikv"), Ca::new("stranger"));
    write("ca", &ca.pem);
    let server = ca.leaf("localhost", true, 0, 10);
    write("server", &server.cert);
    write("server.key", &server.key);
    let bring = |leaf: Leaf| {
        write("cert", &leaf.cert);
        write("key", &leaf.key);
    };
    bring(ca.client("one"));
    let setup = mock_tikv::Options {
        tls: Some(mock_tikv::Tls {
            ca: file("ca"),
            cert: file("server"),
            key: file("server.key"),
        }),
        advertised_host: Some("localhost".into()),
        ..mock_tikv::Options::default()
    };
    let here = testing::on(setup, |options| {
        options.tls = Some(TikvTls {
            ca: file("ca"),
            cert: file("cert"),
            key: file("key"),
        });
        options.tls_interval = Duration::from_millis(50);
    })
    .await;
    let register = here.tikv.register("test");
    assert!(won(&register, None, "before").await);
    // Certificates that the cluster rejects leave the old connections in use.
    let (other, mut supervisor) = Tikv::connect(here.tikv.shared.options.clone()).await.unwrap();
    let kept = other.register("test");
    let clients = other.shared.options.connections;
    for _ in 0..clients {
        kept.get().await.unwrap(); // each of them connects when it is first used
    }
    bring(stranger.client("stranger"));
    here.mock_tikv().reset_requests();
    let asked = || here.mock_tikv().requests().get(&Rpc::GetMembers).copied().unwrap_or(0);
    supervisor.look_at_certificates(Duration::from_secs(4)).await;
    assert_eq!(asked(), 0, "a stranger was served");
    for _ in 0..clients {
        assert_eq!(kept.get().await.unwrap(), Some(Bytes::from("before")));
    }
    bring(ca.client("two"));
    let enough = 2 * here.tikv.shared.options.connections as u64;
    testing::until("the new certificate is used", || asked() >= enough).await;
    comes_back(&register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_begun_on_another_cluster_is_refused() {
    let here = on_mock(|_| {}).await;
    let (pd, ours) = (here.mock_tikv().pd(), here.tikv.cluster_id());
    let options = || ConnectOptions::new(vec![pd.clone()], here.tikv.shared.options.key_prefix.clone());
    let (again, _keeper) = Tikv::connect(options()).await.unwrap();
    assert_eq!(again.cluster_id(), ours);
    let pin = here.tikv.register(CLUSTER_REGISTER);
    let found = pin.get().await.unwrap();
    let other = Some(Bytes::copy_from_slice(&99u64.to_be_bytes()));
    assert!(matches!(pin.compare_and_set(found, other.clone()).await, Cas::Swapped));
    match Tikv::connect(options()).await {
        Err(ConnectError::OtherCluster { pinned: 99, found }) => assert_eq!(found, ours),
        other => panic!("expected a refusal, got {other:?}"),
    }
    let broken = Some(Bytes::from("broken"));
    assert!(matches!(pin.compare_and_set(other, broken).await, Cas::Swapped));
    assert!(matches!(Tikv::connect(options()).await, Err(ConnectError::Corrupt(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pd_that_is_not_there_is_told_from_bad_options() {
    let mock_tikv = MockTikv::start(mock_tikv::Options::default()).await.unwrap();
    let pd = mock_tikv.pd();
    mock_tikv.kill(MockTikv::PD).await.unwrap();
    let absent = Tikv::connect(ConnectOptions::new(vec![pd], prefix())).await;
    assert!(matches!(absent, Err(ConnectError::Unreachable(_))), "{absent:?}");
    let bad = Tikv::connect(ConnectOptions::new(vec![], prefix())).await;
    assert!(matches!(bad, Err(ConnectError::Options(_))), "{bad:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_asks_only_the_regions_that_it_needs() {
    let here = on_mock(|_| {}).await;
    let (tikv, mock_tikv) = (&here.tikv, here.mock_tikv());
    let key = |n: u32| tikv.keys().row(format!("{n:04}").as_bytes());
    let changes: Vec<Mutation> = (0..200).map(|n| Mutation::Put(key(n), Bytes::from("v"))).collect();
    let fence = FencedWrite {
        fence: &tikv.keys().fence(),
        expected: None,
        primary: &tikv.keys().fence(),
        new: &Bytes::from("fence"),
    };
    let limits = CallLimits {
        attempt: Duration::from_secs(10),
        total: Duration::from_secs(20),
    };
    assert!(matches!(
        tikv.write(fence, &changes, limits).await,
        Ok(FencedOutcome::Done)
    ));
    for n in (10..200).step_by(10) {
        mock_tikv.split(&key(n)).await.unwrap();
    }
    let (from, to) = (key(5), tikv.keys().rows_end());
    assert_eq!(tikv.within_region(&from, &to).await, key(10));
    assert_eq!(tikv.within_region(&from, &key(7)).await, key(7));
    assert_eq!(tikv.within_region(&key(195), &to).await, to);
    // Cached regions may be wrong by now; that may only change the number of requests.
    mock_tikv.merge(&key(10)).await.unwrap();
    assert_eq!(tikv.within_region(&from, &to).await, key(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_takes_the_place_of_ours_is_not_touched() {
    let ours = MockTikv::start(mock_tikv::Options::default()).await.unwrap();
    let at = |address: &str| address.parse().unwrap();
    let theirs = mock_tikv::Options {
        pd: at(&ours.pd()),
        stores: ours.stores().values().map(|store| at(store)).collect(),
        cluster_id: ours.cluster_id() + 1,
        ..Default::default()
    };
    let (tikv, supervisor) = Tikv::connect(ConnectOptions::new(vec![ours.pd()], prefix()))
        .await
        .unwrap();
    let mut supervisors = JoinSet::new();
    supervisors.spawn(supervisor.run(CancellationToken::new()));
    let value = Bytes::from("record");
    tikv.insert(&tikv.keys().slot(1), &value).await.unwrap();
    ours.stop().await.unwrap();
    let theirs = MockTikv::start(theirs).await.unwrap();
    let inserted = tikv.insert(&tikv.keys().slot(2), &value).await;
    assert!(matches!(inserted, Err(Error::Unreachable(_))), "{inserted:?}");
    let limits = CallLimits {
        attempt: Duration::from_secs(1),
        total: Duration::from_secs(4),
    };
    let found = tikv.get_now(&tikv.keys().slot(1), limits).await;
    assert!(matches!(found, Err(Error::Unreachable(_))), "{found:?}");
    assert_eq!(theirs.contents(), Default::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_are_ended_while_others_are_just_being_committed() {
    let setup = mock_tikv::Options {
        commit_latency: Duration::from_millis(100),
        ..Default::default()
    };
    let here = testing::on(setup, |_| {}).await;
    let (tikv, mock_tikv) = (&here.tikv, here.mock_tikv());
    let (slot, (from, to)) = (tikv.keys().slot(1), tikv.keys().whole());
    mock_tikv.reset_requests();
    let value = Bytes::from("record");
    let insert = tikv.insert(&slot, &value);
    let end = async {
        let asked = || mock_tikv.requests().contains_key(&Rpc::Prewrite);
        testing::until("it is being committed", asked).await;
        let now = tikv.timestamp().await.unwrap();
        tikv.end_transactions(now, &from, &to).await
    };
    let (inserted, ended) = tokio::join!(insert, end);
    inserted.unwrap();
    ended.unwrap();
    let now = tikv.timestamp().await.unwrap();
    assert_eq!(tikv.get(now, &slot).await.unwrap(), Some(value));
}

/// Silence towards every client, once a request of this kind arrives.
const SILENCE: Action = Action::LoseRequest { silent: true };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_renewal_needs_one_request_only() {
    let here = on_mock(|_| {}).await;
    let register = here.tikv.election_register("test", Duration::from_secs(30));
    assert!(won(&register, None, "0").await);
    let mut before = "0";
    for new in ["1", "2", "3"] {
        let expected = Bytes::from(before);
        register.prepare(Some(&expected)).await;
        let faults = here.mock_tikv().faults();
        for rpc in [Rpc::Get, Rpc::Tso] {
            faults.add(Fault::new(rpc, SILENCE)).unwrap();
        }
        assert!(won(&register, Some(before), new).await);
        faults.clear();
        before = new;
    }
    // A value that was read ahead must not cause a swap over a value that another client has set since.
    register.prepare(Some(&Bytes::from("3"))).await;
    assert!(won(&here.tikv.register("test"), Some("3"), "other").await);
    assert!(!won(&register, Some("3"), "4").await);
    assert_eq!(register.get().await.unwrap(), Some(Bytes::from("other")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connection_is_helped_out_by_another_one() {
    let here = on_mock(|_| {}).await;
    let register = here.tikv.election_register("test", Duration::from_secs(6));
    assert!(won(&register, None, "0").await);
    let faults = here.mock_tikv().faults();
    for (rpc, new, before) in [(Rpc::Get, "1", "0"), (Rpc::Prewrite, "2", "1")] {
        let id = faults.add(Fault::new(rpc, SILENCE).times(1)).unwrap();
        assert_eq!(register.get().await.unwrap(), Some(Bytes::from(before)));
        assert!(won(&register, Some(before), new).await);
        assert_eq!(faults.happened(id), Some(1));
        faults.clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_answer_is_waited_for_beyond_the_time_of_an_attempt() {
    let (here, register) = impatient().await;
    // Each request alone takes less than its timeout, the two of a read together more than an attempt.
    here.mock_tikv()
        .delays()
        .set([mock_tikv::Delay::of(Duration::from_millis(300))]);
    for _ in 0..8 {
        assert_eq!(register.get().await.unwrap(), Some(Bytes::from("before")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pd_member_that_names_no_leader_is_not_the_last_word() {
    let setup = mock_tikv::Options::default().with_pd_members(3);
    let mock_tikv = MockTikv::start(setup.with_stores(3)).await.unwrap();
    let options = ConnectOptions::new(mock_tikv.pd_members(), prefix());
    // It answers first, and does not know of an election.
    mock_tikv.set_pd_aware(0, false);
    mock_tikv.lead_pd(2);
    let late = |member| mock_tikv::Delay::of(Duration::from_millis(600)).at(MockTikv::pd_process(member));
    mock_tikv.delays().set([late(1), late(2)]);
    let (tikv, supervisor) = Tikv::connect(options).await.unwrap();
    let mut supervisors = JoinSet::new();
    supervisors.spawn(supervisor.run(CancellationToken::new()));
    let register = tikv.register("test");
    assert!(won(&register, None, "before").await);
    let key = tikv.keys().register("test");
    tikv.shared.pd.region(&key).await.unwrap();
    mock_tikv.delays().set([]);
    // The known leader no longer leads, and one of the others does not know the new one yet.
    for leader in [1, 2, 0] {
        mock_tikv.lead_pd(leader);
        mock_tikv.set_pd_aware((leader + 1) % 3, false);
        mock_tikv.set_pd_aware(leader, true);
        tikv.shared.pd.region(&key).await.unwrap();
        assert!(won(&register, Some("before"), "before").await);
        comes_back(&register).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pd_that_speaks_tls_is_reported_with_the_flag_that_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let ca = Ca::new("tikv");
    let server = ca.leaf("localhost", true, 0, 10);
    for (name, text) in [("ca", &ca.pem), ("cert", &server.cert), ("key", &server.key)] {
        std::fs::write(file(name), text).unwrap();
    }
    let setup = mock_tikv::Options {
        tls: Some(mock_tikv::Tls {
            ca: file("ca"),
            cert: file("cert"),
            key: file("key"),
        }),
        advertised_host: Some("localhost".into()),
        ..mock_tikv::Options::default()
    };
    let mock_tikv = MockTikv::start(setup).await.unwrap();
    for scheme in ["", "http://", "https://"] {
        let pd = format!("{scheme}{}", mock_tikv.pd());
        let error = Tikv::connect(ConnectOptions::new(vec![pd], prefix()))
            .await
            .unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(
            error.contains("speaks TLS: --tikv-ca, --tikv-cert and --tikv-key are needed"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_and_busy_servers_are_told_apart_from_an_outage() {
    let here = on_mock(|_| {}).await;
    let (tikv, faults) = (&here.tikv, here.mock_tikv().faults());
    let value = Bytes::from("record");
    tikv.insert(&tikv.keys().slot(1), &value).await.unwrap();
    // Each write is refused until there is space, and says so at once.
    let disk_full = Action::Region {
        error: RegionFault::DiskFull,
    };
    faults.add(Fault::new(Rpc::Prewrite, disk_full)).unwrap();
    let full = tikv.insert(&tikv.keys().slot(2), &value).await;
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    faults.clear();
    tikv.insert(&tikv.keys().slot(2), &value).await.unwrap();
    // On an almost full disk, writes that are needed to lead or to delete continue.
    let almost_full = Action::Region {
        error: RegionFault::DiskAlmostFull,
    };
    faults.add(Fault::new(Rpc::Prewrite, almost_full)).unwrap();
    let full = tikv.insert(&tikv.keys().slot(3), &value).await;
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    assert!(won(&tikv.election_register("test", Duration::from_secs(3)), None, "leader").await);
    let fence = tikv.keys().fence();
    let behind = FencedWrite {
        fence: &fence,
        expected: None,
        primary: &fence,
        new: &value,
    };
    let deletes = [Mutation::Delete(tikv.keys().row(b"key"))];
    let deleted = tikv.write(behind, &deletes, tikv.limits()).await;
    assert!(matches!(deleted, Ok(FencedOutcome::Done)), "{deleted:?}");
    faults.clear();
    // A busy server is asked again until it is not.
    let busy = Action::Region {
        error: RegionFault::ServerIsBusy,
    };
    let id = faults.add(Fault::new(Rpc::Prewrite, busy).times(12)).unwrap();
    tikv.insert(&tikv.keys().slot(3), &value).await.unwrap();
    assert_eq!(faults.happened(id), Some(12));
}
