//! Asks a brain who it is and who leads, over the network as any client would.
//!
//! The address is the pod's own, so that no name service stands in between; the certificate is still checked against its name.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity as ClientIdentity};

use crate::names::CLIENT_PORT;

/// Wire messages of the etcd v3 API, generated.
#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated code"
)]
mod pb {
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
}

use pb::etcdserverpb::cluster_client::ClusterClient;
use pb::etcdserverpb::maintenance_client::MaintenanceClient;
use pb::etcdserverpb::{MemberListRequest, StatusRequest};

/// How long connecting may take, and each question.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the operator shows to a brain, and what it trusts, as PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) trusted: String,
}

/// What a brain said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its id.
    pub(crate) member: u64,
    /// Id of the leader it knows; 0 if none.
    pub(crate) leader: u64,
    /// The leader's epoch.
    pub(crate) epoch: i64,
    /// Why it does not take writes, such as `NOSPACE`.
    pub(crate) errors: Vec<String>,
    /// Names of the members by id.
    pub(crate) members: Vec<(u64, String)>,
}

impl Answer {
    pub(crate) fn is_leader(&self) -> bool {
        self.leader != 0 && self.leader == self.member
    }
}

/// Asks the brain at `address`, whose certificate shall be for `host`. Without an identity the way is plain.
///
/// # Errors
/// Why it did not answer, in words for the status.
pub(crate) async fn ask(address: &str, host: &str, identity: Option<&Identity>) -> Result<Answer, String> {
    let asked = tokio::time::timeout(3 * PATIENCE, exchange(address, host, identity)).await;
    asked.map_err(|_| "it did not answer in time".to_owned())?
}

async fn exchange(address: &str, host: &str, identity: Option<&Identity>) -> Result<Answer, String> {
    let address = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let scheme = if identity.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}:{CLIENT_PORT}"))
        .map_err(|error| format!("bad address {address}: {error}"))?
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE);
    if let Some(identity) = identity {
        let tls = ClientTlsConfig::new()
            .domain_name(host)
            .ca_certificate(Certificate::from_pem(&identity.trusted))
            .identity(ClientIdentity::from_pem(&identity.certificate, &identity.key));
        endpoint = endpoint
            .tls_config(tls)
            .map_err(|error| format!("bad certificate: {}", causes(&error)))?;
    }
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| format!("no connection: {}", causes(&error)))?;
    let status = MaintenanceClient::new(channel.clone())
        .status(StatusRequest::default())
        .await
        .map_err(refused)?;
    let members = ClusterClient::new(channel)
        .member_list(MemberListRequest::default())
        .await
        .map_err(refused)?;
    let (status, members) = (status.into_inner(), members.into_inner());
    Ok(Answer {
        member: status.header.map(|header| header.member_id).unwrap_or_default(),
        leader: status.leader,
        epoch: i64::try_from(status.raft_term).unwrap_or(i64::MAX),
        errors: status.errors,
        members: members
            .members
            .into_iter()
            .map(|member| (member.id, member.name))
            .collect(),
    })
}

fn refused(status: tonic::Status) -> String {
    format!("it answered {:?}: {}", status.code(), status.message())
}

/// An error with its causes: the outermost alone says nothing about certificates.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
