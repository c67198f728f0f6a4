//! The one way of a request to the leader, from any member and any service.

use prometheus::IntGauge;
use tonic::{Code, Response, Status};

use super::context::ApiContext;
use super::header::HasHeaders as _;
use super::leader_request::LeaderRequest;
use engine::log::Slot;
use etcd_types::types::Caller;

/// The metadata of a leader's answer to a forwarded request: the slot below which everything was committed after the request.
const COMMITTED_SLOT_METADATA_KEY: &str = "kubebrain-committed";

impl ApiContext {
    /// Has the leader answer a request, in this member's name. Identifies the client first. If another member leads, waits after that until
    /// this member's view contains the leader's change: reads and watches on this member return it from then on.
    ///
    /// # Errors
    /// The leader's; `request timed out` if there is no leader in time, if it went away and the outcome is unknown, or if this member does
    /// not receive the change in time; `too many requests`; `invalid auth token`.
    pub async fn forward<Q: LeaderRequest>(
        &self,
        mut request: tonic::Request<Q>,
    ) -> Result<Response<Q::Answer>, Status> {
        if Q::IS_IDENTIFIED {
            let caller = self.caller(&request).await?;
            if caller != Caller::Anonymous {
                request.extensions_mut().insert(caller);
            }
        }
        // Only the member that the client contacted counts it.
        let server = (!self.router.is_forwarded()).then_some(&self.metrics.server);
        let pending = server.map(|server| PendingGuard::new(&server.proposals_pending));
        let answering = async {
            let message = request.get_ref();
            let mut attempts = self.router.attempts(message, message.is_patient())?;
            loop {
                let answer = match attempts.leader().await? {
                    None => Q::answer(self, &request).await.map(Response::new),
                    // Boxed: it is large, and would be a part of each request that is answered here.
                    Some(leader) => Box::pin(attempts.ask(leader, &request, Q::ask)).await,
                };
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(failed) => attempts.retry(failed).await?,
                }
            }
        };
        let answer: Result<Response<Q::Answer>, Status> = answering.await;
        drop(pending);
        if let (Some(server), Err(status)) = (server, &answer)
            && status.code() == Code::Unavailable
        {
            server.proposals_failed.inc();
        }
        let mut answer = answer?;
        if self.router.is_forwarded() {
            let committed = self.state.committed().0;
            answer
                .metadata_mut()
                .insert(COMMITTED_SLOT_METADATA_KEY, committed.into());
            return Ok(answer);
        }
        if let Some(committed) = answer.metadata_mut().remove(COMMITTED_SLOT_METADATA_KEY) {
            let slot = committed.to_str().ok().and_then(|slot| slot.parse().ok());
            let slot = slot.ok_or_else(|| Status::internal("etcdserver: the leader did not return a slot"))?;
            let _span = self.part("wait_applied");
            self.wait_applied(Slot(slot)).await?;
        }
        for header in answer.get_mut().headers_mut() {
            header.member_id = self.member_id;
        }
        Ok(answer)
    }
}

/// Counts a request or a task as pending until it is dropped.
pub(super) struct PendingGuard<'a>(&'a IntGauge);

impl<'a> PendingGuard<'a> {
    pub(super) fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
