//! `kubectl kubebrain`: what a person asks of a cluster and of its operator.
//!
//! It talks to the API server alone, with the rights of whoever calls it. It does nothing itself: what shall be done is an annotation
//! or a field of the cluster, which the operator acts on.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};

mod connect;
mod list;
mod look;
mod members;
mod plan;
mod rollout;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod wishes;

use connect::{Connection, Target};

/// Looks at KubeBrainClusters and asks their operator for something.
#[derive(Debug, Parser)]
#[command(name = "kubectl-kubebrain", bin_name = "kubectl kubebrain", version)]
struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show members, leader, storage, certificates and conditions of a cluster
    ///
    /// How far a member is behind is asked of the members themselves, which takes the right to get pods/proxy. All else is the
    /// status that the operator wrote.
    Status {
        /// Name of the KubeBrainCluster; all are listed if not given
        #[arg(conflicts_with = "all_namespaces")]
        name: Option<String>,
        /// List those of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Show what the operator would do next and what that waits for; nothing is written
    ///
    /// Takes the right to list everything that the operator makes, Secrets among it. Members are asked through the API server,
    /// which takes the right to get pods/proxy; without it, what the status says of them is taken.
    Plan {
        /// Name of the KubeBrainCluster
        name: String,
        #[command(flatten)]
        flags: plan::OperatorFlags,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Output,
    },
    /// Have another member lead
    ///
    /// Sets the annotation kubebrain.io/transfer-leader and waits until another member leads. A cluster that is being rolled out
    /// hands over afterwards.
    TransferLeader {
        /// Name of the KubeBrainCluster
        name: String,
        /// Pod of the member that shall lead; any that is ready if not given
        #[arg(long, value_name = "POD")]
        to: Option<String>,
        /// Do not wait until another member leads
        #[arg(long)]
        no_wait: bool,
        /// How long to wait
        #[arg(long, default_value = "2m", value_parser = duration)]
        timeout: Duration,
    },
    /// Restart the members one by one, the leader last
    ///
    /// Sets the annotation kubebrain.io/restart. What git says of the cluster stays as it is, so that self-healing undoes and
    /// repeats nothing.
    Restart {
        /// Name of the KubeBrainCluster
        name: String,
        /// Do not wait until the operator has taken the wish
        #[arg(long)]
        no_wait: bool,
        /// How long to wait for that
        #[arg(long, default_value = "1m", value_parser = duration)]
        timeout: Duration,
    },
    /// Have the key of the certificate authority replaced, in phases
    ///
    /// Raises spec.tls.caGeneration by one. Where git holds the cluster, raise it there instead: it would be taken back here.
    RotateCa {
        /// Name of the KubeBrainCluster
        name: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Stop changes to a cluster; certificates are still renewed
    Pause {
        /// Name of the KubeBrainCluster
        name: String,
    },
    /// Let changes to a cluster go on
    Resume {
        /// Name of the KubeBrainCluster
        name: String,
    },
    /// Wait for something
    Wait {
        #[command(subcommand)]
        what: Awaited,
    },
}

#[derive(Debug, Subcommand)]
enum Awaited {
    /// Wait until every member is as the spec wants it, and ready; fails where only a change of the spec helps
    Rollout {
        /// Name of the KubeBrainCluster
        name: String,
        /// How long to wait
        #[arg(long, default_value = "10m", value_parser = duration)]
        timeout: Duration,
    },
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

fn duration(text: &str) -> Result<Duration, crds::duration::Error> {
    crds::duration::parse(text)
}

/// The program `kubectl-kubebrain`, with the arguments of this process.
#[must_use]
pub fn run_plugin() -> ExitCode {
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
        let target = Target::connect(&arguments.connection).await?;
        let mut out = std::io::stdout();
        Box::pin(run(&target, arguments.command, &mut out)).await
    })
}

/// One command; what it says goes to `out`.
async fn run(target: &Target, command: Command, out: &mut impl Write) -> anyhow::Result<()> {
    match command {
        Command::Status {
            name: None,
            all_namespaces,
            output,
        } => {
            let list = list::view(target, all_namespaces).await?;
            match output {
                Output::Table => write!(out, "{}", list::table_of(&list, all_namespaces))?,
                Output::Json => json(out, &list)?,
            }
        }
        Command::Status {
            name: Some(name),
            output,
            ..
        } => {
            let view = status::view(target, &name).await?;
            match output {
                Output::Table => write!(out, "{}", view.table(k8s_openapi::jiff::Timestamp::now()))?,
                Output::Json => json(out, &view)?,
            }
        }
        Command::Plan { name, flags, output } => {
            let report = Box::pin(plan::report(target, &name, &flags)).await?;
            match output {
                Output::Table => write!(out, "{report}")?,
                Output::Json => json(out, &report)?,
            }
        }
        Command::TransferLeader {
            name,
            to,
            no_wait,
            timeout,
        } => {
            let wish = wishes::transfer_leader(target, &name, to.as_deref(), out).await?;
            if !no_wait {
                rollout::until_transferred(target, (&name, &wish), timeout, out).await?;
            }
        }
        Command::Restart { name, no_wait, timeout } => {
            let wish = wishes::restart(target, &name, out).await?;
            if !no_wait {
                rollout::until_restart_is_taken(target, (&name, &wish), timeout, out).await?;
            }
        }
        Command::RotateCa { name, yes } => wishes::rotate_ca(target, &name, yes, out).await?,
        Command::Pause { name } => wishes::pause(target, &name, true, out).await?,
        Command::Resume { name } => wishes::pause(target, &name, false, out).await?,
        Command::Wait {
            what: Awaited::Rollout { name, timeout },
        } => rollout::until_complete(target, &name, timeout, out).await?,
    }
    Ok(())
}

fn json(out: &mut impl Write, value: &impl serde::Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}
