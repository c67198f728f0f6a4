//! Finds out whether a server that does not answer plain requests speaks TLS.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time limit for a server's answer to the first message.
const TLS_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A ClientHello of TLS 1.2 in one record, with one cipher suite and no extensions: a server that speaks TLS answers it with a
/// ServerHello or an alert, in a record of TLS either way.
fn client_hello() -> Vec<u8> {
    let mut body = vec![3, 3]; // TLS 1.2
    body.extend([0x4b; 32]); // the random number
    body.push(0); // no session
    body.extend([0, 2, 0xc0, 0x2f]); // ECDHE-RSA-AES128-GCM-SHA256
    body.extend([1, 0]); // no compression
    let mut message = vec![1, 0, 0, u8::try_from(body.len()).unwrap_or(u8::MAX)];
    message.extend(body);
    let mut record = vec![22, 3, 1, 0, u8::try_from(message.len()).unwrap_or(u8::MAX)];
    record.extend(message);
    record
}

/// Returns true if the server at `url` answers a ClientHello with a record of TLS: a handshake or an alert.
pub(super) async fn speaks_tls(url: &str, timeout: Duration) -> bool {
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    let ask = async {
        let mut stream = TcpStream::connect(host.trim_end_matches('/')).await?;
        stream.write_all(&client_hello()).await?;
        let mut head = [0; 2];
        stream.read_exact(&mut head).await?;
        std::io::Result::Ok(head)
    };
    let answer = tokio::time::timeout(timeout.min(TLS_PROBE_TIMEOUT), ask).await;
    matches!(answer, Ok(Ok([21 | 22, 3])))
}
