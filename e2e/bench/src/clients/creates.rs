//! Keys that are created and deleted one by one, as kube-apiserver does.

use std::cell::Cell;

use anyhow::ensure;
use bytes::Bytes;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as Op;
use pb::response_op::Response;
use programs::server::Server;
use wire::etcdserverpb as pb;

use super::grpc::{Connection, Connections, TXN, WindowSizes};
use super::{CONNECTIONS, IN_FLIGHT, closed_loop};
use crate::report::{Report, Unit};
use crate::{requests, updates};

const VALUE_BYTES: usize = 512;

/// Creates this many keys, then deletes them.
pub(super) async fn measure(server: &Server, count: u64, report: &mut Report) -> anyhow::Result<()> {
    let connections = Connections::open(server, CONNECTIONS, WindowSizes::Large).await?;
    let revisions: Vec<_> = (0..count).map(|_| Cell::new(0)).collect();
    let (before, cpu) = (connections.get(0).revision().await?, server.usage()?.cpu);
    let call = |connection, n: u64| {
        let created = &revisions[n as usize];
        async move {
            created.set(create(connection, n).await?);
            Ok(())
        }
    };
    let creating = closed_loop::run(&connections, IN_FLIGHT, count, call).await?;
    let (created, spent) = (connections.get(0).revision().await?, server.usage()?.cpu - cpu);
    made(created - before, count, "creates")?;
    let creates = count as f64 / creating.as_secs_f64();
    report.say("creates, 256 in flight", Unit::PerSecond, server.name(), creates);
    let each = updates::each(spent, count);
    report.say("creates: server CPU", Unit::MicrosEach, server.name(), each);

    let cpu = server.usage()?.cpu;
    let call = |connection, n: u64| delete(connection, n, revisions[n as usize].get());
    let deleting = closed_loop::run(&connections, IN_FLIGHT, count, call).await?;
    let (deleted, spent) = (connections.get(0).revision().await?, server.usage()?.cpu - cpu);
    made(deleted - created, count, "deletes")?;
    let deletes = count as f64 / deleting.as_secs_f64();
    report.say("deletes, 256 in flight", Unit::PerSecond, server.name(), deletes);
    let each = updates::each(spent, count);
    report.say("deletes: server CPU", Unit::MicrosEach, server.name(), each);
    report.say("deletes / creates", Unit::Share, server.name(), deletes / creates);
    Ok(())
}

fn made(revisions: i64, count: u64, what: &str) -> anyhow::Result<()> {
    ensure!(
        u64::try_from(revisions) == Ok(count),
        "{count} {what} made {revisions} revisions"
    );
    Ok(())
}

fn key(n: u64) -> Bytes {
    format!("/registry/pods/namespace-{:03}/pod-{n:08}", n % 100).into()
}

/// If the key is not there; returns its revision.
async fn create(connection: Connection, n: u64) -> anyhow::Result<i64> {
    let put = pb::PutRequest {
        key: key(n),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    };
    let answer = txn(&connection, n, 0, Op::RequestPut(put)).await?;
    ensure!(answer.succeeded, "key {n} already exists");
    Ok(answer.header.unwrap_or_default().revision)
}

/// If the key has this revision still.
async fn delete(connection: Connection, n: u64, revision: i64) -> anyhow::Result<()> {
    let delete = pb::DeleteRangeRequest {
        key: key(n),
        ..pb::DeleteRangeRequest::default()
    };
    let answer = txn(&connection, n, revision, Op::RequestDeleteRange(delete)).await?;
    let deleted = answer.responses.first().and_then(|response| response.response.as_ref());
    ensure!(
        answer.succeeded && matches!(deleted, Some(Response::ResponseDeleteRange(answer)) if answer.deleted == 1),
        "key {n} does not exist at revision {revision}"
    );
    Ok(())
}

/// Compares the mod revision, and gets the key if it is another.
async fn txn(connection: &Connection, n: u64, revision: i64, then: Op) -> anyhow::Result<pb::TxnResponse> {
    let compare = pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key(n),
        target_union: Some(TargetUnion::ModRevision(revision)),
        range_end: Bytes::new(),
    };
    let get = pb::RangeRequest {
        key: key(n),
        ..pb::RangeRequest::default()
    };
    let operation = |request| vec![pb::RequestOp { request: Some(request) }];
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: operation(then),
        failure: operation(Op::RequestRange(get)),
    };
    connection.call(TXN, requests::body(&txn)?).await
}
