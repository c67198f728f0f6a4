//! The time until a kube-apiserver is ready, on an empty store.

use std::path::Path;
use std::time::Duration;

use programs::progress::Progress;
use programs::server::{self, Program, Server};
use programs::tools::cache::ToolCache;
use programs::tools::go;
use tokio::time::Instant;

use crate::disk::ServerDir;
use crate::kubernetes::component::Component;
use crate::kubernetes::control_plane::ready;
use crate::report::{Report, Unit};

const READY_TIMEOUT: Duration = Duration::from_secs(120);

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
    let args = arguments(&place, &store, port)?;
    let client = client(port)?;
    let began = Instant::now();
    let mut running = Component::start(&apiserver, &args, place.file("log"))?;
    running.until(READY_TIMEOUT, async || ready(&client).await).await?;
    let took = began.elapsed();
    drop(running);
    report.add(
        "kube-apiserver ready after",
        Unit::Seconds,
        program.name,
        took.as_secs_f64(),
    );
    store.stop()
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
