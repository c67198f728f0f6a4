//! Keys that are created and deleted one by one, as kube-apiserver does.

use std::cell::Cell;

use anyhow::ensure;
use bytes::Bytes;
use pb::request_op::Request as Op;
use pb::response_op::Response;
use programs::server::Server;
use wire::etcdserverpb as pb;

use super::{CONNECTIONS, IN_FLIGHT};
use crate::grpc::{Connection, Connections, TXN, WindowSizes};
use crate::report::{Report, Unit};
use crate::{closed_loop, requests, updates};

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
    let answer = txn(&connection, &requests::at_revision(key(n), 0, Op::RequestPut(put))).await?;
    ensure!(answer.succeeded, "key {n} already exists");
    Ok(answer.header.unwrap_or_default().revision)
}

/// If the key has this revision still.
async fn delete(connection: Connection, n: u64, revision: i64) -> anyhow::Result<()> {
    let delete = pb::DeleteRangeRequest {
        key: key(n),
        ..pb::DeleteRangeRequest::default()
    };
    let answer = txn(
        &connection,
        &requests::at_revision(key(n), revision, Op::RequestDeleteRange(delete)),
    )
    .await?;
    let deleted = answer.responses.first().and_then(|response| response.response.as_ref());
    ensure!(
        answer.succeeded && matches!(deleted, Some(Response::ResponseDeleteRange(answer)) if answer.deleted == 1),
        "key {n} does not exist at revision {revision}"
    );
    Ok(())
}

async fn txn(connection: &Connection, txn: &pb::TxnRequest) -> anyhow::Result<pb::TxnResponse> {
    connection.call(TXN, requests::body(txn)?).await
}
