//! `backup restore`: a new cluster that begins with a backup.
//!
//! The operator restores it, as `spec.bootstrap` asks for: nothing that exists is changed.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use crds::cluster::bootstrap::{Bootstrap, FromBackup};
use crds::cluster::image::LocalRef;
use crds::{KubeBrainBackup, KubeBrainCluster};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use plan::backup::{BackupTarget, location};
use plan::bootstrap::{BackupSource, CONDITION};
use tokio::time::Instant;

use super::list::phase;
use super::template::{Given, Template, check_apart, copy, own_metadata};
use crate::connect::{FIELD_MANAGER, TargetNamespace};
use crate::requests::agreed;
use crate::rollout::condition;
use crate::wait::{ConditionState, watch};

/// The cluster that `backup restore` makes.
#[derive(Debug, Args)]
pub(crate) struct RestoreOptions {
    /// Name of the KubeBrainBackup
    pub(super) backup: String,
    /// Name of the new KubeBrainCluster
    #[arg(long, value_name = "CLUSTER")]
    pub(super) to: String,
    /// Restore this revision, with the changes in the archive after the backup; default: the backup alone
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..), group = "point")]
    pub(super) revision: Option<i64>,
    /// Restore up to this time, such as 2026-11-29T16:45:00Z, with the changes in the archive after the backup
    #[arg(long, value_name = "RFC3339", group = "point")]
    pub(super) time: Option<Timestamp>,
    /// Restore all changes in the archive after the backup
    #[arg(long, group = "point")]
    pub(super) end: bool,
    /// KubeBrainCluster whose spec is used; default: the one that the backup is of
    #[arg(long, value_name = "CLUSTER", conflicts_with = "file")]
    pub(super) like: Option<String>,
    /// YAML file with a KubeBrainCluster whose spec is used, or - for standard input; all of it if it has the name of the new cluster
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Prefix of the new cluster's keys in TiKV; required if the other cluster does not have the default one
    #[arg(long)]
    pub(super) prefix: Option<String>,
    /// Number of members; default: that of the other cluster
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=64))]
    pub(super) replicas: Option<i32>,
    /// Print the new cluster as YAML, and create nothing
    #[arg(long, conflicts_with = "wait")]
    pub(super) dry_run: bool,
    /// Wait until the new cluster is Ready; the exit code is 1 if the restore fails
    #[arg(long)]
    pub(super) wait: bool,
    /// Maximum time to wait
    #[arg(long, default_value = "1h", value_parser = crate::duration, requires = "wait")]
    pub(super) timeout: Duration,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(super) yes: bool,
}

/// Creates the cluster, or prints it. Notes on its spec go to `notes`.
///
/// # Errors
/// The backup or the spec cannot be used, the cluster exists, the user does not confirm, the API server refused or did not answer, or the
/// restore fails while it is waited for.
pub(super) async fn run(
    target: &TargetNamespace,
    options: &RestoreOptions,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> anyhow::Result<()> {
    let name = &options.to;
    let draft = Box::pin(draft(target, options)).await?;
    for note in &draft.notes {
        writeln!(notes, "{note}")?;
    }
    if options.dry_run {
        let text = serde_yaml::to_string(&serde_json::to_value(&draft.cluster)?)?;
        write!(out, "{text}")?;
        return Ok(());
    }
    writeln!(
        out,
        "This creates KubeBrainCluster {name}, which begins with {}.",
        draft.source
    )?;
    if !options.yes && !agreed(&format!("Create {name}?"), out)? {
        anyhow::bail!("nothing was created");
    }
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let created = target.clusters().create(&params, &draft.cluster).await;
    created.map_err(|error| match error {
        kube::Error::Api(status) if status.is_already_exists() => exists(name),
        error => target.explain(error, "create", &format!("KubeBrainCluster {name}")),
    })?;
    writeln!(
        out,
        "created KubeBrainCluster {name}; to see its state: kubectl kubebrain status {name}"
    )?;
    if options.wait {
        let deadline = Instant::now() + options.timeout;
        return watch(target, name, deadline, out, |cluster| judge(cluster, name)).await;
    }
    Ok(())
}

/// The new cluster before it is created.
struct Draft {
    cluster: KubeBrainCluster,
    /// The backup and the point, in words.
    source: String,
    /// Remarks on the spec for the user, one line each.
    notes: Vec<String>,
}

async fn draft(target: &TargetNamespace, options: &RestoreOptions) -> anyhow::Result<Draft> {
    let backup: KubeBrainBackup = target.read(&options.backup).await?;
    let point = point(options, &backup)?;
    let found = find(target, &options.to).await?;
    if found.is_some() {
        return Err(exists(&options.to));
    }
    let origin = find(target, &backup.spec.cluster_name).await?;
    let template = template(target, options, (&backup, origin.as_ref())).await?;
    let given = Given {
        name: &options.to,
        key_prefix: options.prefix.as_deref(),
        replicas: options.replicas,
    };
    let mut copied = copy(&template, &given)?;
    let source = FromBackup {
        backup: Some(LocalRef {
            name: options.backup.clone(),
        }),
        revision: options.revision,
        time: options.time.map(|time| time.to_string()),
        end: options.end.then_some(true),
        ..FromBackup::default()
    };
    copied.spec.bootstrap = Some(Box::new(Bootstrap {
        from_backup: Some(source),
        ..Bootstrap::default()
    }));
    let mut notes = copied.notes;
    notes.extend(archive_note(options, &backup, origin.as_ref()));
    let mut cluster = KubeBrainCluster::new(&options.to, copied.spec);
    cluster.metadata.namespace = Some(target.namespace.clone());
    if template.is_own {
        cluster.metadata.labels = own_metadata(template.cluster.labels());
        cluster.metadata.annotations = own_metadata(template.cluster.annotations());
    }
    let live = template.is_live.then_some(&template.cluster);
    for other in live.into_iter().chain(origin.as_ref()) {
        check_apart(&cluster, other)?;
    }
    Ok(Draft {
        cluster,
        source: format!("{point} at {}", location(&backup)),
        notes,
    })
}

/// Checks the backup, and describes it and the point for the user.
fn point(options: &RestoreOptions, backup: &KubeBrainBackup) -> anyhow::Result<String> {
    let name = &options.backup;
    if !plan::backup::is_complete(backup) {
        anyhow::bail!("KubeBrainBackup {name} is not complete: its phase is {}", phase(backup));
    }
    BackupSource::of_backup(name, Some(backup)).map_err(|obstacle| anyhow::anyhow!("{}", obstacle.message))?;
    let of = backup.status.as_ref().and_then(|status| status.revision);
    if let (Some(wanted), Some(of)) = (options.revision, of)
        && wanted < of
    {
        anyhow::bail!(
            "KubeBrainBackup {name} is of revision {of}, which is later than {wanted}: choose an earlier backup"
        );
    }
    let at = of.map_or_else(String::new, |of| format!(" of revision {of}"));
    let cluster = &backup.spec.cluster_name;
    let more = match (options.revision, options.time, options.end) {
        (Some(revision), ..) => format!(", up to revision {revision},"),
        (None, Some(time), _) => format!(", up to {time},"),
        (None, None, true) => ", up to the end of the archive,".to_owned(),
        (None, None, false) => String::new(),
    };
    Ok(format!("the backup {name}{at} of {cluster}{more}"))
}

/// Returns a note if a point after the backup is wanted, but the cluster has no archive at the place of the backup.
fn archive_note(
    options: &RestoreOptions,
    backup: &KubeBrainBackup,
    origin: Option<&KubeBrainCluster>,
) -> Option<String> {
    let of = backup.status.as_ref().and_then(|status| status.revision);
    let is_later =
        options.end || options.time.is_some() || options.revision.is_some_and(|revision| Some(revision) != of);
    let origin = origin.filter(|_| is_later)?;
    let configured = origin.spec.backup.as_ref();
    let archived = configured.filter(|configured| configured.archive.is_some());
    let place = location(backup);
    let made = BackupTarget::from(backup);
    if archived.is_some_and(|archived| BackupTarget::from(archived).is_same_place(&made)) {
        return None;
    }
    let name = origin.name_any();
    Some(format!(
        "{name} has no archive at {place}: without one that was made earlier, the restore fails"
    ))
}

async fn find(target: &TargetNamespace, name: &str) -> anyhow::Result<Option<KubeBrainCluster>> {
    let found = target.clusters().get_opt(name).await;
    found.map_err(|error| target.explain(error, "get", &format!("KubeBrainCluster {name}")))
}

async fn template(
    target: &TargetNamespace,
    options: &RestoreOptions,
    (backup, origin): (&KubeBrainBackup, Option<&KubeBrainCluster>),
) -> anyhow::Result<Template> {
    if let Some(path) = &options.file {
        let mut template = Template::of_file(path, &options.to)?;
        if let Some(other) = template
            .cluster
            .namespace()
            .filter(|of| template.is_own && *of != target.namespace)
        {
            let here = &target.namespace;
            anyhow::bail!(
                "{}: the cluster is of the namespace {other}, and the backup of {here}",
                path.display()
            );
        }
        if let Some(found) = find(target, &template.cluster.name_any()).await? {
            template.is_live = true;
            // Its prefix may be pinned there.
            template.cluster.status = found.status;
        }
        return Ok(template);
    }
    let cluster = match &options.like {
        Some(like) => target.get(like).await?,
        None => origin.cloned().with_context(|| {
            let (name, cluster) = (&options.backup, &backup.spec.cluster_name);
            format!("KubeBrainCluster {cluster}, which the backup {name} is of, does not exist: choose the spec with --like or -f")
        })?,
    };
    Ok(Template {
        cluster,
        is_own: false,
        is_live: true,
    })
}

fn exists(name: &str) -> anyhow::Error {
    anyhow::anyhow!("KubeBrainCluster {name} exists already: a backup is restored only into a new one")
}

/// Returns the state of a cluster that begins with a backup.
fn judge(cluster: &KubeBrainCluster, name: &str) -> ConditionState {
    let is = |type_: &str, status: &str| condition(cluster, type_).filter(|found| found.status == status);
    if cluster.spec.paused {
        return ConditionState::Failed(format!(
            "{name} is paused: it is not restored before kubectl kubebrain resume {name}"
        ));
    }
    if let Some(stalled) = is("Stalled", "True") {
        return ConditionState::Failed(format!("{}: {}", stalled.reason, stalled.message));
    }
    if let Some(stored) = is(CONDITION, "True").filter(|found| found.reason == "AlreadyStored") {
        return ConditionState::Failed(format!(
            "{name} serves an older store, and nothing was restored into it now: {}",
            stored.message
        ));
    }
    if is("Ready", "True").is_some() {
        let restored = condition(cluster, CONDITION).map(|found| format!(": {}", found.message));
        return ConditionState::Done(format!("{name} is ready{}", restored.unwrap_or_default()));
    }
    let unfinished = is(CONDITION, "False").or_else(|| condition(cluster, "Ready"));
    ConditionState::NotYet(match unfinished {
        Some(found) => format!("{}: {}", found.reason, found.message),
        None => "waiting for the operator".to_owned(),
    })
}
