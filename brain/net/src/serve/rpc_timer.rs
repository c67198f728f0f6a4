//! A unary RPC of a client that is timed, for the log of slow ones.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use tokio::time::Instant;

use super::framing::MESSAGE_PREFIX_BYTES;
use telemetry::metrics::is_unary;
use telemetry::slow_requests::{RpcLog, UnaryExchange};

/// An RPC that is timed. It is logged when it is dropped, if it took long: its client may have gone away, or its deadline be over.
pub(super) struct RpcTimer {
    log: RpcLog,
    client: Option<SocketAddr>,
    uri: Uri,
    began: Instant,
    /// The time until the service answered.
    took: Option<Duration>,
    /// The request and its answer, with the header of the message.
    request: Bytes,
    answer: Option<Bytes>,
}

impl RpcTimer {
    /// Begins to time an RPC of etcd's services. Those for locks and elections wait for other clients, which is not slow.
    pub(super) fn begin(log: RpcLog, client: Option<SocketAddr>, uri: &Uri, request: Bytes) -> Option<Self> {
        let is_timed = uri.path().starts_with("/etcdserverpb.") && is_unary(uri.path());
        is_timed.then(|| Self {
            log,
            client,
            uri: uri.clone(),
            began: Instant::now(),
            took: None,
            request,
            answer: None,
        })
    }

    /// Records that the service has answered. Returns it if it must be logged.
    pub(super) fn answered(mut self) -> Option<Self> {
        let took = self.began.elapsed();
        self.took = Some(took);
        self.log.is_logged(took).then_some(self)
    }

    /// Logs it with the first bytes of its answer, which are all of it.
    pub(super) fn end(mut self, answer: Option<&Bytes>) {
        self.answer = answer.cloned();
    }
}

impl Drop for RpcTimer {
    fn drop(&mut self) {
        let took = self.took.unwrap_or_else(|| self.began.elapsed());
        if !self.log.is_logged(took) {
            return;
        }
        let message = |bytes: Bytes| bytes.slice(MESSAGE_PREFIX_BYTES.min(bytes.len())..);
        let rpc = UnaryExchange {
            path: self.uri.path(),
            request: message(std::mem::take(&mut self.request)),
            answer: self.answer.take().map(message),
        };
        self.log.log(took, self.client, rpc);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use telemetry::slow_requests::RequestStats;

    static DESCRIBED: Mutex<Vec<(Bytes, Option<Bytes>)>> = Mutex::new(Vec::new());

    const SLOW_RPC_TIME: Duration = Duration::from_millis(300);

    fn begin(path: &'static str) -> Option<RpcTimer> {
        let log = RpcLog::new(SLOW_RPC_TIME, |rpc| {
            DESCRIBED.lock().unwrap().push((rpc.request, rpc.answer));
            RequestStats::default()
        });
        RpcTimer::begin(log, None, &Uri::from_static(path), Bytes::from_static(b"\0\0\0\0\x01q"))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_rpcs_are_described_answered_or_not() {
        let tick = Duration::from_millis(1);
        for path in [
            "/v3lockpb.Lock/Lock",
            "/etcdserverpb.Maintenance/Snapshot",
            "/etcdserverpb.KV/No",
        ] {
            assert!(begin(path).is_none(), "{path}");
        }
        let rpc = || begin("/etcdserverpb.KV/Put").unwrap();
        let (fast, slow, gone) = (rpc(), rpc(), rpc());
        tokio::time::advance(SLOW_RPC_TIME).await;
        assert!(fast.answered().is_none());
        tokio::time::advance(tick).await;
        slow.answered()
            .unwrap()
            .end(Some(&Bytes::from_static(b"\0\0\0\0\x01a")));
        drop(gone);
        let expected = [
            (Bytes::from_static(b"q"), Some(Bytes::from_static(b"a"))),
            (Bytes::from_static(b"q"), None),
        ];
        assert_eq!(*DESCRIBED.lock().unwrap(), expected);
    }
}
