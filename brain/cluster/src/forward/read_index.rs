//! Reads on a follower: one read index request to the leader for all waiting reads.

use std::time::Duration;

use tonic::Status;
use tonic::transport::Channel;

use engine::log::Slot;
use etcd_types::errors::Error;
use etcd_types::pb::peerpb::ReadIndexRequest;
use etcd_types::pb::peerpb::peer_client::PeerClient;

/// The queue of reads that need the leader's commit index. Reads that arrive while one request is in flight share the next one.
#[derive(Debug, Clone)]
pub struct ReadIndexBatcher(tokio::sync::mpsc::Sender<tokio::sync::oneshot::Sender<Slot>>);

/// The shortest timeout of one request: the leader answers it from memory. It is the duration of the leader's lock if that is longer:
/// with strict reads the leader asks storage first.
const MIN_READ_INDEX_TIMEOUT: Duration = Duration::from_secs(2);

/// Queue capacity; further reads block on send.
const READ_QUEUE_CAPACITY: usize = 10_000;

impl ReadIndexBatcher {
    /// Creates the queue, and the task that sends requests to the leader over `channel`; the task ends when the leader does not answer.
    pub fn new(
        channel: Channel,
        max_message: usize,
        lease_duration: Duration,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (queue, mut waiting) =
            tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<Slot>>(READ_QUEUE_CAPACITY);
        let timeout = lease_duration.max(MIN_READ_INDEX_TIMEOUT);
        let task = async move {
            let mut client = PeerClient::new(channel).max_decoding_message_size(max_message);
            while let Some(first) = waiting.recv().await {
                let mut asked = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    asked.push(next);
                }
                let asks = client.read_index(ReadIndexRequest {});
                let answer = match tokio::time::timeout(timeout, asks).await {
                    Ok(Ok(answer)) => answer,
                    // The leader's storage did not answer a strict read, or it has no memory for more requests: the waiting reads
                    // are tried again.
                    Ok(Err(status)) if is_busy(&status) => continue,
                    Ok(Err(_)) | Err(_) => return,
                };
                let committed = Slot(answer.get_ref().committed);
                for read in asked {
                    // The reader may be gone.
                    let _gone = read.send(committed);
                }
            }
        };
        (Self(queue), task)
    }

    /// Returns the leader's answer to a request sent after this call; `None` if the leader does not answer.
    pub(super) async fn ask(&self) -> Option<Slot> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.0.send(reply).await.ok()?;
        answer.await.ok()
    }
}

/// Returns true if the leader was reached but could not answer.
fn is_busy(status: &Status) -> bool {
    [Error::Timeout, Error::TooManyRequests]
        .iter()
        .any(|error| status.message() == error.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_types::REQUEST_TIMEOUT;

    #[test]
    fn leader_without_memory_is_asked_again() {
        assert!(is_busy(&Error::TooManyRequests.into()));
        assert!(!is_busy(&Error::NotLeader.into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_nobody_answers_is_given_up() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let channel = Channel::from_shared(url).unwrap().connect_lazy();
        let (reads, asking) = ReadIndexBatcher::new(channel, 1024, Duration::ZERO);
        let both = async { tokio::join!(reads.ask(), asking) };
        let (answer, ()) = tokio::time::timeout(REQUEST_TIMEOUT, both).await.unwrap();
        assert_eq!(answer, None);
    }
}
