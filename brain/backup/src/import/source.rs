//! The client of the source: its endpoints are tried in turn, requests are repeated while it cannot be reached.

use std::io::{BufWriter, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request, Status, Streaming};
use tracing::{info, warn};

use super::bounded::{BoundedChannel, longest_message};
use super::dial::dial;
use crate::snapshot::{LeaseTime, REVISION_METADATA, SnapshotFile, Spool};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::Revision;
use etcd_types::url::Url;
use runtime::backoff::Backoff;
use runtime::log_once::LogBackoff;
use tls::TlsOptions;

/// The access to an etcd, as etcdctl's flags give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceOptions {
    /// The client URLs, with the schemes http and https.
    pub endpoints: Vec<Url>,
    /// Certificates.
    pub tls: TlsOptions,
    /// Name and password.
    pub user: Option<(String, Password)>,
    /// The timeout of a connection attempt.
    pub dial_timeout: Duration,
}

/// A password, which is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The time for which the source may be unreachable.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before a request is repeated.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The time for which a snapshot or a part of it may not come: etcd writes one to disk first.
const SNAPSHOT_STALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Attempts to receive a whole snapshot.
const SNAPSHOT_ATTEMPTS: u32 = 5;

/// Interval between log lines about the progress.
pub(super) const PROGRESS_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The longest part of a snapshot that is accepted: etcd sends 32 KiB at a time.
const MAX_SNAPSHOT_PART_BYTES: usize = 16 << 20;

/// Leases whose times are asked for at a time.
const LEASES_AT_A_TIME: usize = 16;

/// The consequence for a copy whose source was restored from a backup.
const COPY_IS_USELESS: &str = "the copy is useless: --restart starts a new one";

/// The same for an archive.
const ARCHIVE_ENDS: &str = "its archive cannot continue: archive it at another destination";

/// The source has deleted history that is needed: up to this revision.
#[derive(Debug, thiserror::Error)]
#[error("the source has compacted its history up to revision {0}, which is more than was copied")]
pub struct SourceCompacted(pub(crate) Revision);

/// An answer of the source is longer than one that is accepted.
#[derive(Debug, thiserror::Error)]
#[error("an answer of the source is too long: {0}")]
pub(super) struct TooLong(String);

/// The source.
pub struct Source {
    options: SourceOptions,
    connection: SourceConnection,
    /// The id of its cluster.
    cluster_id: u64,
    /// The endpoint that is dialled next.
    next: usize,
    pauses: Backoff,
    /// The first failure since it has answered.
    failing_since: Option<Instant>,
    /// True if it is waited for without an end.
    is_patient: bool,
    /// The newest raft term that a linearizable read was answered in.
    term: u64,
    /// The consequence if the source was restored from a backup.
    if_restored: &'static str,
}

/// A connection to one endpoint.
#[derive(Clone)]
pub(super) struct SourceConnection {
    channel: BoundedChannel,
    token: Option<AsciiMetadataValue>,
    /// The longest answer that is accepted.
    longest: usize,
}

/// A snapshot that the source sends.
pub struct SnapshotParts {
    /// The revision of its content. Only kubebrain says it.
    pub revision: Option<Revision>,
    parts: Streaming<pb::SnapshotResponse>,
}

impl SnapshotParts {
    /// Returns the next part; `None` at the end. A failure is a [`Status`] in one line.
    pub async fn next(&mut self) -> Result<Option<pb::SnapshotResponse>, Status> {
        next_part(&mut self.parts).await
    }
}

async fn next_part(parts: &mut Streaming<pb::SnapshotResponse>) -> Result<Option<pb::SnapshotResponse>, Status> {
    let part = tokio::time::timeout(SNAPSHOT_STALL_TIMEOUT, parts.message()).await;
    part.unwrap_or_else(|_| Err(snapshot_stalled()))
}

fn snapshot_stalled() -> Status {
    Status::unavailable(format!("received nothing for {SNAPSHOT_STALL_TIMEOUT:?}"))
}

/// A watch over all keys.
pub(super) struct SourceWatch {
    pub(super) responses: Streaming<pb::WatchResponse>,
    /// The source ends the stream with this side of it.
    _requests: mpsc::Sender<pb::WatchRequest>,
}

/// Leases, and a revision of the source when it had them, or later.
pub(super) struct LeaseIds {
    pub(super) ids: Vec<i64>,
    pub(super) revision: Revision,
}

impl SourceConnection {
    async fn open(options: &SourceOptions, at: usize) -> anyhow::Result<(Self, pb::StatusResponse)> {
        let url = &options.endpoints[at % options.endpoints.len()];
        let opened = async {
            let channel = dial(url, options).await?;
            let mut connection = Self {
                channel,
                token: None,
                longest: longest_message(),
            };
            if let Some((name, password)) = &options.user {
                let ask = pb::AuthenticateRequest {
                    name: name.clone(),
                    password: password.0.clone(),
                };
                let mut client = pb::auth_client::AuthClient::new(connection.channel.clone());
                match client.authenticate(ask).await {
                    Ok(answer) => {
                        let token = answer.into_inner().token;
                        connection.token = Some(token.parse().context("the token of the user")?);
                    }
                    // As etcd's client: it asks everybody in.
                    Err(status) if status.message() == Error::AuthNotEnabled.text() => {}
                    Err(status) => return Err(in_short(status)),
                }
            }
            let mut client = connection.maintenance();
            let status = client.status(connection.request(pb::StatusRequest {})).await;
            let status = status.map_err(in_short)?.into_inner();
            ensure!(!status.is_learner, "it is a learner, which does not answer");
            anyhow::Ok((connection, status))
        };
        let opened = tokio::time::timeout(REQUEST_TIMEOUT, opened).await;
        opened
            .unwrap_or_else(|_| bail!("no answer within {REQUEST_TIMEOUT:?}"))
            .with_context(|| format!("connect to {url}"))
    }

    /// A request that is refused by a member without a leader, which may be far behind.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.plain(message);
        let leader = AsciiMetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", leader);
        request
    }

    fn plain<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn maintenance(&self) -> pb::maintenance_client::MaintenanceClient<BoundedChannel> {
        pb::maintenance_client::MaintenanceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_SNAPSHOT_PART_BYTES)
    }

    pub(super) fn kv(&self) -> pb::kv_client::KvClient<BoundedChannel> {
        pb::kv_client::KvClient::new(self.channel.clone()).max_decoding_message_size(self.longest)
    }

    fn lease(&self) -> pb::lease_client::LeaseClient<BoundedChannel> {
        pb::lease_client::LeaseClient::new(self.channel.clone()).max_decoding_message_size(self.longest)
    }
}

impl Source {
    /// Connects to the first endpoint that answers. Fails if none does.
    pub async fn open(options: SourceOptions) -> anyhow::Result<Self> {
        let mut failed = None;
        for at in 0..options.endpoints.len() {
            match SourceConnection::open(&options, at).await {
                Ok((connection, status)) => {
                    return Ok(Self {
                        options,
                        connection,
                        cluster_id: status.header.unwrap_or_default().cluster_id,
                        next: at + 1,
                        pauses: RETRY_BACKOFF,
                        failing_since: None,
                        is_patient: false,
                        term: 0,
                        if_restored: COPY_IS_USELESS,
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.context("there are no endpoints")?)
    }

    /// Accepts no longer answers until the next connection.
    #[cfg(test)]
    pub(super) fn accept_at_most(&mut self, bytes: usize) {
        self.connection.longest = bytes;
    }

    /// Connects once more. This connection waits for the source however long it cannot be reached.
    pub(crate) async fn patient(&self) -> anyhow::Result<Self> {
        let another = Self::open(self.options.clone()).await?;
        another.check_cluster(self.cluster_id)?;
        Ok(Self {
            is_patient: true,
            if_restored: self.if_restored,
            ..another
        })
    }

    /// Waits for the source however long it cannot be reached.
    #[must_use]
    pub fn waiting(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    /// Lets errors name the consequence for an archive.
    #[must_use]
    pub fn for_archive(self) -> Self {
        Self {
            if_restored: ARCHIVE_ENDS,
            ..self
        }
    }

    /// Fails if the endpoints are of several clusters, or of one that was made anew.
    fn check_cluster(&self, found: u64) -> anyhow::Result<()> {
        let own = self.cluster_id;
        ensure!(
            found == own,
            "the endpoints are of several clusters, {own:x} and {found:x}, or the source was restored from a backup: then {}",
            self.if_restored
        );
        Ok(())
    }

    /// The id of the source's cluster.
    pub fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    /// Records that the source answers.
    pub(super) fn answered(&mut self) {
        self.failing_since = None;
        self.pauses.reset();
    }

    /// Waits for a moment, and connects to the next endpoint. Fails if no endpoint has answered for long, or if one of another cluster
    /// answers.
    pub async fn reconnect(&mut self, error: anyhow::Error) -> anyhow::Result<()> {
        let mut error = error;
        loop {
            let failing_since = *self.failing_since.get_or_insert_with(Instant::now);
            if !self.is_patient && failing_since.elapsed() >= UNREACHABLE_TIMEOUT {
                return Err(error.context(format!("the source has not answered for {UNREACHABLE_TIMEOUT:?}")));
            }
            let pause = self.pauses.next_delay();
            warn!(error = format!("{error:#}"), again_in = ?pause, "the source cannot be reached");
            tokio::time::sleep(pause).await;
            let at = self.next;
            self.next = at.wrapping_add(1);
            match SourceConnection::open(&self.options, at).await {
                Ok((connection, status)) => {
                    self.check_cluster(status.header.unwrap_or_default().cluster_id)?;
                    self.connection = connection;
                    return Ok(());
                }
                Err(failed) => error = failed,
            }
        }
    }

    /// Sends a request until it is answered. Fails if the source refuses it, or does not answer for long.
    pub(super) async fn call<T>(
        &mut self,
        what: &'static str,
        call: impl AsyncFn(SourceConnection) -> Result<T, Status>,
    ) -> anyhow::Result<T> {
        loop {
            let answered = tokio::time::timeout(REQUEST_TIMEOUT, call(self.connection.clone())).await;
            match answered.unwrap_or_else(|_| {
                Err(Status::deadline_exceeded(format!(
                    "no answer within {REQUEST_TIMEOUT:?}"
                )))
            }) {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(status) if is_transient(&status) => self.reconnect(in_short(status).context(what)).await?,
                Err(status) => return Err(in_short(status).context(what)),
            }
        }
    }

    /// Fails if the source has an alarm that says that its members disagree.
    pub async fn check_alarms(&mut self) -> anyhow::Result<()> {
        let ask = pb::AlarmRequest::default;
        let answer = self.call("ask the source for its alarms", async |connection| {
            connection.maintenance().alarm(connection.request(ask())).await
        });
        for alarm in answer.await?.into_inner().alarms {
            let member = format!("{:x}", alarm.member_id);
            ensure!(
                alarm.alarm() != pb::AlarmType::Corrupt,
                "the source's member {member} has the alarm CORRUPT: its members have different data"
            );
            warn!(
                alarm = alarm.alarm().as_str_name(),
                member, "an alarm of the source is not copied"
            );
        }
        Ok(())
    }

    /// Bytes of the source's database.
    pub async fn size(&mut self) -> anyhow::Result<u64> {
        let answer = self.call("ask the source for its size", async |connection| {
            connection
                .maintenance()
                .status(connection.request(pb::StatusRequest {}))
                .await
        });
        Ok(u64::try_from(answer.await?.into_inner().db_size).unwrap_or_default())
    }

    /// Receives a snapshot, and verifies its checksum. Fails if there is no space for it, or if it does not come, several times.
    pub async fn snapshot(&mut self, spool: &Spool) -> anyhow::Result<SnapshotFile> {
        let mut attempts = 1;
        loop {
            let failed = match self.receive(spool).await {
                Ok(file) => return Ok(file),
                Err(error) => error.downcast::<Status>(),
            };
            match failed {
                Ok(status) if attempts < SNAPSHOT_ATTEMPTS && is_transient(&status) => {
                    attempts += 1;
                    self.reconnect(in_short(status).context("receive a snapshot of the source"))
                        .await?;
                }
                Ok(status) => return Err(in_short(status).context("receive a snapshot of the source")),
                Err(error) => return Err(error.context("receive a snapshot of the source")),
            }
        }
    }

    /// Asks for a snapshot, which is received in parts. Fails if the source refuses it.
    pub async fn snapshot_parts(&mut self) -> anyhow::Result<SnapshotParts> {
        let parts = self.ask_for_snapshot().await?;
        let revision = parts.metadata().get(REVISION_METADATA);
        let revision = revision.and_then(|revision| revision.to_str().ok()?.parse().ok());
        self.answered();
        Ok(SnapshotParts {
            revision,
            parts: parts.into_inner(),
        })
    }

    async fn ask_for_snapshot(&self) -> Result<tonic::Response<Streaming<pb::SnapshotResponse>>, Status> {
        let mut client = self.connection.maintenance();
        // A member that loses its leader can still finish a snapshot.
        let asked = client.snapshot(self.connection.plain(pb::SnapshotRequest {}));
        let asked = tokio::time::timeout(SNAPSHOT_STALL_TIMEOUT, asked).await;
        asked.unwrap_or_else(|_| Err(snapshot_stalled()))
    }

    async fn receive(&mut self, spool: &Spool) -> anyhow::Result<SnapshotFile> {
        let mut parts = self.ask_for_snapshot().await?.into_inner();
        let mut file = BufWriter::with_capacity(1 << 20, spool.file()?);
        let (mut received, mut log) = (0_u64, LogBackoff::every(PROGRESS_LOG_INTERVAL));
        loop {
            let Some(part) = next_part(&mut parts).await? else {
                break;
            };
            self.answered();
            file.write_all(&part.blob)?;
            received += part.blob.len() as u64;
            if log.is_due() {
                let total = received.saturating_add(part.remaining_bytes);
                let percent = (u128::from(received) * 100)
                    .checked_div(total.into())
                    .unwrap_or_default();
                info!(received, total, percent, "receiving a snapshot of the source");
            }
        }
        info!(bytes = received, "received a snapshot of the source");
        let file = file.into_inner()?.into_file();
        Ok(tokio::task::spawn_blocking(move || SnapshotFile::of(file, false)).await??)
    }

    /// Begins a watch over all keys from a revision on.
    pub(super) async fn watch(&mut self, start_revision: Revision) -> anyhow::Result<SourceWatch> {
        let create = pb::WatchCreateRequest {
            key: b"\0".as_slice().into(),
            range_end: b"\0".as_slice().into(),
            start_revision,
            progress_notify: true,
            fragment: true,
            ..pb::WatchCreateRequest::default()
        };
        self.call("watch the source", async |connection| {
            let (requests, sent) = mpsc::channel(1);
            let union = Some(pb::watch_request::RequestUnion::CreateRequest(create.clone()));
            let create = pb::WatchRequest { request_union: union };
            requests
                .send(create)
                .await
                .map_err(|error| Status::internal(error.to_string()))?;
            let client = pb::watch_client::WatchClient::new(connection.channel.clone());
            let mut client = client.max_decoding_message_size(connection.longest);
            let responses = client.watch(connection.request(ReceiverStream::new(sent))).await?;
            Ok(SourceWatch {
                responses: responses.into_inner(),
                _requests: requests,
            })
        })
        .await
    }

    /// The newest revision. Fails if the source is another cluster, or if its raft term is older than it was: no cluster goes back.
    pub async fn revision(&mut self) -> anyhow::Result<Revision> {
        let answer = self.range("ask the source for its revision", newest()).await?;
        let header = answer.header.unwrap_or_default();
        self.check_cluster(header.cluster_id)?;
        ensure!(
            header.raft_term >= self.term,
            "the source is in raft term {}, and was in {} before: it was restored from a backup, so {}",
            header.raft_term,
            self.term,
            self.if_restored
        );
        self.term = header.raft_term;
        Ok(header.revision)
    }

    /// Fails if the source is not at this revision, although it was read.
    pub(super) async fn check_reached(&mut self, revision: Revision) -> anyhow::Result<()> {
        let newest = self.revision().await?;
        ensure!(
            newest >= revision,
            "the source is at revision {newest}, and was at {revision} before: it was restored from a backup, so {}",
            self.if_restored
        );
        Ok(())
    }

    /// Returns true if the source has compacted a revision away.
    pub(super) async fn is_compacted(&mut self, revision: Revision) -> anyhow::Result<bool> {
        let range = pb::RangeRequest {
            key: b"\0".as_slice().into(),
            count_only: true,
            serializable: true,
            revision,
            ..pb::RangeRequest::default()
        };
        match self.range("ask the source for its compacted revision", range).await {
            Ok(_) => Ok(false),
            Err(error) if error.is::<SourceCompacted>() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads keys. Fails with [`SourceCompacted`] if the source has deleted the revision, and with [`TooLong`] if there are too many bytes
    /// of them.
    pub(super) async fn range(
        &mut self,
        what: &'static str,
        range: pb::RangeRequest,
    ) -> anyhow::Result<pb::RangeResponse> {
        let answer = self.call(what, async |connection| {
            match connection.kv().range(connection.request(range.clone())).await {
                Err(status) if status.message() == Error::Compacted.text() => {
                    Ok(Err(SourceCompacted(range.revision).into()))
                }
                Err(status) if is_too_long(&status) => Ok(Err(TooLong(status.message().to_owned()).into())),
                answer => answer.map(|answer| Ok(answer.into_inner())),
            }
        });
        answer.await?
    }

    /// Returns the ids of all leases, and the source's revision after listing them. A member lists the leases that it knows, so it first
    /// answers a read: after that it knows all leases that were granted before.
    pub(super) async fn lease_ids(&mut self) -> anyhow::Result<LeaseIds> {
        let answer = self.call("ask the source for its leases", async |connection| {
            connection.kv().range(connection.request(newest())).await?;
            connection
                .lease()
                .lease_leases(connection.request(pb::LeaseLeasesRequest {}))
                .await
        });
        let answer = answer.await?.into_inner();
        Ok(LeaseIds {
            ids: answer.leases.into_iter().map(|lease| lease.id).collect(),
            revision: answer.header.unwrap_or_default().revision,
        })
    }

    /// Returns the times of leases, without those that there are not.
    pub(crate) async fn lease_times(&mut self, ids: &[i64]) -> anyhow::Result<Vec<LeaseTime>> {
        let mut times = Vec::with_capacity(ids.len());
        for some in ids.chunks(LEASES_AT_A_TIME) {
            let found = self.call("ask the source for a lease", async |connection| {
                let connection = &connection;
                let asked = some.iter().map(|id| async move {
                    let ask = pb::LeaseTimeToLiveRequest { id: *id, keys: false };
                    match connection.lease().lease_time_to_live(connection.request(ask)).await {
                        Err(status) if status.code() == Code::NotFound => Ok(None),
                        answer => answer.map(|answer| Some(answer.into_inner())),
                    }
                });
                futures::future::try_join_all(asked).await
            });
            let found = found.await?.into_iter().flatten();
            // A lease that is gone has no time left and none granted.
            times.extend(found.filter(|found| found.granted_ttl > 0).map(|found| LeaseTime {
                id: found.id,
                ttl: found.granted_ttl,
                remaining: found.ttl,
            }));
        }
        Ok(times)
    }

    /// Returns whether permissions are checked, and the revision of users and roles; `None` from an etcd before 3.5.
    pub(super) async fn auth_revision(&mut self) -> anyhow::Result<Option<(bool, u64)>> {
        let answer = self.call("ask the source whether auth is enabled", async |connection| {
            let mut client = pb::auth_client::AuthClient::new(connection.channel.clone());
            match client.auth_status(connection.request(pb::AuthStatusRequest {})).await {
                Err(status) if status.code() == Code::Unimplemented => Ok(None),
                answer => answer.map(|answer| Some(answer.into_inner())),
            }
        });
        let answer = answer.await?;
        Ok(answer.map(|answer| (answer.enabled, answer.auth_revision)))
    }
}

/// Returns true if tonic refuses the length of an answer.
fn is_too_long(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("message length too large")
}

/// A read of all that was written before.
fn newest() -> pb::RangeRequest {
    pb::RangeRequest {
        key: b"\0".as_slice().into(),
        count_only: true,
        ..pb::RangeRequest::default()
    }
}

/// Returns an error of one line: the message, and its causes if the source did not send it.
pub fn in_short(status: Status) -> anyhow::Error {
    let mut text = match status.message() {
        "" => status.code().to_string(),
        message => message.to_owned(),
    };
    let mut cause = std::error::Error::source(&status);
    while let Some(behind) = cause {
        let behind_text = behind.to_string();
        if !text.ends_with(&behind_text) {
            text = format!("{text}: {behind_text}");
        }
        cause = behind.source();
    }
    anyhow::anyhow!(text)
}

/// Returns true if another attempt may succeed. Etcd's refusals have one of a few codes, apart from those of a member that is behind,
/// and of a token that is older than a change of users.
pub fn is_transient(status: &Status) -> bool {
    let is_refused = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss
    );
    let is_behind = [Error::FutureRev, Error::AuthOldRevision]
        .iter()
        .any(|error| status.message() == error.text());
    !is_refused || is_behind
}
