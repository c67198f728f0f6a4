//! The operator that leads: what it counts, and what it uses.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use programs::server::ProcessUsage;

use crate::operator::kit::{Kit, OPERATOR_NAMESPACE};

/// The program; the kernel shows no more of its name.
const NAME: &str = "kubebrain-opera";

/// The pod that leads, and its process.
pub(super) struct Process {
    pod: String,
    pid: u32,
}

/// Counters of the operator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    /// Requests to the API server but watches, which it ends every few minutes.
    pub(super) requests: f64,
    pub(super) passes: f64,
}

impl Process {
    /// That of the replica that leads.
    pub(super) async fn leading(kit: &Kit) -> Self {
        kit.eventually("led by a replica", async || {
            let pods = kit.operator_pods().list(&ListParams::default()).await;
            for pod in pods.map_err(|error| error.to_string())? {
                let text = metrics(kit, &pod.name_any()).await.unwrap_or_default();
                if sum(&text, "kubebrain_operator_leader", "") > 0.0 {
                    let pid = pid(&pod).ok_or(format!("{} has no process", pod.name_any()))?;
                    let pod = pod.name_any();
                    return Ok(Self { pod, pid });
                }
            }
            Err("none leads".to_owned())
        })
        .await
    }

    pub(super) async fn counters(&self, kit: &Kit) -> Counters {
        let text = metrics(kit, &self.pod).await.unwrap();
        let all = sum(&text, "kubebrain_operator_api_requests_total", "");
        let watches = sum(&text, "kubebrain_operator_api_requests_total", "verb=\"watch\"");
        Counters {
            requests: all - watches,
            passes: sum(&text, "kubebrain_operator_reconcile_total", ""),
        }
    }

    pub(super) fn usage(&self) -> ProcessUsage {
        ProcessUsage::of(self.pid).unwrap()
    }
}

async fn metrics(kit: &Kit, pod: &str) -> kube::Result<String> {
    let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
    kit.client
        .request_text(http::Request::get(path).body(Vec::new()).unwrap())
        .await
}

/// The sum of all series of a name with this label.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (its_name, labels) = series.split_once('{').unwrap_or((series, ""));
        let wanted = its_name == name && labels.contains(label);
        wanted.then(|| value.parse::<f64>().unwrap())
    });
    values.sum()
}

/// The process of the operator in a pod.
fn pid(pod: &Pod) -> Option<u32> {
    let group = format!("pod{}", pod.uid()?);
    let mut pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.unwrap().file_name().to_str()?.parse().ok()?;
        Some(pid)
    });
    pids.find(|pid| {
        // processes start and end while they are listed
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").trim() == NAME && read("cgroup").contains(&group)
    })
}

#[test]
fn series_are_summed_by_name_and_label() {
    let text = "# TYPE a counter\na{verb=\"get\"} 1\na{verb=\"watch\"} 2\nab{verb=\"get\"} 4\nb 8\n";
    assert_eq!(sum(text, "a", ""), 3.0);
    assert_eq!(sum(text, "a", "verb=\"watch\""), 2.0);
    assert_eq!(sum(text, "b", ""), 8.0);
}
