//! `support-bundle`: what a person who helps from outside needs to know about a cluster, in one file without secrets.
//!
//! A part that cannot be read is named in the index, and the others are collected anyway.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use crds::{KubeBrainBackup, KubeBrainBackupSchedule, KubeBrainCluster};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, LogParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use plan::names::{ARCHIVE, BACKUP, BOOTSTRAP, CLUSTER, METRICS_PORT};
use plan::objects::{ObjectKind, name_kind};
use serde_json::{Value, json};

use super::connect::TargetNamespace;
use super::members;
use super::pods::{self, ClusterPods, containers};
use super::report;

mod file;
mod redact;
#[cfg(test)]
mod tests;

use file::BundleFile;
use redact::Redactor;

/// Objects that one request lists.
const OBJECTS_PER_PAGE: u32 = 250;
/// Pages of one list that are read.
const MAX_PAGES: usize = 40;
/// Newest lines of a container's log that are kept.
const MAX_LOG_LINES: i64 = 100_000;
/// Maximum size of a page of metrics.
const MAX_METRICS_BYTES: usize = 8 << 20;
/// Timeout of each part.
const PART_TIMEOUT: Duration = Duration::from_secs(60);
/// Port of the operator's metrics, if its pod names none.
const OPERATOR_PORT: i32 = 8080;
/// Text of the index and the output if values of Secrets are unknown.
const SECRETS_UNKNOWN: &str = "WARNING: not all Secrets could be read, so their values are not removed wherever they occur. \
    Logs of containers that are not KubeBrain's are left out.";

/// The bundle that `support-bundle` writes.
#[derive(Debug, Args)]
pub(super) struct BundleOptions {
    /// Name of the KubeBrainCluster
    pub(super) name: String,
    /// File to write, which must not exist; default: NAME-support-TIME.tar.gz
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Age of the oldest log lines
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = super::duration)]
    pub(super) since: Duration,
    /// Also the logs and metrics of the operator, which name other clusters that it manages
    #[arg(long)]
    pub(super) operator_logs: bool,
}

/// Writes the bundle.
///
/// # Errors
/// The cluster cannot be read, or the file cannot be written.
pub(super) async fn write(
    target: &TargetNamespace,
    options: &BundleOptions,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let cluster = target.get(&options.name).await?;
    let root = format!("{}-support-{}", options.name, now.strftime("%Y%m%d%H%M%S"));
    let path = options.output.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{root}.tar.gz")));
    // It has no secrets, but the names of objects and hosts.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("create {}", path.display()))?;
    let collector = Collector {
        file: BundleFile::new(
            BufWriter::new(file),
            root,
            u64::try_from(now.as_second()).unwrap_or_default(),
            Redactor::new()?,
        ),
        target,
        cluster: &cluster,
        names: BTreeSet::from([options.name.clone()]),
        are_secrets_known: true,
    };
    let collected = Box::pin(collector.collect(options, now, out)).await;
    if collected.is_err() {
        // An incomplete file is of no use, and the error says why it is one.
        drop(std::fs::remove_file(&path));
    }
    let (files, missing, are_secrets_known) = collected.with_context(|| format!("write {}", path.display()))?;
    writeln!(out, "wrote {}: {files} files", path.display())?;
    if !are_secrets_known {
        writeln!(out, "{SECRETS_UNKNOWN}")?;
    }
    if missing > 0 {
        writeln!(out, "{missing} parts could not be read: index.txt in it says why")?;
    }
    Ok(())
}

struct Collector<'a> {
    target: &'a TargetNamespace,
    cluster: &'a KubeBrainCluster,
    file: BundleFile<BufWriter<File>>,
    /// Names of the objects in the bundle, by which Events are selected.
    names: BTreeSet<String>,
    /// False unless all Secrets of the namespace were read.
    are_secrets_known: bool,
}

impl Collector<'_> {
    /// Returns the numbers of files and of what is missing, and whether all Secrets were read.
    async fn collect(
        mut self,
        options: &BundleOptions,
        now: Timestamp,
        out: &mut impl Write,
    ) -> anyhow::Result<(usize, usize, bool)> {
        writeln!(out, "reading Secrets, to remove their values")?;
        self.learn().await;
        writeln!(out, "collecting objects")?;
        self.versions().await?;
        self.file.add_object("cluster.json", json!(self.cluster))?;
        let backups = self.backups().await?;
        self.objects(&backups).await?;
        let mut pods = pods::all(self.target, self.cluster).await;
        self.pods(&pods)?;
        if !options.operator_logs {
            pods.operators.clear();
        }
        self.events().await?;
        writeln!(out, "planning the next pass of the operator")?;
        Box::pin(self.plan()).await?;
        writeln!(out, "collecting metrics")?;
        self.metrics(&pods).await?;
        let all: Vec<&Pod> = pods
            .members
            .iter()
            .chain(&pods.helpers)
            .chain(&pods.operators)
            .collect();
        writeln!(out, "collecting the logs of {} pods", all.len())?;
        self.logs(&all, options.since).await?;
        let mut title = format!(
            "Support bundle of KubeBrainCluster {}/{}, made at {now} by kubectl-kubebrain {}.",
            self.target.namespace,
            self.cluster.name_any(),
            env!("CARGO_PKG_VERSION"),
        );
        if !self.are_secrets_known {
            title.push_str(&format!("\n{SECRETS_UNKNOWN}"));
        }
        title.push_str(&format!("\nSecrets are replaced by {}.", redact::REDACTED));
        if !options.operator_logs {
            title.push_str("\nLogs and metrics of the operator are left out: --operator-logs adds them.");
        }
        let are_secrets_known = self.are_secrets_known;
        let (files, missing) = self.file.finish(&title)?;
        Ok((files, missing, are_secrets_known))
    }

    /// Learns the values of the namespace's Secrets, so that they are removed wherever they occur.
    async fn learn(&mut self) {
        let resource = ApiResource::erase::<Secret>(&());
        let mut found = Vec::new();
        let read = self.read_pages(&resource, "", &mut found).await;
        let listed = found.len();
        let secrets = found.into_iter().filter_map(|secret| secret.try_parse().ok());
        let secrets: Vec<Secret> = secrets.collect();
        self.file.redactor.learn(&secrets);
        let why = match read {
            Ok(true) if secrets.len() == listed => return,
            Ok(true) => "some cannot be parsed".to_owned(),
            Ok(false) => format!("only the first {listed} were read"),
            Err(why) => format!("{why:#}"),
        };
        self.are_secrets_known = false;
        let what = "values of Secrets, which are therefore not looked for in logs and messages";
        self.file.miss(what, &why);
    }

    async fn versions(&mut self) -> anyhow::Result<()> {
        let kubernetes = within(async { Ok(self.target.client.apiserver_version().await?) }).await;
        let kubernetes = kubernetes.map(|info| json!({"gitVersion": info.git_version, "platform": info.platform}));
        let kubernetes = self.known("the version of the API server", kubernetes);
        let status = self.cluster.status.clone().unwrap_or_default();
        let versions = json!({
            "plugin": env!("CARGO_PKG_VERSION"),
            "operator": status.operator_version,
            "running": status.version,
            "wanted": self.cluster.spec.version,
            "image": status.image,
            "kubernetes": kubernetes,
        });
        Ok(self.file.add_object("versions.json", versions)?)
    }

    /// Adds the backups and schedules of the cluster, and returns the names of the backups.
    async fn backups(&mut self) -> anyhow::Result<BTreeSet<String>> {
        let name = self.cluster.name_any();
        let resource = ApiResource::erase::<KubeBrainBackup>(&());
        let backups = self.list(&resource, "").await;
        let mut backups = self.known("backups", backups).unwrap_or_default();
        backups.retain(|backup| backup.data["spec"]["clusterName"] == *name);
        let names = backups.iter().map(ResourceExt::name_any).collect();
        self.add_all(&resource, backups)?;
        let resource = ApiResource::erase::<KubeBrainBackupSchedule>(&());
        let schedules = self.list(&resource, "").await;
        let mut schedules = self.known("schedules", schedules).unwrap_or_default();
        schedules.retain(|schedule| schedule.data["spec"]["template"]["spec"]["clusterName"] == *name);
        self.add_all(&resource, schedules)?;
        Ok(names)
    }

    /// Adds what the operator owns, and the claims.
    async fn objects(&mut self, backups: &BTreeSet<String>) -> anyhow::Result<()> {
        let name = self.cluster.name_any();
        let own = format!("{CLUSTER}={name}");
        let mut lists: Vec<(ApiResource, String)> = ObjectKind::ALL.map(|kind| (kind.resource(), own.clone())).to_vec();
        lists.push((ApiResource::erase::<PersistentVolumeClaim>(&()), own.clone()));
        lists.push((ApiResource::erase::<Deployment>(&()), format!("{ARCHIVE}={name}")));
        lists.push((ApiResource::erase::<Job>(&()), own));
        lists.push((ApiResource::erase::<Job>(&()), format!("{BOOTSTRAP}={name}")));
        lists.push((ApiResource::erase::<Job>(&()), BACKUP.to_owned()));
        for (resource, labels) in lists {
            let found = self.list(&resource, &labels).await;
            // Not every API server has the kinds of the Prometheus operator.
            if resource.group.ends_with(".coreos.com") && found.as_ref().is_err_and(is_unknown_kind) {
                continue;
            }
            let mut found = self.known(&resource.plural, found).unwrap_or_default();
            if labels == BACKUP {
                found.retain(|job| job.labels().get(BACKUP).is_some_and(|backup| backups.contains(backup)));
            }
            self.add_all(&resource, found)?;
        }
        Ok(())
    }

    fn pods(&mut self, pods: &ClusterPods) -> anyhow::Result<()> {
        for (what, why) in &pods.notes {
            self.file.miss(what, why);
        }
        for pod in pods.members.iter().chain(&pods.helpers).chain(&pods.operators) {
            self.names.insert(pod.name_any());
            self.file
                .add_object(&format!("objects/pods/{}.json", pod.name_any()), json!(pod))?;
        }
        Ok(())
    }

    /// Adds the Events about objects in the bundle, and about others whose names begin with that of the cluster.
    async fn events(&mut self) -> anyhow::Result<()> {
        let events = self.list(&ApiResource::erase::<Event>(&()), "").await;
        let Some(events) = self.known("events", events) else {
            return Ok(());
        };
        let below = format!("{}-", self.cluster.name_any());
        let is_about = |event: &&DynamicObject| {
            let name = event.data["involvedObject"]["name"].as_str().unwrap_or_default();
            self.names.contains(name) || name.starts_with(&below)
        };
        let events: Vec<Value> = events.iter().filter(is_about).map(|event| json!(event)).collect();
        Ok(self.file.add_object("events.json", Value::Array(events))?)
    }

    /// Adds the plan of the next pass, and the objects as the operator would write them.
    async fn plan(&mut self) -> anyhow::Result<()> {
        let flags = report::OperatorFlags {
            ca_propagation: Duration::from_secs(600),
            ..report::OperatorFlags::default()
        };
        let name = self.cluster.name_any();
        let planned = within(async {
            let mut pass = Box::pin(report::prepare(self.target, &name, &flags)).await?;
            let report = pass.report(self.target).await?;
            Ok((report, pass.rendered()?))
        });
        let planned = Box::pin(planned).await;
        if let Some((report, rendered)) = self.known("the plan and the rendered objects", planned) {
            self.file.add_object("plan.json", json!(report))?;
            for object in rendered {
                let (kind, name) = (object.key.kind.resource().plural, &object.key.name);
                self.file
                    .add_object(&format!("rendered/{kind}/{name}.json"), object.body)?;
            }
        }
        Ok(())
    }

    async fn metrics(&mut self, pods: &ClusterPods) -> anyhow::Result<()> {
        let members = pods.members.iter().map(|pod| (pod, METRICS_PORT, "member"));
        let operators = pods.operators.iter().map(|pod| (pod, http_port(pod), "operator"));
        for (pod, port, role) in members.chain(operators) {
            let (name, namespace) = (pod.name_any(), self.namespace_of(pod));
            let pages = match role {
                "member" => &[("metrics", "txt"), ("member", "json")][..],
                _ => &[("metrics", "txt")],
            };
            for (page, suffix) in pages {
                let asked = members::page_of(self.target, &namespace, (&name, port), (page, MAX_METRICS_BYTES));
                let found = within(async { asked.await.map_err(|why| anyhow::anyhow!(why.message(&namespace))) }).await;
                if let Some(text) = self.known(&format!("/{page} of {name}"), found) {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    self.file.add_text(&format!("metrics/{name}.{page}.{suffix}"), &text)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the logs. Those of containers of others are left out if the values of Secrets that may be in them are unknown.
    async fn logs(&mut self, pods: &[&Pod], since: Duration) -> anyhow::Result<()> {
        for pod in pods {
            let name = pod.name_any();
            let namespace = self.namespace_of(pod);
            let all: Api<Pod> = Api::namespaced(self.target.client.clone(), &namespace);
            // Secrets of the operator's namespace are not read.
            let are_secrets_known = self.are_secrets_known && namespace == self.target.namespace;
            for (container, has_ended) in containers(pod) {
                if !are_secrets_known && !redact::is_own(&container) {
                    let why = "it may have values of Secrets, which could not be read";
                    self.file.miss(&format!("the log {container} of pod {name}"), why);
                    continue;
                }
                for previous in [false, true].into_iter().filter(|previous| has_ended || !previous) {
                    let params = LogParams {
                        container: Some(container.clone()),
                        previous,
                        since_seconds: Some(i64::try_from(since.as_secs()).unwrap_or(i64::MAX).max(1)),
                        tail_lines: Some(MAX_LOG_LINES),
                        timestamps: true,
                        ..LogParams::default()
                    };
                    let log = within(async { Ok(all.logs(&name, &params).await?) }).await;
                    let before = if previous { ".previous" } else { "" };
                    if let Some(log) = self.known(&format!("the log {container}{before} of pod {name}"), log) {
                        self.file
                            .add_text(&format!("logs/{name}/{container}{before}.log"), &log)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn namespace_of(&self, pod: &Pod) -> String {
        pod.namespace().unwrap_or_else(|| self.target.namespace.clone())
    }

    /// Lists objects, and records it if there are more than are read.
    async fn list(&mut self, resource: &ApiResource, labels: &str) -> anyhow::Result<Vec<DynamicObject>> {
        let mut found = Vec::new();
        if !self.read_pages(resource, labels, &mut found).await? {
            let why = format!("only the first {} were read", found.len());
            self.file.miss(&format!("further {}", resource.plural), &why);
        }
        Ok(found)
    }

    /// Appends objects to `found`, page by page, without the fields that only the API server needs. Returns false if there are further ones.
    async fn read_pages(
        &self,
        resource: &ApiResource,
        labels: &str,
        found: &mut Vec<DynamicObject>,
    ) -> anyhow::Result<bool> {
        let all: Api<DynamicObject> =
            Api::namespaced_with(self.target.client.clone(), &self.target.namespace, resource);
        let mut params = ListParams::default().labels(labels).limit(OBJECTS_PER_PAGE);
        for _ in 0..MAX_PAGES {
            let page = within(async {
                let page = all.list(&params).await;
                page.map_err(|error| self.target.explain(error, "list", &resource.plural))
            });
            let page = page.await?;
            found.extend(page.items.into_iter().map(|mut object| {
                object.metadata.managed_fields = None;
                name_kind(&mut object, resource);
                object
            }));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn add_all(&mut self, resource: &ApiResource, objects: Vec<DynamicObject>) -> anyhow::Result<()> {
        for object in objects {
            let name = object.name_any();
            let path = format!("objects/{}/{name}.json", resource.plural);
            self.file.add_object(&path, json!(object))?;
            self.names.insert(name);
        }
        Ok(())
    }

    /// Returns a part, or records why it is missing.
    fn known<T>(&mut self, what: &str, part: anyhow::Result<T>) -> Option<T> {
        part.map_err(|why| self.file.miss(what, &format!("{why:#}"))).ok()
    }
}

/// Reads a part for a limited time.
async fn within<T>(part: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(PART_TIMEOUT, part).await {
        Ok(part) => part,
        Err(_) => anyhow::bail!("no answer in {} seconds", PART_TIMEOUT.as_secs()),
    }
}

fn is_unknown_kind(error: &anyhow::Error) -> bool {
    error.to_string().contains("does not know")
}

/// Returns the port of a pod that is named `http`.
fn http_port(pod: &Pod) -> i32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some("http"));
    named.map_or(OPERATOR_PORT, |port| port.container_port)
}
