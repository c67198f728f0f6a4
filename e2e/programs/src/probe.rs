//! The little HTTP that readiness checks through a Unix socket and commands to the mock of TiKV need.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// The most bytes of an answer: a page of metrics has some 100 kB.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// The body of a good answer to `GET path`.
///
/// # Errors
///
/// No connection, or an answer other than 200.
pub async fn get(socket: &Path, path: &str) -> anyhow::Result<String> {
    let stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("connect to {}", socket.display()))?;
    ask(stream, "GET", path, "").await
}

/// The body of a good answer of a server at `address` to a request with a body of JSON, or with none.
///
/// # Errors
///
/// No connection, or an answer other than 200.
pub async fn command(address: &str, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    ask(stream, method, path, body).await
}

async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<String> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let content = match body.len() {
        0 => String::new(),
        length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    stream
        .write_all(format!("{head}{content}\r\n{body}").as_bytes())
        .await?;
    let mut answer = Vec::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_end(&mut answer)
        .await
        .with_context(|| format!("read the answer to {method} {path}"))?;
    ensure!(
        (answer.len() as u64) < MAX_ANSWER_BYTES,
        "the answer to {method} {path} is longer than {MAX_ANSWER_BYTES} bytes"
    );
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        Some((head, body)) => bail!("{method} {path}: {}: {body}", head.lines().next().unwrap_or_default()),
        None => bail!("{method} {path}: the connection was closed without an answer"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn long_answers_are_whole_or_an_error() {
        for (length, is_whole) in [(200_000, true), (usize::try_from(MAX_ANSWER_BYTES).unwrap(), false)] {
            let (ours, mut theirs) = duplex(1 << 20);
            let serving = async move {
                let answer = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(length));
                // the client may not read all of it
                let _ = theirs.write_all(answer.as_bytes()).await;
            };
            let (answer, ()) = tokio::join!(ask(ours, "GET", "/metrics", ""), serving);
            assert_eq!(answer.ok().map(|body| body.len()), is_whole.then_some(length));
        }
    }
}
