//! Requests that failed on their way to the leader: those that it certainly did not begin may be retried.

use std::error::Error;

use tonic::Status;

/// Returns true if the leader certainly did not begin the request: there was no connection, the connection closed before the
/// request was sent, or HTTP/2 reports so: by a stream id above the last one in a GOAWAY, or by a refused stream (RFC 9113, 6.8 and
/// 8.7).
pub(super) fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_canceled() || error.is_closed())
        {
            return true;
        }
        if let Some(error) = error.downcast_ref::<h2::Error>()
            && error.is_remote()
            && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
        {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use etcd_types::pb::peerpb::ReadIndexRequest;
    use etcd_types::pb::peerpb::peer_client::PeerClient;
    use runtime::tasks::Owned;
    use tokio::net::{TcpListener, TcpStream};
    use tonic::transport::Channel;

    type Connected = h2::server::Connection<TcpStream, Bytes>;

    async fn listener() -> (TcpListener, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, Channel::from_shared(url).unwrap().connect_lazy())
    }

    async fn accept(listener: &TcpListener) -> Connected {
        let (stream, _) = listener.accept().await.unwrap();
        h2::server::handshake(stream).await.unwrap()
    }

    async fn ask(channel: Channel) -> Status {
        PeerClient::new(channel)
            .read_index(ReadIndexRequest {})
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn streams_above_the_last_of_a_goaway_were_not_begun() {
        let (listener, channel) = listener().await;
        let server = async {
            let mut h2 = accept(&listener).await;
            let goaway = std::future::poll_fn(|cx| {
                // The request may be in flight already: it is not accepted.
                h2.abrupt_shutdown(h2::Reason::NO_ERROR);
                h2.poll_closed(cx)
            });
            // The client closes the connection.
            drop(goaway.await);
        };
        let (refused, ()) = tokio::join!(ask(channel), server);
        assert!(was_not_sent(&refused), "{refused:?}");
    }

    #[tokio::test]
    async fn requests_behind_a_goaway_were_not_sent() {
        let (listener, channel) = listener().await;
        let (told, heard) = tokio::sync::oneshot::channel();
        let server = async {
            let mut h2 = accept(&listener).await;
            let (_request, _respond) = h2.accept().await.unwrap().unwrap();
            h2.graceful_shutdown();
            // Until the client has answered the ping that follows the GOAWAY.
            let mut ping = h2.ping_pong().unwrap();
            tokio::select! {
                accepted = h2.accept() => assert!(accepted.is_none()),
                pong = ping.ping(h2::Ping::opaque()) => drop(pong.unwrap()),
            }
            told.send(()).unwrap();
            drop(listener);
            while h2.accept().await.is_some() {}
        };
        let under_way = Owned::start(ask(channel.clone()));
        let client = async {
            heard.await.unwrap();
            let refused = ask(channel).await;
            under_way.abort().await;
            refused
        };
        let (refused, ()) = tokio::join!(client, server);
        assert!(was_not_sent(&refused), "{refused:?}");
    }

    #[tokio::test]
    async fn refused_streams_were_not_begun() {
        let (listener, channel) = listener().await;
        let server = async {
            let mut h2 = accept(&listener).await;
            let (_request, mut respond) = h2.accept().await.unwrap().unwrap();
            respond.send_reset(h2::Reason::REFUSED_STREAM);
            while h2.accept().await.is_some() {}
        };
        let refused = tokio::select! {
            refused = ask(channel) => refused,
            () = server => panic!("the connection ended"),
        };
        assert!(was_not_sent(&refused), "{refused:?}");
    }

    #[tokio::test]
    async fn requests_that_were_taken_may_have_been_begun() {
        let (listener, channel) = listener().await;
        let server = async {
            let mut h2 = accept(&listener).await;
            let (_request, _respond) = h2.accept().await.unwrap().unwrap();
            // The connection breaks.
        };
        let (failed, ()) = tokio::join!(ask(channel), server);
        assert!(!was_not_sent(&failed), "{failed:?}");
        let (listener, channel) = super::tests::listener().await;
        let server = async {
            let mut h2 = accept(&listener).await;
            let (_request, mut respond) = h2.accept().await.unwrap().unwrap();
            respond.send_reset(h2::Reason::CANCEL);
            while h2.accept().await.is_some() {}
        };
        let failed = tokio::select! {
            failed = ask(channel) => failed,
            () = server => panic!("the connection ended"),
        };
        assert!(!was_not_sent(&failed), "{failed:?}");
    }
}
