//! Listening sockets: TCP, and Unix sockets in the file system.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use etcd_types::url::Url;

/// Socket options of TCP listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
}

/// The backlog of connections that the kernel accepts in advance.
const ACCEPT_BACKLOG: u32 = 4096;

/// The time without traffic after which the kernel probes whether a peer is still alive.
const TCP_KEEPALIVE_TIME: Duration = Duration::from_secs(30);

/// A bound socket. The file of a Unix socket is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: ListenerSocket,
    url: Url,
}

#[derive(Debug)]
enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// An accepted connection.
#[derive(Debug)]
pub enum AcceptedSocket {
    /// From the network.
    Tcp(TcpStream),
    /// From this machine.
    Unix(UnixStream),
}

impl AcceptedSocket {
    /// Returns the address of the other end, if it has one; an IPv4 address also on a dual-stack socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            AcceptedSocket::Tcp(stream) => stream.peer_addr().map(|address| address.ip().to_canonical()).ok(),
            AcceptedSocket::Unix(_) => None,
        }
    }
}

impl Listener {
    /// Binds to a URL; port 0 takes any free port. Must be called inside a runtime. Fails if the address is in use or not local.
    pub fn bind(url: &Url, options: SocketOptions) -> anyhow::Result<Listener> {
        let socket = match url.host_port() {
            Some((host, port)) => tcp(host, port, options),
            None => unix(url.address()),
        };
        let socket = socket.with_context(|| format!("cannot listen on {url}"))?;
        Ok(Listener {
            socket,
            url: url.clone(),
        })
    }

    /// Returns the requested URL.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the URL with the bound port.
    pub fn bound(&self) -> io::Result<String> {
        let url = self.url.to_string();
        Ok(match &self.socket {
            ListenerSocket::Tcp(listener) => {
                let scheme = url.split("://").next().unwrap_or("http");
                format!("{scheme}://{}", listener.local_addr()?)
            }
            ListenerSocket::Unix(..) => url,
        })
    }

    /// Accepts the next connection. Fails with the kernel's error; most are transient.
    pub async fn accept(&self) -> io::Result<AcceptedSocket> {
        match &self.socket {
            ListenerSocket::Unix(listener, _) => Ok(AcceptedSocket::Unix(listener.accept().await?.0)),
            ListenerSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                probe(&stream)?;
                Ok(AcceptedSocket::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenerSocket::Unix(_, path) = &self.socket
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.display(), "the socket's file did not exist");
        }
    }
}

fn tcp(host: &str, port: u16, options: SocketOptions) -> anyhow::Result<ListenerSocket> {
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip.parse().context("not an IP address")?,
    };
    Ok(ListenerSocket::Tcp(families(ip, |ip| listen(ip, port, options))?))
}

/// Listens on all addresses for the IPv6 wildcard; on a machine without IPv6, on all IPv4 addresses.
fn families<T>(ip: IpAddr, listen: impl Fn(IpAddr) -> io::Result<T>) -> io::Result<T> {
    let answer = listen(ip);
    let Err(error) = &answer else { return answer };
    if ip != IpAddr::V6(Ipv6Addr::UNSPECIFIED) || !lacks_family(error) {
        return answer;
    }
    tracing::info!(%error, "no IPv6 on this machine: listening on every IPv4 address instead");
    listen(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Returns true if the error means that this machine has no addresses of the family: the kernel lacks it, or it is disabled.
fn lacks_family(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    errno.is_some_and(|errno| [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL].contains(&errno))
}

fn listen(ip: IpAddr, port: u16, options: SocketOptions) -> io::Result<TcpListener> {
    let socket = if ip.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Dual-stack, as in Go, whatever the machine's default is.
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Go always sets this on listeners: without it, a restart within a minute fails.
    socket.set_reuseaddr(true)?;
    if options.reuse_port {
        socket.set_reuseport(true)?;
    }
    socket.bind(SocketAddr::new(ip, port))?;
    socket.listen(ACCEPT_BACKLOG)
}

fn unix(address: &str) -> anyhow::Result<ListenerSocket> {
    let path = PathBuf::from(address);
    match std::fs::symlink_metadata(&path) {
        Ok(metadata) if !metadata.file_type().is_socket() => bail!("a file that is not a socket exists there"),
        Ok(_) if std::os::unix::net::UnixStream::connect(&path).is_ok() => bail!("another process listens on it"),
        // Left by a killed process.
        Ok(_) => std::fs::remove_file(&path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(ListenerSocket::Unix(UnixListener::bind(&path)?, path))
}

/// Enables keepalive probes, so that the kernel detects vanished peers.
fn probe(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE_TIME)?;
    sockopt::set_tcp_keepintvl(stream, TCP_KEEPALIVE_TIME)?;
    Ok(())
}

#[cfg(test)]
mod tests;
