//! Follows the source until the copy may be finished.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::backlog::Backlog;
use super::client_writes::ClientWrites;
use super::events::{EventAssembler, WatchCancelled};
use super::source::{LeaseIds, PROGRESS_LOG_INTERVAL, Source, SourceCompacted, SourceWatch, in_short, is_transient};
use super::{leases, verify};
use crate::snapshot::{Importer, RevisionEvents, Spool, VersionChecksum};
use etcd_types::errors::Error;
use etcd_types::types::Revision;
use runtime::log_once::LogBackoff;
use telemetry::metrics::ImportMetrics;

/// The interval at which leases and compaction of the source are asked for.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(15);

/// The number of revisions that a copy may lack while it counts as following its source.
const MAX_FOLLOWING_LAG: Revision = 10_000;

/// The time without a write of a client after which the writers of a source are taken to have ended.
const QUIET_TIME: Duration = Duration::from_secs(2);

/// Bytes and revisions of the source that are applied together.
pub(super) const BATCH_BYTES: usize = 1 << 20;
pub(super) const BATCH_REVISIONS: usize = 4_096;

/// How often leases are read again while the source changes.
const MAX_LEASE_ROUNDS: usize = 8;

/// The number of times that users are copied again because they changed while keys were compared.
const MAX_USER_ROUNDS: usize = 8;

/// The number of times that the copy catches up after the comparison while more leases of the source end.
const MAX_CLOSING_ROUNDS: usize = 1_000;

/// The number of times that all keys are compared, if the source compacts the revision during a comparison.
const COMPARISON_ATTEMPTS: usize = 3;

/// A watch over all keys, and what it has sent.
pub(crate) struct OpenWatch {
    watch: SourceWatch,
    assembler: EventAssembler,
    /// The first revisions that it has sent, until it is known that they are whole.
    first: Vec<RevisionEvents>,
    /// True if the source had all of history when it sent the first revisions: an etcd before 3.6 sends what is left of the revision that
    /// it has compacted to.
    is_whole: bool,
}

/// A client of the source has written a revision after the comparison with the copy began.
#[derive(Debug, thiserror::Error)]
#[error(
    "the source is still written to: revision {0} was written after the comparison with the copy began. Stop the writers; the same command copies the rest"
)]
struct StillWritten(Revision);

/// When a copy is finished, and where it reports its progress until then.
#[derive(Debug)]
pub struct CopyOptions {
    /// Clients move to the copy when it is finished, so writes that it lacks are an error. It does not depend on `may_finish`, which may
    /// be true from the beginning if an earlier process was interrupted, or finishes a copy that another one began.
    pub follows: bool,
    /// Do not finish before this is true.
    pub may_finish: watch::Receiver<bool>,
    /// Finish at this revision, once the source has reached it.
    pub until: Option<Revision>,
    /// True if the end of the writers is waited for. Otherwise their writes during the comparison are an error.
    pub waits_for_writers: bool,
    /// The revisions of the copy and of the source.
    pub progress: Arc<ImportMetrics>,
}

/// The content of a finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySummary {
    pub revision: Revision,
    /// The compacted revision; 0 if there was no compaction.
    pub compacted: Revision,
    pub keys: u64,
    pub leases: usize,
    /// The sum over keys, values, revisions, versions and leases, which is that of the source.
    pub checksum: u128,
    /// The revision at which keys and sum were compared. Since then leases of the source have ended, if it is not the last one.
    pub compared: Revision,
    /// The revision of the source, if the copy lacks the newest ones because it did not follow.
    pub source: Option<Revision>,
}

/// Follows the source from the copy's revision on. When it may finish, it continues to the source's revision, compares both stores, and
/// ends. The events in `collected` are applied first. Fails with [`SourceCompacted`] if the source has deleted history that is needed.
pub async fn copy(
    source: &mut Source,
    importer: Importer,
    (options, collected): (CopyOptions, Option<Backlog>),
    spool: &Spool,
) -> anyhow::Result<CopySummary> {
    let newest = source.revision().await?;
    let (own, until) = (importer.revision(), options.until);
    ensure!(
        own <= newest,
        "the copy is at revision {own}, and the source only at {newest}: it is another cluster, or was restored from a backup"
    );
    ensure!(
        until.is_none_or(|until| own <= until),
        "the copy is already at revision {own}, past --until-revision"
    );
    if let Some(until) = until.filter(|until| *until > newest) {
        info!(
            until,
            source = newest,
            "waiting for the source to reach --until-revision"
        );
    }
    let mut copy = CopyRun::new(source, importer, &options);
    copy.progress.set_source_revision(newest);
    copy.progress.set_revision(own);
    if let Some(collected) = collected {
        copy.take(collected).await?;
    }
    copy.follow(newest, options.may_finish.clone()).await?;
    copy.settle().await?;
    copy.progress.set_finishing();
    let (checksum, compared, missed) = loop {
        let compared = copy.compare_and_close(&options, spool).await;
        match compared {
            Err(error) if options.waits_for_writers && error.is::<StillWritten>() => {
                warn!(
                    error = format!("{error:#}"),
                    "waiting for the end of the writers before the copy is compared again"
                );
                copy.wait_for_writers().await?;
            }
            compared => break compared?,
        }
    };
    let copied = CopySummary {
        revision: copy.importer.revision(),
        compacted: copy.importer.compacted(),
        keys: checksum.versions,
        leases: copy.importer.leases().len(),
        checksum: checksum.sum,
        compared,
        source: missed,
    };
    copy.importer.finish().await?;
    Ok(copied)
}

/// A copy that follows its source.
pub(super) struct CopyRun<'a> {
    source: &'a mut Source,
    importer: Importer,
    until: Option<Revision>,
    watch: Option<OpenWatch>,
    /// Leases that the source had at a revision that may not be reached yet.
    listed: Option<LeaseIds>,
    /// Those since the comparison of keys began, or shortly before; `None` while writes are expected.
    client_writes: Option<ClientWrites>,
    /// True once it was at the revision that the source had at its start.
    has_reached: bool,
    log: LogBackoff,
    progress: Arc<ImportMetrics>,
}

impl<'a> CopyRun<'a> {
    pub(super) fn new(source: &'a mut Source, importer: Importer, options: &CopyOptions) -> Self {
        Self {
            source,
            importer,
            until: options.until,
            watch: None,
            listed: None,
            client_writes: None,
            has_reached: false,
            log: LogBackoff::every(PROGRESS_LOG_INTERVAL),
            progress: options.progress.clone(),
        }
    }

    /// Applies what was collected, and continues with its watch.
    async fn take(&mut self, mut collected: Backlog) -> anyhow::Result<()> {
        if collected.behind > self.importer.revision() {
            // The member that sent the snapshot was behind the one that was watched.
            return Ok(());
        }
        loop {
            let revised = collected.next()?;
            if revised.is_empty() {
                break;
            }
            self.apply(revised).await?;
        }
        self.watch = collected.watch;
        Ok(())
    }

    /// Follows until the copy may be finished. Logs when it has reached `newest`.
    async fn follow(&mut self, newest: Revision, mut may_finish: watch::Receiver<bool>) -> anyhow::Result<()> {
        let mut upkeep = tokio::time::interval(UPKEEP_INTERVAL);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if *may_finish.borrow_and_update() {
                return Ok(());
            }
            let revision = self.importer.revision();
            if !self.has_reached && revision >= newest {
                self.has_reached = true;
                self.progress.set_following(true);
                info!(
                    revision,
                    "the copy has reached the source: SIGUSR1 or the cutover file finishes it"
                );
            }
            tokio::select! {
            changed = may_finish.changed() => changed?,
            _ = upkeep.tick() => self.keep_up().await?,
            revised = next(self.source, &mut self.watch, revision) => self.apply(revised?).await?,
            }
        }
    }

    /// Follows up to a revision.
    async fn reach(&mut self, revision: Revision) -> anyhow::Result<()> {
        let goal = self.until.map_or(revision, |until| until.min(revision));
        while self.importer.revision() < goal {
            let revised = next(self.source, &mut self.watch, self.importer.revision()).await?;
            self.apply(revised).await?;
        }
        Ok(())
    }

    async fn apply(&mut self, mut revised: Vec<RevisionEvents>) -> anyhow::Result<()> {
        let (last, until) = (self.importer.revision(), self.until.unwrap_or(Revision::MAX));
        revised.retain(|revised| revised.revision > last && revised.revision <= until);
        if let Some(writes) = &mut self.client_writes {
            writes.note(&revised);
        }
        leases::grant_named(self.source, &mut self.importer, &revised).await?;
        self.importer.append(revised).await?;
        self.progress.set_revision(self.importer.revision());
        self.revoke_ended().await?;
        if self.log.is_due() {
            let source = self.source.revision().await?;
            self.progress.set_source_revision(source);
            info!(revision = self.importer.revision(), source, "following the source");
        }
        Ok(())
    }

    /// Copies leases and compactions, which no event names.
    async fn keep_up(&mut self) -> anyhow::Result<()> {
        self.importer.refresh();
        self.compact().await?;
        let listed = self.source.lease_ids().await?;
        self.progress.set_source_revision(listed.revision);
        self.progress.set_answered();
        let lag = listed.revision - self.importer.revision();
        self.progress
            .set_following(self.has_reached && lag <= MAX_FOLLOWING_LAG);
        leases::grant_missing(self.source, &mut self.importer, &listed.ids).await?;
        self.listed = Some(listed);
        self.revoke_ended().await
    }

    /// Removes leases that the source had not any more, as soon as the deletions of their keys are applied.
    async fn revoke_ended(&mut self) -> anyhow::Result<()> {
        let revision = self.importer.revision();
        if let Some(listed) = self.listed.take_if(|listed| listed.revision <= revision) {
            self.importer.revoke_others(&listed.ids.into_iter().collect()).await?;
        }
        Ok(())
    }

    /// Compacts to where the source has compacted to. It does not say where that is: the first revision that can be read is searched.
    async fn compact(&mut self) -> anyhow::Result<()> {
        let (mut gone, mut readable) = (self.importer.compacted().max(1), self.importer.revision());
        // A compacted revision can be read itself, those before it cannot.
        if gone >= readable || !self.source.is_compacted(gone).await? {
            return Ok(());
        }
        while readable - gone > 1 {
            let middle = gone + (readable - gone) / 2;
            if self.source.is_compacted(middle).await? {
                gone = middle;
            } else {
                readable = middle;
            }
        }
        self.importer.compact(readable).await
    }

    /// Reaches the source's revision, or the one that was asked for, with the leases that the source has there.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let goal = match self.until {
            Some(until) => until,
            None => self.source.revision().await?,
        };
        self.reach(goal).await?;
        for round in 1.. {
            let before = self.source.lease_ids().await?;
            // Keys of leases that had ended are deleted up to there.
            self.reach(before.revision).await?;
            let found = self.source.lease_times(&before.ids).await?;
            self.importer.set_leases(&found).await?;
            let alive: HashSet<i64> = found.iter().map(|lease| lease.id).collect();
            if self.importer.revision() >= before.revision {
                self.revoke_lost(&alive).await?;
            } else {
                self.importer.revoke_others(&alive).await?;
            }
            let after = self.source.lease_ids().await?;
            let is_still = alive == after.ids.into_iter().collect() && after.revision <= self.importer.revision();
            if is_still || (round >= 2 && self.until.is_some_and(|until| self.importer.revision() >= until)) {
                break;
            }
            if round >= MAX_LEASE_ROUNDS {
                warn!("the source is still written to while its copy is finished");
                break;
            }
        }
        self.compact().await
    }

    /// Removes leases that the source no longer has although it still has keys that name them. Keys that the source deleted together with a
    /// lease are deleted here by now.
    async fn revoke_lost(&mut self, alive: &HashSet<i64>) -> anyhow::Result<()> {
        let others = self.importer.leases().into_keys().filter(|id| !alive.contains(id));
        let others: Vec<i64> = others.collect();
        // Some may have been granted since those that are alive were listed.
        let found = self.source.lease_times(&others).await?;
        let kept = alive
            .iter()
            .copied()
            .chain(found.iter().map(|lease| lease.id))
            .collect();
        self.importer.revoke_all_but(&kept).await
    }

    /// Copies users and roles again, if they have changed since they were copied. Returns what the source said before
    /// of its auth revision.
    async fn copy_users(&mut self, spool: &Spool) -> anyhow::Result<Option<(bool, u64)>> {
        let found = self.source.auth_revision().await?;
        if found.is_some_and(|found| found == self.importer.auth_revision()) {
            return Ok(found);
        }
        info!("users or roles of the source have changed, or were never used: reading them from one more snapshot");
        let file = self.source.snapshot(spool).await?;
        self.importer.set_users(&file).await?;
        Ok(found)
    }

    /// Follows until no client of the source has written for a moment.
    async fn wait_for_writers(&mut self) -> anyhow::Result<()> {
        loop {
            self.look_for_writes();
            tokio::time::sleep(QUIET_TIME).await;
            self.settle().await?;
            if self.first_write().is_none() {
                return Ok(());
            }
        }
    }

    /// Takes note of what clients write from now on.
    pub(super) fn look_for_writes(&mut self) {
        self.client_writes = Some(ClientWrites::new(self.importer.leased_keys()));
    }

    fn first_write(&self) -> Option<Revision> {
        self.client_writes.as_ref().and_then(ClientWrites::first)
    }

    /// Compares all keys with the source, and users, and brings the copy to the source's last revision. Returns the revision that was
    /// compared, and that of the source if the copy lacks the newest ones.
    async fn compare_and_close(
        &mut self,
        options: &CopyOptions,
        spool: &Spool,
    ) -> anyhow::Result<(VersionChecksum, Revision, Option<Revision>)> {
        let mut users = self.copy_users(spool).await?;
        if self.client_writes.is_none() {
            self.look_for_writes();
        }
        let checksum = self.compare().await?;
        let compared = self.importer.revision();
        // Comparing keys takes minutes, and a user who loses a permission during that time must not get it back.
        for _ in 0..MAX_USER_ROUNDS {
            if self.source.auth_revision().await? == users {
                break;
            }
            users = self.copy_users(spool).await?;
        }
        let missed = self.close(options.follows).await?;
        ensure!(
            self.source.auth_revision().await? == users,
            "users or roles of the source keep changing, and the copy's differ: start the same command again when they no longer change"
        );
        Ok((checksum, compared, missed))
    }

    /// Brings a copy that was compared to the last revision of the source, on which leases may still end. Fails if a client of a source
    /// that is followed has written in the last [`QUIET_TIME`], or since the comparison began: it would lose its next writes.
    /// Returns the revision of another source, if the copy lacks the newest ones.
    pub(super) async fn close(&mut self, follows: bool) -> anyhow::Result<Option<Revision>> {
        let looked = self.client_writes.as_ref().map_or(QUIET_TIME, ClientWrites::elapsed);
        if follows && looked < QUIET_TIME {
            tokio::time::sleep(QUIET_TIME - looked).await;
        }
        if follows {
            // Leases are renewed and granted without a revision.
            self.settle().await?;
        }
        for _ in 0..MAX_CLOSING_ROUNDS {
            if let Some(written) = self.first_write().filter(|_| follows) {
                return Err(StillWritten(written).into());
            }
            let (own, newest) = (self.importer.revision(), self.source.revision().await?);
            if self.until.is_some() || newest <= own {
                return Ok(None);
            }
            if !follows {
                warn!(
                    revision = own,
                    source = newest,
                    "the source has newer changes, which are not in the copy"
                );
                return Ok(Some(newest));
            }
            self.settle().await?;
        }
        bail!("leases of the source end faster than the copy can follow: start the same command again")
    }

    /// Compares all keys; continues to a newer revision if the source does not have the copy's any more.
    pub(super) async fn compare(&mut self) -> anyhow::Result<VersionChecksum> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            info!(
                revision = self.importer.revision(),
                "comparing the copy with the source"
            );
            match verify::compare(self.source, &mut self.importer).await {
                Err(error) if error.is::<SourceCompacted>() => {
                    ensure!(
                        attempt < COMPARISON_ATTEMPTS && self.until.is_none(),
                        "the source has compacted the copy's revision {} before all keys were compared: delay its compactions, and start again with the same flags",
                        self.importer.revision()
                    );
                    warn!(error = format!("{error:#}"), "comparing the copy with the source again");
                    self.settle().await?;
                }
                compared => return compared,
            }
        }
    }
}

/// Returns the revisions that come next, as many as there are already. It can be dropped at any time: it is then called again.
pub(crate) async fn next(
    source: &mut Source,
    watch: &mut Option<OpenWatch>,
    last: Revision,
) -> anyhow::Result<Vec<RevisionEvents>> {
    loop {
        let open = match watch {
            Some(open) => open,
            None => {
                source.check_reached(last).await?;
                watch.insert(OpenWatch {
                    watch: source.watch(last + 1).await?,
                    assembler: EventAssembler::new(last),
                    first: Vec::new(),
                    is_whole: false,
                })
            }
        };
        if !open.first.is_empty() {
            if source.is_compacted(last).await? {
                return Err(SourceCompacted(last + 1).into());
            }
            open.is_whole = true;
            let first = std::mem::take(&mut open.first);
            return Ok(with_more(watch, first));
        }
        let failed = match open.watch.responses.message().await {
            Ok(Some(response)) => match open.assembler.take(response) {
                Ok(revised) if revised.is_empty() => {
                    source.answered();
                    continue;
                }
                Ok(revised) => {
                    source.answered();
                    if !open.is_whole {
                        open.first = revised;
                        continue;
                    }
                    return Ok(with_more(watch, revised));
                }
                Err(error) if is_final(&error) => {
                    let may_lack = !open.is_whole && !error.is::<SourceCompacted>();
                    // The next one would end in the same way.
                    *watch = None;
                    if may_lack && source.is_compacted(last).await? {
                        return Err(SourceCompacted(last + 1).into());
                    }
                    return Err(error);
                }
                Err(error) => error,
            },
            Ok(None) => anyhow::anyhow!("the source has ended the watch"),
            Err(status) if is_transient(&status) => in_short(status),
            Err(status) => return Err(in_short(status).context("watch the source")),
        };
        *watch = None;
        source.reconnect(failed).await?;
    }
}

/// Returns true if another watch would end in the same way.
fn is_final(error: &anyhow::Error) -> bool {
    let cancelled: Option<&WatchCancelled> = error.downcast_ref();
    // etcd puts the code of a status before its text.
    cancelled.is_none_or(|WatchCancelled(reason)| reason.ends_with(Error::PermissionDenied.text()))
}

/// Adds what has come already. If the watch has ended, the next one says why.
fn with_more(watch: &mut Option<OpenWatch>, mut revised: Vec<RevisionEvents>) -> Vec<RevisionEvents> {
    let size = |revised: &[RevisionEvents]| -> usize {
        let kvs = revised.iter().flat_map(|revised| &revised.kvs);
        kvs.map(|kv| kv.key.len() + kv.value.len()).sum()
    };
    let mut bytes = size(&revised);
    while let Some(open) = watch
        && bytes < BATCH_BYTES
        && revised.len() < BATCH_REVISIONS
    {
        let Some(received) = open.watch.responses.message().now_or_never() else {
            break;
        };
        let complete = received
            .ok()
            .flatten()
            .and_then(|response| open.assembler.take(response).ok());
        match complete {
            Some(complete) => {
                bytes += size(&complete);
                revised.extend(complete);
            }
            None => *watch = None,
        }
    }
    revised
}
