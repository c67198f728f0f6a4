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
        let Accepted::Tcp(stream) = accepted.unwrap() else {
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
    assert!(matches!(accepted.unwrap(), Accepted::Unix(_)));
    dialled.unwrap();
    drop(listener);

    std::fs::write(&path, "precious").unwrap();
    assert!(format!("{:#}", bind(&url).unwrap_err()).contains("not a socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}
