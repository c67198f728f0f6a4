//! h2load: a generator of requests that is light enough not to be what is measured.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use programs::server::Server;

/// Number of requests in flight at once, as connections times streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLoad {
    /// Connections.
    pub(crate) clients: u32,
    /// Streams on each.
    pub(crate) streams: u32,
    /// Requests in all.
    pub(crate) requests: u64,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadResult {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Bytes of all response bodies, gRPC's frames included.
    pub(crate) body_bytes: u64,
}

impl RequestLoad {
    /// In flight at once.
    pub(crate) fn in_flight(&self) -> u32 {
        self.clients * self.streams
    }

    /// Sends one body again and again. Blocks.
    ///
    /// # Errors
    ///
    /// h2load cannot be started, or a request failed below gRPC. gRPC's status is not checked: the caller sees errors from what the
    /// requests did, or from the bytes of the bodies, because an error has no body.
    pub(crate) fn run(&self, server: &Server, method: &str, body: &Path) -> anyhow::Result<LoadResult> {
        let output = self.command(server, method, body).output().context("start h2load")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!(
                "h2load: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim_end()
            );
        }
        let (outcome, succeeded) = read(&text).with_context(|| format!("h2load said:\n{text}"))?;
        ensure!(
            succeeded == self.requests,
            "{succeeded} of {} requests succeeded:\n{text}",
            self.requests
        );
        Ok(outcome)
    }

    /// Starts to send one body again and again. The caller sees from what the requests do if they succeed.
    ///
    /// # Errors
    ///
    /// h2load cannot be started.
    pub(crate) fn start(&self, server: &Server, method: &str, body: &Path) -> anyhow::Result<tokio::process::Child> {
        let mut command = tokio::process::Command::from(self.command(server, method, body));
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        command.spawn().context("start h2load")
    }

    fn command(&self, server: &Server, method: &str, body: &Path) -> Command {
        let mut command = Command::new("h2load");
        command.args(["-t", "1", "-n", &self.requests.to_string()]);
        command.args(["-c", &self.clients.to_string(), "-m", &self.streams.to_string()]);
        command
            .args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"])
            .arg(body);
        command.arg(format!("{}/{method}", server.endpoint()));
        command
    }
}

/// From lines such as `finished in 1.02s, 9803.92 req/s, 1.2MB/s`, `requests: 10 total, … 10 succeeded, …` and
/// `traffic: 1.1MB (1153434) total, 13B (13) headers (space savings 9%), 1.0MB (1048576) data`.
fn read(text: &str) -> Option<(LoadResult, u64)> {
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let rate = word_before(line("finished in ")?, " req/s")?.parse().ok()?;
    let succeeded = word_before(line("requests: ")?, " succeeded")?.parse().ok()?;
    let data = word_before(line("traffic: ")?, " data")?;
    let body_bytes = data.trim_matches(['(', ')']).parse().ok()?;
    Some((LoadResult { rate, body_bytes }, succeeded))
}

/// The word before `end`.
fn word_before<'a>(line: &'a str, end: &str) -> Option<&'a str> {
    line.split_once(end)?.0.rsplit(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_what_h2load_says() {
        let text = "starting benchmark...\n\nfinished in 1.02s, 9803.92 req/s, 1.2MB/s\n\
                    requests: 10 total, 10 started, 10 done, 9 succeeded, 1 failed, 0 errored, 0 timeout\n\
                    status codes: 9 2xx, 0 3xx, 0 4xx, 1 5xx\n\
                    traffic: 1.10MB (1153434) total, 13B (13) headers (space savings 9.00%), 1.00MB (1048576) data\n";
        assert_eq!(
            read(text),
            Some((
                LoadResult {
                    rate: 9803.92,
                    body_bytes: 1_048_576
                },
                9
            ))
        );
        assert_eq!(read("error: connection refused\n"), None);
    }
}
