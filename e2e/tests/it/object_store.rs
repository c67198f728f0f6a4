//! An object store: rclone serves a directory over the protocol of S3, with TLS and credentials, in a cluster's network. Its objects outlive
//! the process and the cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use e2e_cluster::cluster_dir::ClusterDir;
use e2e_cluster::namespace::{NODE, NetworkNamespace};
use e2e_cluster::supervisor::tail;
use programs::progress::Progress;
use programs::server::{self, Program};
use programs::tools::cache::ToolCache;
use programs::tools::go;
use rcgen::ExtendedKeyUsagePurpose;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::operator::pki::Authority;

/// The bucket of all objects.
const BUCKET: &str = "backups";
/// The Secrets with the right credentials, and with wrong ones.
const CREDENTIALS: &str = "object-store";
pub(crate) const WRONG_CREDENTIALS: &str = "wrong-credentials";
/// The ConfigMap with the authority of its certificate.
const TRUSTED: &str = "object-store-ca";
const ACCESS_KEY: &str = "e2e";
const SECRET_KEY: &str = "e2e-secret";
const ROTATED_KEY: &str = "e2e-secret-2";
/// Its name, which begins that of its log.
const NAME: &str = "rclone";
const PORTS: std::ops::Range<u16> = 20_000..30_000;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The store. Its process ends when this is dropped.
pub(crate) struct ObjectStore {
    directory: TempDir,
    program: PathBuf,
    authority: Authority,
    /// Its port, once it has run: others run in the same network.
    port: Option<u16>,
    process: Option<Child>,
    secret_key: &'static str,
}

impl ObjectStore {
    /// Makes one with an empty bucket; it does not run.
    pub(crate) fn create(progress: &Progress) -> Self {
        let program = go::RCLONE.build(&ToolCache::open().unwrap(), progress).unwrap();
        let directory = TempDir::new().unwrap();
        fs::create_dir_all(directory.path().join("objects").join(BUCKET)).unwrap();
        let authority = Authority::new("object store");
        let pair = authority.secret_for("", NAME, &[NODE], &[ExtendedKeyUsagePurpose::ServerAuth]);
        for file in ["tls.crt", "tls.key"] {
            let text = pair["stringData"][file].as_str().unwrap();
            fs::write(directory.path().join(file), text).unwrap();
        }
        Self {
            directory,
            program: program.join(NAME),
            authority,
            port: None,
            process: None,
            secret_key: SECRET_KEY,
        }
    }

    /// Starts the process in the network of a cluster, and waits until it takes connections. For use inside of that network.
    pub(crate) async fn start(&mut self, home: &ClusterDir) {
        let port = *self.port.get_or_insert_with(|| {
            // below those that the kernel gives to connections
            let free = |port: &u16| std::net::TcpListener::bind((NODE, *port)).is_ok();
            let mut ports = std::iter::repeat_with(|| rand::random_range(PORTS));
            ports.find(free).expect("there are many")
        });
        let (nsenter, enter) = NetworkNamespace::of(home).enter(&self.program);
        let mut command = server::command(&Program {
            name: NAME,
            path: nsenter,
        });
        let path = |inside: &str| self.directory.path().join(inside);
        command.args(enter).args(["serve", "s3"]).arg(path("objects"));
        command.arg(format!("--addr={NODE}:{port}"));
        command.arg(format!("--auth-key={ACCESS_KEY},{}", self.secret_key));
        command.arg("--cert").arg(path("tls.crt"));
        command.arg("--key").arg(path("tls.key"));
        // tests change files, too
        command.args(["--dir-cache-time=1s", "--config="]);
        command.arg("--cache-dir").arg(path("cache"));
        let log_name = format!("{NAME}-{port}");
        let log = home.open_log(&log_name).unwrap();
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        let process = self.process.insert(server::spawn(command).unwrap());
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(error) = TcpStream::connect((NODE, port)).await {
            let log = tail(&home.log(&log_name));
            assert_eq!(process.try_wait().unwrap(), None, "rclone ended:\n{log}");
            assert!(Instant::now() < deadline, "rclone does not serve: {error}\n{log}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Kills the process; the objects stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Suspends the process: connections are taken, and nothing is answered.
    pub(crate) fn suspend(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        let pid = Pid::from_child(process);
        kill_process(pid, signal).unwrap();
    }

    /// Has it take other credentials from its next start on. Returns the Secret with them, which `named` has with the former ones.
    pub(crate) fn rotate_credentials(&mut self) -> Value {
        self.secret_key = ROTATED_KEY;
        Self::credentials(CREDENTIALS, ROTATED_KEY)
    }

    /// The directory with the objects below a prefix.
    pub(crate) fn objects(&self, prefix: &str) -> PathBuf {
        self.path_of_bucket().join(prefix)
    }

    fn path_of_bucket(&self) -> PathBuf {
        let path: &Path = self.directory.path();
        path.join("objects").join(BUCKET)
    }

    /// The destination below a prefix, as resources name it.
    pub(crate) fn destination(&self, prefix: &str) -> Value {
        self.destination_with(prefix, CREDENTIALS)
    }

    /// The same with the credentials in this Secret.
    pub(crate) fn destination_with(&self, prefix: &str, credentials: &str) -> Value {
        let port = self.port.expect("the store has run");
        json!({"s3": {
            "bucket": BUCKET,
            "prefix": prefix,
            "endpoint": format!("https://{NODE}:{port}"),
            "credentialsSecretRef": {"name": credentials},
            "caBundleRef": {"kind": "ConfigMap", "name": TRUSTED},
        }})
    }

    /// The objects that [`destination`](Self::destination) names.
    pub(crate) fn named(&self) -> [Value; 3] {
        let trusted = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRUSTED},
            "data": {"ca.crt": self.authority.certificate},
        });
        [
            trusted,
            Self::credentials(CREDENTIALS, SECRET_KEY),
            Self::credentials(WRONG_CREDENTIALS, "wrong"),
        ]
    }

    /// A Secret with the store's credentials, under a name.
    pub(crate) fn right_credentials(&self, name: &str) -> Value {
        Self::credentials(name, self.secret_key)
    }

    fn credentials(name: &str, secret: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret},
        })
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // One that has ended before is what is wanted too.
            drop(process.kill());
            drop(process.wait());
        }
    }
}
