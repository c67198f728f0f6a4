//! The delay between a member's lead and the leader label of its pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use pb::maintenance_client::MaintenanceClient;
use testkit::goal::Goal;
use tokio::time::Instant;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use wire::etcdserverpb as pb;

use crate::operator::brains::Brains;
use crate::operator::kit::STATE_TIMEOUT;
use crate::operator::pods::address;

const ROLE_LABEL: &str = "kubebrain.io/role";
/// Seconds that the label is behind.
const LABEL_DELAY_GOAL: Goal = Goal::AtMost(2.0);
/// Between two looks at a member.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Between hand-overs that do not follow each other closely.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(8);
const CALM_TRANSFERS: usize = 5;
const IN_A_ROW: usize = 12;

/// Hand-overs that the operator is asked for, ones that it hears of, and many of these in a row.
pub(super) async fn measure(brains: &Brains<'_>) {
    let mut asked = Vec::new();
    for number in 0..CALM_TRANSFERS {
        tokio::time::sleep(TRANSFER_INTERVAL).await; // that is what is measured
        let leader = brains.leader().await;
        let wish = format!("any@{number}");
        brains.annotate(crds::wishes::TRANSFER_LEADER, &wish).await;
        asked.push(until_labelled(brains, &leader).await);
    }
    report(brains, "that the operator was asked for", &asked);
    let mut heard_of = Vec::new();
    for _ in 0..CALM_TRANSFERS {
        tokio::time::sleep(TRANSFER_INTERVAL).await; // that is what is measured
        heard_of.push(hand_over(brains).await);
    }
    report(brains, "that the operator hears of", &heard_of);
    let mut in_a_row = Vec::new();
    for _ in 0..IN_A_ROW {
        in_a_row.push(hand_over(brains).await);
    }
    report(brains, "in a row", &in_a_row);
}

fn report(brains: &Brains<'_>, what: &str, delays: &[Duration]) {
    let longest = delays.iter().max().unwrap().as_secs_f64();
    let all: Vec<String> = delays
        .iter()
        .map(|delay| format!("{:.2}", delay.as_secs_f64()))
        .collect();
    brains.kit.say(format_args!(
        "label of the leader behind {} hand-overs {what}: at most {longest:.2} s {} ({})",
        delays.len(),
        LABEL_DELAY_GOAL.beside(longest),
        all.join(" ")
    ));
}

/// Moves the lead by a request to the leader.
async fn hand_over(brains: &Brains<'_>) -> Duration {
    let leader = labelled(brains).await;
    let pods = brains.pods().await;
    let target = pods.iter().find(|pod| pod.name_any() != leader).unwrap();
    let id = brains.member(target).await.unwrap()["memberID"].clone();
    let id = u64::from_str_radix(id.as_str().unwrap(), 16).unwrap();
    let pod = pods.iter().find(|pod| pod.name_any() == leader).unwrap();
    let credentials = brains.credentials().await;
    let host = format!("{leader}.{}-headless.{}.svc", brains.name, brains.kit.namespace);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(credentials.trusted))
        .identity(Identity::from_pem(credentials.certificate, credentials.key))
        .domain_name(host);
    let endpoint = Endpoint::new(format!("https://{}:2379", address(pod).unwrap())).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    let request = pb::MoveLeaderRequest { target_id: id };
    MaintenanceClient::new(channel).move_leader(request).await.unwrap();
    until_labelled(brains, &leader).await
}

/// Waits until another member than `former` leads, and then until its pod alone is labelled; gives the time between.
async fn until_labelled(brains: &Brains<'_>, former: &str) -> Duration {
    let deadline = Instant::now() + STATE_TIMEOUT;
    let pods = brains.pods().await;
    let leader = 'led: loop {
        for pod in pods.iter().filter(|pod| pod.name_any() != former) {
            if brains.member(pod).await.is_ok_and(|member| member["role"] == "Leader") {
                break 'led pod.name_any();
            }
        }
        assert!(Instant::now() < deadline, "nobody but {former} leads");
        tokio::time::sleep(POLL_INTERVAL).await; // between looks
    };
    let led = Instant::now();
    let is_leader = |pod: &Pod| pod.labels().get(ROLE_LABEL).is_some_and(|role| role == "leader");
    brains
        .kit
        .until(&leader, "labelled as leader", STATE_TIMEOUT, is_leader)
        .await;
    brains
        .kit
        .until(former, "not labelled as leader", STATE_TIMEOUT, |pod| !is_leader(pod))
        .await;
    led.elapsed()
}

/// The pod that is labelled.
async fn labelled(brains: &Brains<'_>) -> String {
    brains
        .kit
        .eventually("one labelled pod", async || {
            let pods = brains.pods().await;
            let leads = |pod: &&Pod| pod.labels().get(ROLE_LABEL).is_some_and(|role| role == "leader");
            let names: Vec<String> = pods.iter().filter(leads).map(|pod| pod.name_any()).collect();
            match &names[..] {
                [one] => Ok(one.clone()),
                _ => Err(format!("{names:?}")),
            }
        })
        .await
}
