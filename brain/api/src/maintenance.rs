//! The service `etcdserverpb.Maintenance`.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, SemaphorePermit};
use tonic::{Request, Response, Status};

use super::context::{ApiContext, caller_of};
use super::forward::PendingGuard;
use super::leader_request::LeaderRequest;
use backup::snapshot::REVISION_METADATA;
use cluster::forward::Role;
use cluster::members::Members;
use engine::rows::RowsError;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use mvcc::auth::Auth;
use mvcc::view::View;
use store::alarm::{CORRUPT, NOSPACE};
use store::sequencer::command::Command;

pub use snapshot::SnapshotSender;

mod downgrade;
mod snapshot;

/// Transfers leadership to the member with an id, and waits until that member leads.
pub type MoveLeader = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

/// Reclaims space that log and rows do not need.
pub type Defragment = Arc<dyn Fn() -> BoxFuture<'static, anyhow::Result<()>> + Send + Sync>;

/// The service over a store.
pub struct MaintenanceService {
    /// The store.
    pub store: ApiContext,
    /// Returns the bytes that the store occupies on its medium.
    pub size: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Returns those of them that live and retained versions take.
    pub size_in_use: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Reclaims space.
    pub defragment: Defragment,
    /// `--quota-backend-bytes`; -1 means no quota, as in etcd.
    pub quota: i64,
    /// Transfers leadership to the member with an id.
    pub move_leader: MoveLeader,
    /// Writes and sends snapshots.
    pub snapshots: SnapshotSender,
    /// Turns of hashes.
    pub hashes: HashLimit,
}

/// Turns of hashes: each looks at all versions, and keeps what is in memory when it begins. Two are computed at once, further ones wait.
pub struct HashLimit(Semaphore);

impl Default for HashLimit {
    fn default() -> Self {
        Self(Semaphore::new(2))
    }
}

impl HashLimit {
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        // Never closed.
        self.0.acquire().await.map_err(|_| Error::Stopped)
    }
}

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for MaintenanceService {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<pb::SnapshotResponse, Status>> + Send>>;

    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        self.store.forward(request).await
    }

    async fn status(&self, request: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        self.store.permit(&request, Auth::check_known).await?;
        let committed = self.store.state.committed().0;
        // The sizes are never 0, as etcd's are not: etcdctl divides by the first one.
        let total = (self.size)().max(1);
        let in_use = (self.size_in_use)().clamp(1, total);
        let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        let alarms = self.store.state.alarms().clone();
        let errors = alarms.iter().map(|(kind, member)| {
            let kind = match *kind {
                NOSPACE => "NOSPACE",
                CORRUPT => "CORRUPT",
                _ => "NONE",
            };
            // The format is protobuf's text format, which omits zeros.
            match member {
                0 => format!("alarm:{kind} "),
                _ => format!("memberID:{member} alarm:{kind} "),
            }
        });
        let leader = self.store.leader();
        let errors = (leader == 0)
            .then(|| Error::NoLeader.to_string())
            .into_iter()
            .chain(errors);
        Ok(Response::new(pb::StatusResponse {
            header: Some(self.store.header(self.store.state.view().revision)),
            version: etcd_types::version::ETCD.to_owned(),
            db_size: bytes(total),
            leader,
            raft_index: committed,
            raft_term: self.store.state.epoch(),
            raft_applied_index: committed,
            errors: errors.collect(),
            db_size_in_use: bytes(in_use),
            is_learner: false,
            storage_version: "3.6.0".to_owned(),
            db_size_quota: self.quota,
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        let before = (self.size)();
        let disk = &self.store.metrics.disk;
        let _under_way = PendingGuard::new(&disk.defrag_inflight);
        let _timer = disk.defrag.start_timer();
        (self.defragment)().await.map_err(|error| {
            tracing::warn!(error = format!("{error:#}"), "defragmentation failed");
            Status::unavailable(format!("etcdserver: defragmentation failed: {error:#}"))
        })?;
        tracing::info!(before, after = (self.size)(), "finished defragmentation");
        Ok(Response::new(pb::DefragmentResponse { header: None }))
    }

    async fn hash(&self, request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        let _turn = self.hashes.turn().await?;
        let view = self.store.view()?;
        let _timer = self.store.metrics.mvcc.hash.start_timer();
        let hash = hash(&view, view.revision)
            .await
            .map_err(|error| self.store.rows_failed(&error))?;
        Ok(Response::new(pb::HashResponse {
            header: Some(self.store.header(view.revision)),
            hash,
        }))
    }

    async fn hash_kv(&self, request: Request<pb::HashKvRequest>) -> Result<Response<pb::HashKvResponse>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        let _turn = self.hashes.turn().await?;
        let view = self.store.view()?;
        let asked = request.get_ref().revision;
        let at = view.resolve(asked)?;
        let _timer = self.store.metrics.mvcc.hash_rev.start_timer();
        let hash = hash(&view, at).await.map_err(|error| self.store.rows_failed(&error))?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.store.header(view.revision)),
            hash,
            compact_revision: view.compacted,
            // Etcd echoes the requested revision.
            hash_revision: if asked == 0 { at } else { asked },
        }))
    }

    async fn snapshot(&self, request: Request<pb::SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        // As with etcd this member's state, whether it leads or not.
        let meter = super::kv::meter(&request);
        let (revision, stream) = self.snapshots.open(&self.store, (self.size)(), &meter).await?;
        let mut response = Response::new(Box::pin(stream) as Self::SnapshotStream);
        response.metadata_mut().insert(REVISION_METADATA, revision.into());
        Ok(response)
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        let target = request.get_ref().target_id;
        if !matches!(self.store.router.role(), Role::Leading(_)) {
            return Err(Error::NotLeader.into());
        }
        if target != self.store.member_id {
            (self.move_leader)(target).await?;
        }
        Ok(Response::new(pb::MoveLeaderResponse { header: None }))
    }

    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        self.store.permit(&request, Auth::check_admin).await?;
        let request = request.get_ref();
        // 0 VALIDATE, 1 ENABLE, 2 CANCEL.
        let revision = match request.action {
            action @ (0 | 1) => {
                let target = downgrade::parse(&request.version)?;
                let revision = self.store.linearizable().await?.revision;
                downgrade::check_target(target)?;
                if action == 1 {
                    return Err(Status::unimplemented(
                        "etcdserver: no older etcd reads the data of a brain",
                    ));
                }
                revision
            }
            2 => self.store.state.view().revision,
            _ => return Err(Status::unknown("etcdserver: unknown method")),
        };
        Ok(Response::new(pb::DowngradeResponse {
            header: Some(self.store.header(revision)),
            version: downgrade::cluster(),
        }))
    }
}

const ALARM_ACTIVATE: i32 = 1;
const ALARM_DEACTIVATE: i32 = 2;

impl LeaderRequest for pb::AlarmRequest {
    type Answer = pb::AlarmResponse;
    const PATH: &'static str = "/etcdserverpb.Maintenance/Alarm";
    const IS_SMALL: bool = true;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::AlarmResponse, Status> {
        let (caller, request) = (caller_of(request), *request.get_ref());
        let auth = store.guard.load();
        let permitted = match request.action {
            0 => auth.check_known(&caller),
            _ => auth.check_admin(&caller),
        };
        if let Err(error) = permitted {
            return Err(store.refuse(error).await);
        }
        let (member, kind) = (request.member_id, request.alarm);
        if request.action == ALARM_ACTIVATE {
            check_alarm(&store.members, member, kind)?;
        }
        let lease = store.router.lease();
        let raised = store.state.alarms().contains(&(kind, member));
        let mut is_asked = false;
        let alarms = match request.action {
            // GET returns the alarms of one kind, or all.
            0 => {
                let raised = store.state.alarms();
                let asked = raised.iter().filter(|(raised, _)| kind == 0 || *raised == kind);
                asked
                    .map(|(alarm, member_id)| pb::AlarmMember {
                        member_id: *member_id,
                        alarm: *alarm,
                    })
                    .collect()
            }
            // ACTIVATE and DEACTIVATE return the alarm that is raised or was cleared.
            action @ (ALARM_ACTIVATE | ALARM_DEACTIVATE) if kind != 0 && (action == ALARM_ACTIVATE || raised) => {
                store
                    .propose(caller, Command::Alarm(member, kind, action == ALARM_ACTIVATE), 64)
                    .await?;
                is_asked = true;
                vec![pb::AlarmMember {
                    member_id: member,
                    alarm: kind,
                }]
            }
            _ => Vec::new(),
        };
        if !is_asked {
            store.router.confirm_leadership(lease).await?;
        }
        let header = Some(store.header(store.state.view().revision));
        Ok(pb::AlarmResponse { header, alarms })
    }
}

/// Refuses alarms that would never be cleared: an alarm is stored as long as it is raised. Etcd accepts any member id, and aborts on an
/// unknown kind.
fn check_alarm(members: &Members, member: u64, kind: i32) -> Result<(), Status> {
    if !matches!(kind, 0 | NOSPACE | CORRUPT) {
        return Err(Status::invalid_argument("etcdserver: unknown alarm type"));
    }
    let is_member = member == 0 || members.list().iter().any(|known| known.id == member);
    if is_member {
        Ok(())
    } else {
        Err(Error::MemberNotFound.into())
    }
}

/// Where a hash begins: with the name of a bucket, as etcd's does, so that an empty store has one, too.
const HASH_SEED: &[u8] = b"key";

/// Returns a hash of all versions up to a revision, but what is compacted, whether that is deleted yet or not: equal on all members with
/// the same compacted revision.
async fn hash(view: &View, at: i64) -> Result<u32, RowsError> {
    let (mut versions, mut hash) = (view.versions(at), crc32c::crc32c(HASH_SEED));
    while let Some(page) = versions.next().await? {
        for version in page {
            // All zero for a deletion.
            let (meta, value) = version.put.unwrap_or_default();
            for number in [meta.create_revision, version.revision, meta.version, meta.lease.0] {
                hash = crc32c::crc32c_append(hash, &number.to_be_bytes());
            }
            for bytes in [&version.key, &value] {
                hash = crc32c::crc32c_append(hash, &bytes.len().to_be_bytes());
                hash = crc32c::crc32c_append(hash, bytes);
            }
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn third_hash_waits_for_one_of_two() {
        let hashes = HashLimit::default();
        let (one, _other) = (hashes.turn().await.unwrap(), hashes.turn().await.unwrap());
        let mut third = Box::pin(hashes.turn());
        assert!(futures::poll!(&mut third).is_pending());
        drop(one);
        drop(third.await.unwrap());
    }
}
