use tempfile::TempDir;

use super::*;

fn bind(url: &str) -> anyhow::Result<Listener> {
    Listener::bind(&Url::parse(url).unwrap(), SocketOptions::default())
}

#[tokio::test]
async fn tcp_listens_where_it_is_told() {
    for (url, prefix) in [
        ("http://127.0.0.1:0", "http://127.0.0.1:"),
        ("https://localhost:0", "https://127.0.0.1:"),
    ] {
        let listener = bind(url).unwrap();
        let bound = listener.bound().unwrap();
        let port = bound.strip_prefix(prefix).unwrap();
        assert_ne!(port, "0");
        let (accepted, dialled) = tokio::join!(listener.accept(), TcpStream::connect(format!("127.0.0.1:{port}")));
        dialled.unwrap();
        let AcceptedSocket::Tcp(stream) = accepted.unwrap() else {
            panic!("not TCP")
        };
        assert!(stream.nodelay().unwrap());
        let error = format!("{:#}", bind(&bound).unwrap_err());
        assert!(
            error.contains(&format!("cannot listen on {bound}")) && error.contains("in use"),
            "{error}"
        );
    }
}

/// On a machine without IPv6, the wildcard listens on the IPv4 addresses only.
#[tokio::test]
async fn wildcard_listens_on_all_families() {
    let listener = bind("http://[::]:0").unwrap();
    let bound = listener.bound().unwrap();
    let port = bound.rsplit(':').next().unwrap();
    let has_ipv6 = bound.starts_with("http://[::]:");
    let loopbacks = ["127.0.0.1", "::1"].into_iter().take(if has_ipv6 { 2 } else { 1 });
    for loopback in loopbacks {
        let ip: IpAddr = loopback.parse().unwrap();
        let dialled = TcpStream::connect(SocketAddr::new(ip, port.parse().unwrap()));
        let (accepted, dialled) = tokio::join!(listener.accept(), dialled);
        dialled.unwrap_or_else(|error| panic!("{loopback}: {error}"));
        assert_eq!(accepted.unwrap().ip(), Some(ip));
    }
}

#[test]
fn wildcard_falls_back_to_ipv4_where_there_is_no_ipv6() {
    use rustix::io::Errno;
    let v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let refusing = |errno: Errno| {
        move |ip: IpAddr| {
            if ip.is_ipv6() {
                Err(io::Error::from(errno))
            } else {
                Ok(ip)
            }
        }
    };
    for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
        assert_eq!(families(v6, refusing(errno)).unwrap(), v4);
        let one = "::1".parse().unwrap();
        assert!(
            families(one, refusing(errno)).is_err(),
            "only every address has a substitute"
        );
    }
    assert!(families(v6, refusing(Errno::ADDRINUSE)).is_err());
    assert_eq!(families(v6, Ok).unwrap(), v6);
}

#[tokio::test]
async fn a_socket_file_is_replaced_only_when_nobody_listens() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    let url = format!("unix://{}", path.display());
    let listener = bind(&url).unwrap();
    assert!(format!("{:#}", bind(&url).unwrap_err()).contains("another process listens"));
    drop(listener);
    assert!(!path.exists());

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (listener, dialled) = (bind(&url).unwrap(), UnixStream::connect(&path));
    let (accepted, dialled) = tokio::join!(listener.accept(), dialled);
    assert!(matches!(accepted.unwrap(), AcceptedSocket::Unix(_)));
    dialled.unwrap();
    drop(listener);

    std::fs::write(&path, "precious").unwrap();
    assert!(format!("{:#}", bind(&url).unwrap_err()).contains("not a socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}
