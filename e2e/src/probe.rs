//! The little HTTP that a readiness check through a Unix socket needs.

use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// The most of an answer that is read, in bytes.
const LIMIT: u64 = 64 << 10;

/// The body of a good answer to `GET path`.
///
/// # Errors
///
/// No connection, or an answer other than 200.
pub async fn get(socket: &Path, path: &str) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(socket)
        .await
        .with_context(|| format!("connect to {}", socket.display()))?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut answer = Vec::new();
    stream
        .take(LIMIT)
        .read_to_end(&mut answer)
        .await
        .with_context(|| format!("read the answer to GET {path}"))?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => Ok(body.to_owned()),
        Some((head, body)) => bail!("GET {path}: {}: {body}", head.lines().next().unwrap_or_default()),
        None => bail!("GET {path}: the connection was closed without an answer"),
    }
}
