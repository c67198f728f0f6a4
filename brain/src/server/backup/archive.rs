//! `kubebrain backup archive`: stores what a running store does, all the time.
//!
//! It is a client of the members. It reads from the destination where to begin and where to continue, so it can be killed at any time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{create, describe_created};
use crate::flags::Config;
use crate::server::ports;
use crate::server::run::Lifecycle;
use backup::archive::{Feed, FeedItem};
use backup::import::{Source, SourceCompacted, SourceOptions};
use backup::snapshot::Spool;
use backup_repository::archive::{ArchiveWriter, TakenOver};
use backup_repository::{CreateOptions, EncryptionKey, ObjectError, Repository, shortened};
use etcd_types::types::Revision;
use net::http::page;
use telemetry::metrics::{ArchiveMetrics, Metrics};

/// Bytes of changes after which a segment is stored, before they are compressed.
const SEGMENT_BYTES: usize = 16 << 20;

/// Items of the feed that wait to be taken, each of about 1 MiB at most: so much is read ahead while a segment is stored.
const WAITING_ITEMS: usize = 16;

/// The pause after a failure of the destination.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// The pause after a backup could not be made.
const BACKUP_PAUSE: Duration = Duration::from_secs(30);

/// The time for which the last segment may be stored after a signal.
const GRACE_PERIOD: Duration = Duration::from_secs(8);

/// The source of an archive, and how it is stored.
pub(super) struct ArchiveOptions {
    pub(super) source: SourceOptions,
    /// The time after which changes are stored.
    pub(super) interval: Duration,
    pub(super) key: Option<EncryptionKey>,
}

/// Archives until a signal comes. Returns a line that describes the end.
pub(super) async fn run(
    config: &Config,
    repository: &Repository,
    options: &ArchiveOptions,
    life: &mut Lifecycle,
) -> anyhow::Result<String> {
    let metrics = Arc::new(ArchiveMetrics::default());
    if !config.listen_metrics_urls.is_empty() {
        let server = ports::bind_metrics(config)?;
        info!(urls = server.bound()?.join(","), "serving metrics");
        let failing = {
            let (metrics, last) = (metrics.clone(), repository.last_failure());
            move || metrics.failing(last.get())
        };
        let (rendered, asked) = (metrics.clone(), failing.clone());
        let routes = page::routes(Arc::new(move || {
            asked();
            rendered.render()
        }));
        let routes = routes.merge(page::readiness(Arc::new(failing)));
        server.start_http(routes, &Metrics::new(false), &life.stop, &mut life.tasks);
    }
    let leave = life.leave.clone();
    let cut_off = async {
        leave.cancelled().await;
        tokio::time::sleep(GRACE_PERIOD).await;
    };
    tokio::select! {
        biased;
        archived = Box::pin(archive(repository, options, &metrics, &leave)) => archived,
        () = cut_off => Err(anyhow::anyhow!("interrupted: the last changes are not stored; the same command continues")),
    }
}

async fn archive(
    repository: &Repository,
    options: &ArchiveOptions,
    metrics: &ArchiveMetrics,
    leave: &CancellationToken,
) -> anyhow::Result<String> {
    let mut source = tokio::select! {
        biased;
        () = leave.cancelled() => anyhow::bail!("interrupted"),
        source = Source::open(options.source.clone()) => source?.for_archive(),
    };
    let cluster = format!("{:x}", source.cluster_id());
    let mut archive = loop {
        let begun = tokio::select! {
            biased;
            () = leave.cancelled() => anyhow::bail!("interrupted"),
            begun = Archive::begin(&mut source, &cluster, (repository, options, metrics)) => begun,
        };
        match begun {
            Ok(archive) => break archive,
            // Another process would begin with the same requests, and only minutes later.
            Err(failure) if is_of_destination(&failure) => {
                let paused = pause(metrics, &failure, "cannot begin to archive");
                tokio::select! {
                    () = leave.cancelled() => {}
                    () = paused => {}
                }
            }
            Err(failure) => return Err(failure),
        }
    };
    metrics.set_store_failure(None);
    loop {
        let after = archive.writer.last();
        info!(
            cluster = archive.cluster,
            after, "archiving the changes after a revision"
        );
        match Box::pin(archive.follow(&source, leave)).await {
            Ok(()) => break,
            Err(error) if error.is::<SourceCompacted>() => archive.lost(&mut source, &error).await?,
            Err(error) => return Err(error),
        }
    }
    let (cluster, revision) = (&archive.cluster, archive.writer.stored());
    Ok(format!("archived the cluster {cluster} up to revision {revision}\n"))
}

/// Returns true if it may end without another process or another command.
fn is_of_destination(failure: &anyhow::Error) -> bool {
    let object = failure.downcast_ref::<ObjectError>();
    object.is_some_and(|error| matches!(error, ObjectError::Store { .. } | ObjectError::NoDestination { .. }))
}

/// Reports a failure of the destination, and waits.
async fn pause(metrics: &ArchiveMetrics, failure: &anyhow::Error, what: &str) {
    metrics.failures.inc();
    let error = shortened(&format!("{failure:#}"));
    metrics.set_store_failure(Some(error.clone()));
    error!(error, again_in = ?FAILURE_PAUSE, "{what}");
    tokio::time::sleep(FAILURE_PAUSE).await;
}

/// The next thing to do.
enum NextStep {
    Leave,
    Store,
    Take(FeedItem),
    /// The feed has ended, and all that it has sent is taken.
    End,
    BackedUp(anyhow::Result<()>),
    StoreTime,
}

/// Returns at a time, or never.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// A feed that is read ahead while something else is done.
struct RunningFeed<F> {
    feed: Pin<Box<F>>,
    ended: Option<anyhow::Result<()>>,
}

impl<F: Future<Output = anyhow::Result<()>>> RunningFeed<F> {
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                ended = &mut self.feed, if self.ended.is_none() => self.ended = Some(ended),
            }
        }
    }

    /// Returns the reason why it has ended.
    fn reason(self) -> anyhow::Error {
        let ended = self.ended.and_then(Result::err);
        ended.unwrap_or_else(|| anyhow::anyhow!("the feed of changes has ended"))
    }
}

struct Archive<'a> {
    repository: &'a Repository,
    options: &'a ArchiveOptions,
    metrics: &'a ArchiveMetrics,
    cluster: String,
    writer: ArchiveWriter,
    /// The revision before the first one of the newest span: a backup must be of this one or of a later one. `None` while there is no span.
    begin: Option<Revision>,
}

impl<'a> Archive<'a> {
    /// Continues the archive of a cluster, or begins one.
    async fn begin(
        source: &mut Source,
        cluster: &str,
        (repository, options, metrics): (&'a Repository, &'a ArchiveOptions, &'a ArchiveMetrics),
    ) -> anyhow::Result<Self> {
        let stored = repository.archive(cluster).await?;
        let newest = stored.spans().pop();
        if let Some(span) = &newest {
            // Before another process is ended that archives the same cluster.
            let revision = source.revision().await?;
            ensure!(
                revision >= span.last,
                "the store is at revision {revision}, and the archive has revision {} of a store with the same cluster id, {cluster}: the \
                 store was restored from a copy, or its data was replaced; choose another destination",
                span.last
            );
        }
        // Nothing fails after another process was ended, which would be ended again by the next attempt.
        let begins_after = match &newest {
            Some(_) => None,
            None => Some(first_of_span(repository, cluster, source, 0).await?),
        };
        let writer = ArchiveWriter::resume(repository, &stored, newest.as_ref(), options.key.clone()).await?;
        let mut archive = Self {
            repository,
            options,
            metrics,
            cluster: cluster.to_owned(),
            writer,
            begin: newest.as_ref().map(|span| span.first - 1),
        };
        if let Some(after) = begins_after {
            archive.begin_after(after);
        }
        Ok(archive)
    }

    /// Begins a span after a revision.
    fn begin_after(&mut self, after: Revision) {
        self.writer.begin_after(after);
        self.begin = Some(after);
    }

    /// Begins anew because the source has deleted the revisions that come next.
    async fn lost(&mut self, source: &mut Source, reason: &anyhow::Error) -> anyhow::Result<()> {
        // Changes that have arrived come before them.
        self.store().await?;
        let (last, is_begun) = (self.writer.last(), self.writer.is_continued());
        let after = first_of_span(self.repository, &self.cluster, source, last).await?;
        self.begin_after(after);
        if is_begun {
            self.metrics.gaps.inc();
            error!(
                cluster = self.cluster,
                from = last + 1,
                to = after,
                reason = format!("{reason:#}"),
                "the archive has a gap: these revisions were compacted before they were archived, and cannot be restored"
            );
        } else {
            warn!(
                cluster = self.cluster,
                after,
                reason = format!("{reason:#}"),
                "the archive cannot begin after the newest backup"
            );
        }
        Ok(())
    }

    /// Stores what happens until a signal comes. Fails with [`SourceCompacted`] if the source has deleted what comes next.
    async fn follow(&mut self, source: &Source, leave: &CancellationToken) -> anyhow::Result<()> {
        let (items, mut arriving) = mpsc::channel(WAITING_ITEMS);
        let feed = Feed::open(source, self.writer.last()).await?;
        let mut feed = RunningFeed {
            feed: Box::pin(feed.run(items)),
            ended: None,
        };
        let backup = make_backup(
            self.repository,
            self.options,
            self.metrics,
            (self.cluster.clone(), self.begin),
        );
        let mut backup = std::pin::pin!(backup);
        let mut idle = tokio::time::interval(self.options.interval);
        idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut due, mut is_backed_up) = (None, false);
        loop {
            self.observe();
            let is_idle = self.writer.pending_bytes() == 0;
            let next = async {
                tokio::select! {
                    biased;
                    () = leave.cancelled() => NextStep::Leave,
                    () = until(due) => NextStep::Store,
                    item = arriving.recv() => item.map_or(NextStep::End, NextStep::Take),
                    made = &mut backup, if !is_backed_up => NextStep::BackedUp(made),
                    _ = idle.tick(), if is_idle => NextStep::StoreTime,
                }
            };
            match feed.during(next).await {
                NextStep::Leave => {
                    feed.during(self.store()).await?;
                    feed.during(self.store_time()).await?;
                    return Ok(());
                }
                NextStep::Store => {
                    feed.during(self.store()).await?;
                    due = None;
                }
                NextStep::Take(item) => {
                    self.take(item)?;
                    if self.writer.pending_bytes() >= SEGMENT_BYTES {
                        feed.during(self.store()).await?;
                        due = None;
                    } else if self.writer.pending_bytes() > 0 {
                        due = due.or(Some(Instant::now() + self.options.interval));
                    }
                }
                NextStep::End => {
                    self.store().await?;
                    return Err(feed.reason());
                }
                NextStep::BackedUp(made) => {
                    made?;
                    is_backed_up = true;
                }
                NextStep::StoreTime => feed.during(self.store_time()).await?,
            }
        }
    }

    fn take(&mut self, item: FeedItem) -> anyhow::Result<()> {
        match item {
            FeedItem::Revisions {
                first,
                last,
                content,
                received,
            } => self.writer.arrived(first, last, &content, received.into()),
            FeedItem::Current(time) => {
                self.writer.confirm(time.into());
                Ok(())
            }
        }
    }

    /// Stores what has arrived, however often that fails. Fails if another process has taken over.
    async fn store(&mut self) -> anyhow::Result<()> {
        loop {
            match self.writer.store().await {
                Ok(stored) => {
                    if let Some((_, bytes)) = stored {
                        self.metrics.segments.inc();
                        self.metrics.bytes.inc_by(bytes);
                        self.metrics.set_store_failure(None);
                    }
                    break;
                }
                Err(failure) if failure.is::<TakenOver>() => return Err(failure),
                Err(failure) => self.pause(&failure).await,
            }
        }
        self.observe();
        Ok(())
    }

    /// Stores the time up to which nothing has happened.
    async fn store_time(&mut self) -> anyhow::Result<()> {
        match self.writer.store_time().await {
            Err(failure) if failure.is::<TakenOver>() => Err(failure),
            Err(failure) => {
                self.pause(&failure).await;
                Ok(())
            }
            Ok(()) => {
                self.metrics.set_store_failure(None);
                Ok(())
            }
        }
    }

    async fn pause(&self, failure: &anyhow::Error) {
        self.observe();
        let what = "cannot store the archive: changes wait, and are lost if the members compact them before";
        pause(self.metrics, failure, what).await;
    }

    fn observe(&self) {
        self.metrics.last_revision.set(self.writer.stored());
        self.metrics.set_stored_until(self.writer.stored_until());
    }
}

/// Returns the revision that a new span begins after: that of the newest backup of the cluster that can be read, if it is later than what is
/// archived, or else that of the source.
async fn first_of_span(
    repository: &Repository,
    cluster: &str,
    source: &mut Source,
    archived: Revision,
) -> anyhow::Result<Revision> {
    let backups = repository.backups().await?.into_iter();
    let readable = backups.filter_map(|(_, manifest)| manifest.ok());
    let own = readable.filter(|manifest| manifest.cluster_id == cluster);
    match own
        .map(|manifest| manifest.revision)
        .max()
        .filter(|newest| *newest > archived)
    {
        Some(newest) => Ok(newest),
        None => source.revision().await,
    }
}

/// Makes a backup if there is none that the newest span can be added to; `begin` is the revision before that span.
async fn make_backup(
    repository: &Repository,
    options: &ArchiveOptions,
    metrics: &ArchiveMetrics,
    (cluster, begin): (String, Option<Revision>),
) -> anyhow::Result<()> {
    let begin = begin.context("the archive has not begun")?;
    loop {
        let made = async {
            for (_, manifest) in repository.backups().await? {
                if manifest.is_ok_and(|manifest| manifest.cluster_id == cluster && manifest.revision >= begin) {
                    return anyhow::Ok(true);
                }
            }
            info!(cluster, "making a backup, which the archive begins with");
            let made = CreateOptions::new(options.key.clone(), Spool::new(&std::env::temp_dir()));
            let manifest = create(repository, &options.source, &made).await?;
            info!("{}", describe_created(&manifest).trim_end());
            // A member that is behind has sent an older one.
            Ok(manifest.revision >= begin)
        };
        match made.await {
            Ok(true) => {
                metrics.set_backup_failure(None);
                return Ok(());
            }
            Ok(false) => {}
            Err(failure) => {
                metrics.failures.inc();
                let error = shortened(&format!("{failure:#}"));
                metrics.set_backup_failure(Some(error.clone()));
                error!(
                    error,
                    again_in = ?BACKUP_PAUSE,
                    "cannot make the backup that the archive begins with: without it nothing can be restored"
                );
            }
        }
        tokio::time::sleep(BACKUP_PAUSE).await;
    }
}
