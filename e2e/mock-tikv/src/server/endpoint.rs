//! A port, and what answers there: PD or one store. It can die and come back at the same port.

use std::io;
use std::net::SocketAddr;

use futures::stream::{Stream, unfold};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::Router;
use tracing::error;

use super::socket::Socket;

/// Reason that a port cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct EndpointError {
    address: SocketAddr,
    source: io::Error,
}

/// A port that is listened on, or was.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// With the port that it got, if it asked for any.
    pub(crate) address: SocketAddr,
    /// Keeps the port from other processes while nothing listens on it.
    _reserved: TcpSocket,
    listener: Option<TcpListener>,
    running: Option<RunningServer>,
}

#[derive(Debug)]
struct RunningServer {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Endpoint {
    /// Takes the port; nothing is answered yet.
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, EndpointError> {
        let error = |source| EndpointError { address, source };
        let reserved = reserve(address).map_err(error)?;
        let address = reserved.local_addr().map_err(error)?;
        let listener = TcpListener::bind(address).await.map_err(error)?;
        Ok(Self {
            address,
            _reserved: reserved,
            listener: Some(listener),
            running: None,
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Answers with `service`, if that is not being done already.
    pub(crate) async fn start(&mut self, service: Router) -> Result<(), EndpointError> {
        if self.is_running() {
            return Ok(());
        }
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => {
                let bound = TcpListener::bind(self.address).await;
                bound.map_err(|source| EndpointError {
                    address: self.address,
                    source,
                })?
            }
        };
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let served =
            service.serve_with_incoming_shutdown(incoming(listener, stop.clone()), stop.clone().cancelled_owned());
        let address = self.address;
        tasks.spawn(async move {
            if let Err(error) = served.await {
                error!(%address, error = &error as &dyn std::error::Error, "stopped serving a port");
            }
        });
        tasks.close();
        self.running = Some(RunningServer { stop, tasks });
        Ok(())
    }

    /// Ends all connections and gives the port up, at once, as kill -9 does.
    pub(crate) async fn stop(&mut self) {
        if let Some(RunningServer { stop, tasks }) = self.running.take() {
            stop.cancel();
            tasks.wait().await;
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.stop.cancel();
        }
    }
}

/// Binds a socket that does not listen. A listener can share its port, but the system gives the port to no other process.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The connections of a listener until `stop`; they end with it.
fn incoming(listener: TcpListener, stop: CancellationToken) -> impl Stream<Item = io::Result<Socket>> {
    unfold((listener, stop), async |(listener, stop)| {
        let accepted = tokio::select! {
            () = stop.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        let socket = accepted.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            Ok(Socket::new(stream, stop.clone()))
        });
        Some((socket, (listener, stop)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_of_a_process_that_was_killed_is_not_given_away() {
        let mut endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let router = || tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
        endpoint.start(router()).await.unwrap();
        endpoint.stop().await;
        let other = TcpSocket::new_v4().unwrap().bind(endpoint.address);
        assert_eq!(other.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::net::TcpStream::connect(endpoint.address).map(drop).unwrap_err();
        endpoint.start(router()).await.unwrap();
        std::net::TcpStream::connect(endpoint.address).unwrap();
        endpoint.stop().await;
    }
}
