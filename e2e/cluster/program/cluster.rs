//! Runs whole Kubernetes clusters on this machine, each in a network of its own.

use std::io::Write as _;

use anyhow::Context as _;
use e2e_cluster::cluster::{self, Cluster};
use e2e_cluster::cluster_dir::{ClusterDir, ClusterName};
use e2e_cluster::config::{ClusterConfig, StoreProgram};
use e2e_cluster::log_check::ClusterLogs;
use e2e_cluster::{cleanup, cluster_process, demo};
use programs::conformance;
use programs::progress::Progress;
use programs::tools::own::Programs;
use programs::tools::{self, Tools};
use tracing_subscriber::EnvFilter;

/// Commands for clusters.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClusterCommand {
    /// Install and build everything that clusters and tests need.
    Tools {
        /// Only what clusters need.
        #[arg(long)]
        clusters: bool,
    },
    /// Start a cluster and leave it running.
    Up(ClusterFlags),
    /// Run the demo: install the operator, create a brain and an API server on it, and leave them running.
    Demo(ClusterFlags),
    /// Stop a cluster, and remove the remains of killed runs.
    Down {
        /// The cluster's name.
        #[arg(long, default_value = "demo")]
        name: ClusterName,
        /// Use the cluster of this checkout's tests: wait until it has stopped.
        #[arg(long, conflicts_with = "name")]
        tests: bool,
    },
    /// Run a cluster until standard input ends.
    #[command(hide = true)]
    Host {
        /// A configuration as JSON.
        config: String,
    },
}

/// Settings of a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterFlags {
    /// The cluster's name.
    #[arg(long, default_value = "demo")]
    name: ClusterName,
    /// The server that stores the cluster's objects.
    #[arg(long, value_enum, default_value_t = StoreProgram::Brain)]
    store: StoreProgram,
    /// The one member of the store that the API server is connected to, counted from 1 [default: all].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    through: Option<u8>,
    /// Loopback port of the API server; any free one if 0.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Skip the images of brain, operator and the tenant's API server.
    #[arg(long)]
    bare: bool,
}

/// Installs or builds everything that tests use, so that no test shares the processors with a build.
fn prepare_for_tests(progress: &Progress) -> anyhow::Result<()> {
    tools::prepare_for_tests(progress)?;
    for suite in [conformance::ETCD3, conformance::FACTORY] {
        suite.build(progress)?;
    }
    Ok(())
}

/// Does what was asked for.
///
/// # Errors
///
/// It cannot be done, or a cluster's logs have complaints.
pub(crate) fn run(command: ClusterCommand, progress: &Progress) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Tools { clusters: false } => prepare_for_tests(progress),
        ClusterCommand::Tools { clusters: true } => Tools::prepare(progress).map(drop),
        ClusterCommand::Up(up) => self::up(&up, progress),
        ClusterCommand::Demo(up) => show(&up, progress),
        ClusterCommand::Down { name, tests } => {
            let name = if tests {
                ClusterName::of_tests(Programs::find()?.dir())
            } else {
                name
            };
            if !cluster::down(&name, progress)? {
                progress.say(format_args!("there is no cluster {name}"));
            }
            cleanup::abandoned(progress)?;
            // what was said after the last test had looked
            if tests {
                ClusterLogs::of(&ClusterDir::of(&name)).check()
            } else {
                Ok(())
            }
        }
        ClusterCommand::Host { config } => host(&config),
    }
}

impl ClusterFlags {
    fn start(&self, progress: &Progress) -> anyhow::Result<Cluster> {
        let ports = [("api".to_owned(), self.port)].into();
        let config = ClusterConfig {
            name: self.name.clone(),
            store: self.store,
            through: self.through.map(|member| usize::from(member) - 1),
            product: !self.bare,
            test_images: false,
            ports,
        };
        let program = std::env::current_exe().context("find this program")?;
        Cluster::start(&config, &program, progress)
    }
}

fn up(up: &ClusterFlags, progress: &Progress) -> anyhow::Result<()> {
    let cluster = up.start(progress)?;
    let kubeconfig = cluster.home().kubeconfig();
    cluster.release()?;
    writeln!(std::io::stdout(), "export KUBECONFIG={}", kubeconfig.display())
        .context("print the path of the kubeconfig")
}

/// The demo. One that is up already is ended first, so that it works twice in a row.
fn show(up: &ClusterFlags, progress: &Progress) -> anyhow::Result<()> {
    let whole = progress.step("the whole demo");
    cluster::down(&up.name, progress)?;
    let cluster = up.start(progress)?;
    match walk(&cluster, progress) {
        Ok(summary) => {
            cluster.release()?;
            whole.done();
            write!(std::io::stdout(), "{summary}").context("print the events")
        }
        Err(error) => {
            let logs = cluster.home().logs();
            cluster.stop().context("end the cluster after a failure")?;
            Err(error.context(format!("the demo failed; logs: {}", logs.display())))
        }
    }
}

fn walk(cluster: &Cluster, progress: &Progress) -> anyhow::Result<String> {
    demo::install_operator(cluster.kubectl(), progress)?;
    demo::create_brain(cluster, progress)?;
    let tenant = demo::start_tenant(cluster, progress)?;
    demo::use_tenant(&tenant, progress)?;
    demo::summary(cluster, &tenant)
}

fn host(config: &str) -> anyhow::Result<()> {
    let config: ClusterConfig = serde_json::from_str(config).context("read the configuration")?;
    let file = ClusterDir::of(&config.name).open_log("host")?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(file)
        .init();
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let result = runtime.block_on(cluster_process::run(config));
    runtime.shutdown_background();
    // a compiler that still runs is in our process group; we ourselves have a handler for the signal
    rustix::process::kill_current_process_group(rustix::process::Signal::TERM).context("end what was being built")?;
    result
}
