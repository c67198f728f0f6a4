//! `logs`: the logs of several pods, merged as their lines arrive.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use futures::stream::{LocalBoxStream, select_all};
use futures::{AsyncBufReadExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt};

use super::connect::TargetNamespace;
use super::pods::{self, ClusterPods, containers};

/// The logs that `logs` prints.
#[derive(Debug, Clone, Args)]
pub(super) struct LogOptions {
    /// Name of the KubeBrainCluster
    pub(super) name: String,
    /// Also of the archive, of Jobs of the bootstrap and of backups, of trials of new templates, and of the operator
    #[arg(long)]
    pub(super) all: bool,
    /// Only lines that are at most this old
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub(super) since: Option<Duration>,
    /// Number of newest lines of each container; default: all
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) tail: Option<i64>,
    /// Print new lines until the containers end; pods that start later are not followed
    #[arg(short, long)]
    pub(super) follow: bool,
    /// The logs of containers that ended before the present ones
    #[arg(short, long, conflicts_with = "follow")]
    pub(super) previous: bool,
}

/// One container whose log is read.
struct LogSource {
    namespace: String,
    pod: String,
    container: String,
    /// Beginning of each of its lines.
    prefix: String,
}

type Lines<'a> = LocalBoxStream<'a, (&'a LogSource, io::Result<String>)>;

/// Prints the logs.
///
/// # Errors
/// The cluster does not exist or has no pods, or a log cannot be read; the others are printed anyway.
pub(super) async fn print(target: &TargetNamespace, options: &LogOptions, out: &mut impl Write) -> anyhow::Result<()> {
    let cluster = target.get(&options.name).await?;
    let found = if options.all {
        pods::all(target, &cluster).await
    } else {
        ClusterPods {
            members: pods::members(target, &cluster).await?,
            ..ClusterPods::default()
        }
    };
    let mut problems: Vec<String> = found.notes.iter().map(|(what, why)| format!("{what}: {why}")).collect();
    let pods = found.members.iter().chain(&found.helpers).chain(&found.operators);
    let sources: Vec<LogSource> = pods.flat_map(|pod| sources(pod, target, options.previous)).collect();
    let opened = sources
        .iter()
        .map(async |source| (source, open(target, source, options).await));
    let mut streams = Vec::new();
    for (source, opened) in futures::future::join_all(opened).await {
        match opened {
            Ok(lines) => streams.push(lines),
            Err(error) => problems.push(format!("{}: {error}", source.prefix)),
        }
    }
    // The error at the end may be far away.
    for problem in problems.iter().filter(|_| options.follow) {
        eprintln!("error: {problem}");
    }
    let mut lines = select_all(streams);
    while let Some((source, line)) = lines.next().await {
        let written = match line {
            Ok(line) => writeln!(out, "[{}] {line}", source.prefix),
            Err(error) => {
                problems.push(format!("{}: {error}", source.prefix));
                Ok(())
            }
        };
        match written {
            // As of `kubectl logs`: the reader of the output has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    if !problems.is_empty() {
        anyhow::bail!("could not read all logs: {}", problems.join("; "));
    }
    if sources.is_empty() {
        anyhow::bail!(match options.previous {
            true => format!("no container of {} has been restarted", options.name),
            false => format!("{} has no pods", options.name),
        });
    }
    Ok(())
}

/// Returns the containers of a pod, or with `previous` those that had another one before.
fn sources(pod: &Pod, target: &TargetNamespace, previous: bool) -> Vec<LogSource> {
    let all = containers(pod);
    let is_alone = all.len() == 1;
    let wanted = all.into_iter().filter(|(_, has_ended)| *has_ended || !previous);
    let name = pod.name_any();
    wanted
        .map(|(container, _)| LogSource {
            namespace: pod.namespace().unwrap_or_else(|| target.namespace.clone()),
            prefix: match is_alone {
                true => name.clone(),
                false => format!("{name}/{container}"),
            },
            pod: name.clone(),
            container,
        })
        .collect()
}

async fn open<'a>(target: &TargetNamespace, source: &'a LogSource, options: &LogOptions) -> anyhow::Result<Lines<'a>> {
    let params = LogParams {
        container: Some(source.container.clone()),
        follow: options.follow,
        previous: options.previous,
        // 0 is refused.
        since_seconds: options
            .since
            .map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX).max(1)),
        tail_lines: options.tail,
        ..LogParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(target.client.clone(), &source.namespace);
    let opened = pods.log_stream(&source.pod, &params).await;
    let reader = opened.map_err(|error| target.explain(error, "get", &format!("the log of pod {}", source.pod)))?;
    let lines = futures::stream::unfold(Some(Box::pin(reader)), move |reader| async move {
        let mut reader = reader?;
        let mut line = Vec::new();
        match reader.read_until(b'\n', &mut line).await {
            Ok(0) => None,
            Ok(_) => Some(((source, Ok(text_of(&line))), Some(reader))),
            Err(error) => Some(((source, Err(error)), None)),
        }
    });
    Ok(lines.boxed_local())
}

/// Returns a line without its end, and without control characters, which a terminal would act on.
fn text_of(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\r', '\n']);
    text.chars()
        .map(|c| if c.is_control() && c != '\t' { ' ' } else { c })
        .collect()
}
