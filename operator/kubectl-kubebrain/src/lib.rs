//! `kubectl kubebrain`: queries about a cluster and requests to its operator.
//!
//! It talks only to the API server, with the rights of its user. It changes nothing else itself: a request is an annotation or a field of
//! the cluster, a backup, or a cluster that begins with one, which the operator acts on. It plans with the operator's own planner, the crate `plan`, and must never depend on the
//! operator itself.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum};

mod backup;
mod bundle;
mod connect;
mod cutover;
mod list;
mod logs;
mod members;
mod observe;
mod pods;
mod report;
mod requests;
mod rollout;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod wait;

use connect::{ConnectionOptions, TargetNamespace};

/// Inspect KubeBrainClusters and send requests to their operator.
#[derive(Debug, Parser)]
#[command(name = "kubectl-kubebrain", bin_name = "kubectl kubebrain", version)]
struct Arguments {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show members, leader, lock, storage, certificates and conditions of a cluster
    ///
    /// The lag of a member is queried from the members themselves, which requires the right to get pods/proxy. Everything else is the
    /// status that the operator wrote.
    ///
    /// Requires the right to get clusters, or to list them without a name, and to get leases for the holder of a Lease.
    Status {
        /// Name of the KubeBrainCluster; all are listed if not given
        #[arg(conflicts_with = "all_namespaces")]
        name: Option<String>,
        /// List the clusters of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show the next steps of the operator and what further ones wait for; nothing is written
    ///
    /// Requires the right to list all objects that the operator creates, including Secrets. Members are queried through the API server,
    /// which requires the right to get pods/proxy; without it, their state is taken from the status.
    Plan {
        /// Name of the KubeBrainCluster
        name: String,
        #[command(flatten)]
        flags: report::OperatorFlags,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Transfer leadership to another member
    ///
    /// Sets the annotation kubebrain.io/transfer-leader and waits until another member leads. A cluster in a roll-out hands over after it.
    /// The operator handles the annotation once, so GitOps tools neither revert nor repeat the transfer.
    ///
    /// Requires the right to get, list, watch and patch clusters.
    TransferLeader {
        /// Name of the KubeBrainCluster
        name: String,
        /// Pod of the next leader; any ready member if not given
        #[arg(long, value_name = "POD")]
        to: Option<String>,
        /// Do not wait until another member leads
        #[arg(long)]
        no_wait: bool,
        /// Maximum time to wait
        #[arg(long, default_value = "2m", value_parser = duration)]
        timeout: Duration,
    },
    /// Restart the members one by one, the leader last
    ///
    /// Sets the annotation kubebrain.io/restart. The cluster's manifest in git stays unchanged, so self-healing neither reverts nor repeats
    /// the restart. Fails if the operator does not accept the request.
    ///
    /// Requires the right to get, list, watch and patch clusters.
    Restart {
        /// Name of the KubeBrainCluster
        name: String,
        /// Do not wait until the operator has accepted the request
        #[arg(long)]
        no_wait: bool,
        /// Maximum time to wait for that
        #[arg(long, default_value = "1m", value_parser = duration)]
        timeout: Duration,
    },
    /// End the copy of an etcd that a cluster begins with, so that its members start
    ///
    /// Sets the annotation kubebrain.io/cutover. The copy is brought to the last revision of the etcd and compared with it. Stop the clients
    /// that write there first: as long as they do, the copy fails and is tried again, and what they write after its end is not copied. Fails
    /// unless spec.bootstrap.fromEtcd is set and the copy follows.
    ///
    /// Requires the right to get and patch clusters, and with --wait to list and watch them.
    Cutover {
        /// Name of the KubeBrainCluster
        name: String,
        /// Wait until the copy has ended; the exit code is 1 if it fails
        #[arg(long)]
        wait: bool,
        /// Maximum time to wait
        #[arg(long, default_value = "10m", value_parser = duration, requires = "wait")]
        timeout: Duration,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Replace the key of the certificate authority, in phases
    ///
    /// Raises spec.tls.caGeneration by one. If the cluster is managed in git, raise it there instead, or the change is reverted.
    ///
    /// Requires the right to get and patch clusters.
    RotateCa {
        /// Name of the KubeBrainCluster
        name: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Stop changes to a cluster; certificates are still renewed
    ///
    /// Sets spec.paused. If the cluster is managed in git, set it there instead, or the change is reverted.
    ///
    /// Requires the right to get and patch clusters.
    Pause {
        /// Name of the KubeBrainCluster
        name: String,
    },
    /// Resume changes to a cluster
    ///
    /// Sets spec.paused to false, with the rights of pause.
    Resume {
        /// Name of the KubeBrainCluster
        name: String,
    },
    /// Make, verify, restore and list backups
    Backup {
        #[command(subcommand)]
        command: backup::BackupCommand,
    },
    /// Print the logs of a cluster's members, merged, each line after the name of its pod
    ///
    /// The exit code is 1 if a log could not be read.
    ///
    /// Requires the right to get clusters, to list pods and to get pods/log. With --all, it also requires the right to list backups, and the
    /// rights to pods in the namespace of the operator, whose logs are about all of its clusters.
    Logs(logs::LogOptions),
    /// Write a file about a cluster for those who help with it
    ///
    /// The file has the cluster, its backups and schedules, the objects that the operator owns and how it would write them, pods, claims, Events,
    /// versions, the plan, metrics, and logs of members and helpers. With --operator-logs it also has logs and metrics of the operator, which
    /// name other clusters that it manages. It has no values of the store, and of Secrets and ConfigMaps only the names of keys. Variables,
    /// arguments of other containers and annotations of other tools are replaced by REDACTED, and so are values of the namespace's Secrets with
    /// at least 8 characters, wherever they occur. If not all Secrets can be read, logs of containers that are not KubeBrain's are left out.
    /// Names of objects and hosts remain, and keys of slow requests in logs: look through it before you pass it on.
    ///
    /// Requires the right to get clusters. Other parts that the user may not read are missing, and index.txt in the file says so. For all of
    /// it, the rights of plan and of logs --all are required, and those to list Secrets, Jobs, Deployments and Events.
    SupportBundle(bundle::BundleOptions),
    /// Wait for a condition
    Wait {
        #[command(subcommand)]
        what: AwaitedState,
    },
}

#[derive(Debug, Subcommand)]
enum AwaitedState {
    /// Wait until every member matches the spec and is ready; fails if only a change of the spec helps
    ///
    /// The exit code is 1 if the newest spec cannot be rolled out, or is not in time. Requires the right to get, list and watch clusters.
    Rollout {
        /// Name of the KubeBrainCluster
        name: String,
        /// Maximum time to wait
        #[arg(long, default_value = "10m", value_parser = duration)]
        timeout: Duration,
    },
}

/// Output format of a result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// For humans
    #[default]
    Table,
    /// For programs
    Json,
}

fn duration(text: &str) -> Result<Duration, crds::duration::Error> {
    crds::duration::parse(text)
}

/// Returns the command line.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs `kubectl-kubebrain` with the arguments of this process.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let done = start(arguments);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider was installed first");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        let target = TargetNamespace::connect(&arguments.connection).await?;
        let mut out = std::io::stdout();
        Box::pin(execute(&target, arguments.command, &mut out)).await
    })
}

/// Runs one command and writes its output to `out`.
async fn execute(target: &TargetNamespace, command: Command, out: &mut impl Write) -> anyhow::Result<()> {
    match command {
        Command::Status {
            name: None,
            all_namespaces,
            output,
        } => {
            let list = list::view(target, all_namespaces).await?;
            match output {
                OutputFormat::Table => write!(out, "{}", list::table_of(&list, all_namespaces))?,
                OutputFormat::Json => json(out, &list)?,
            }
        }
        Command::Status {
            name: Some(name),
            output,
            ..
        } => {
            let view = status::view(target, &name).await?;
            match output {
                OutputFormat::Table => write!(out, "{}", view.table(k8s_openapi::jiff::Timestamp::now()))?,
                OutputFormat::Json => json(out, &view)?,
            }
        }
        Command::Plan { name, flags, output } => {
            let report = Box::pin(report::report(target, &name, &flags)).await?;
            match output {
                OutputFormat::Table => write!(out, "{report}")?,
                OutputFormat::Json => json(out, &report)?,
            }
        }
        Command::TransferLeader {
            name,
            to,
            no_wait,
            timeout,
        } => {
            let wish = requests::transfer_leader(target, &name, to.as_deref(), out).await?;
            if !no_wait {
                Box::pin(rollout::until_transferred(target, (&name, &wish), timeout, out)).await?;
            }
        }
        Command::Restart { name, no_wait, timeout } => {
            let wish = requests::restart(target, &name, out).await?;
            if !no_wait {
                rollout::until_restart_is_taken(target, (&name, &wish), timeout, out).await?;
            }
        }
        Command::Cutover {
            name,
            wait,
            timeout,
            yes,
        } => {
            cutover::request(target, &name, yes, out).await?;
            if wait {
                cutover::until_complete(target, &name, timeout, out).await?;
            }
        }
        Command::RotateCa { name, yes } => requests::rotate_ca(target, &name, yes, out).await?,
        Command::Pause { name } => requests::pause(target, &name, true, out).await?,
        Command::Resume { name } => requests::pause(target, &name, false, out).await?,
        Command::Backup { command } => Box::pin(backup::execute(target, command, out)).await?,
        Command::Logs(options) => Box::pin(logs::print(target, &options, out)).await?,
        Command::SupportBundle(options) => Box::pin(bundle::write(target, &options, out)).await?,
        Command::Wait {
            what: AwaitedState::Rollout { name, timeout },
        } => rollout::until_complete(target, &name, timeout, out).await?,
    }
    Ok(())
}

fn json(out: &mut impl Write, value: &impl serde::Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}
