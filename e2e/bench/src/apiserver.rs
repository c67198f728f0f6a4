//! The time until a kube-apiserver is ready, on an empty store.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use programs::progress::Progress;
use programs::server::{self, Program, Server};
use programs::tools::cache::ToolCache;
use programs::tools::go;
use tokio::time::{Instant, sleep};

use crate::disk::ServerDir;
use crate::report::{Report, Unit};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Starts both, waits, ends both.
pub(crate) async fn measure(
    program: &Program,
    dir: &Path,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    let path = go::KUBERNETES
        .build(&ToolCache::open()?, progress)?
        .join("kube-apiserver");
    let apiserver = Program {
        name: "kube-apiserver",
        path,
    };
    let place = ServerDir::new(dir)?;
    let store = Server::start_in(program, &place.data(), &[])?;
    let port = server::free_ports()?.client;
    let mut command = server::command(&apiserver);
    command.args(arguments(&place, &store, port)?);
    let output = std::fs::File::create(place.file("log"))?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    let client = client(port)?;
    let began = Instant::now();
    let mut child = server::spawn(command)?;
    let outcome = wait(&client, &mut child, began).await;
    child.kill().context("end kube-apiserver")?;
    child.wait()?;
    let took = outcome.with_context(|| last_lines(&place.file("log")))?;
    report.add(
        "kube-apiserver ready after",
        Unit::Seconds,
        program.name,
        took.as_secs_f64(),
    );
    store.stop()
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

async fn wait(client: &kube::Client, child: &mut std::process::Child, began: Instant) -> anyhow::Result<Duration> {
    loop {
        match ready(client).await {
            Ok(()) => return Ok(began.elapsed()),
            Err(error) if began.elapsed() > READY_TIMEOUT => return Err(error.context("kube-apiserver is not ready")),
            Err(_) => {}
        }
        if let Some(status) = child.try_wait()? {
            bail!("kube-apiserver ended: {status}");
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn ready(client: &kube::Client) -> anyhow::Result<()> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    let answer = client.request_text(request).await?;
    ensure!(answer == "ok", "/readyz says: {answer}");
    Ok(())
}

fn arguments(place: &ServerDir, store: &Server, port: u16) -> anyhow::Result<Vec<String>> {
    let keys = rcgen::KeyPair::generate()?;
    let (private, public) = (place.file("sa.key"), place.file("sa.pub"));
    std::fs::write(&private, keys.serialize_pem())?;
    std::fs::write(&public, keys.public_key_pem())?;
    Ok(vec![
        format!("--etcd-servers={}", store.endpoint()),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=192.0.2.1".to_owned(), // for documentation: nobody connects to it
        "--service-cluster-ip-range=198.51.100.0/24".to_owned(),
        "--authorization-mode=RBAC".to_owned(), // lets anybody ask whether it is ready
        format!("--cert-dir={}", place.file("certs").display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", public.display()),
        format!("--service-account-signing-key-file={}", private.display()),
    ])
}

/// The server makes its own certificate when it starts, so no certificate can be trusted in advance.
fn client(port: u16) -> anyhow::Result<kube::Client> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.accept_invalid_certs = true;
    Ok(kube::Client::try_from(config)?)
}
