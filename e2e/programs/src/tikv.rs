//! A TiKV cluster for brains: the mock in a process of its own, or a real one that `TIKV_PD` names.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::probe;
use crate::server::{self, Program};
use crate::tools::own;

mod pd;
pub mod real;

/// The environment variable with addresses of a real cluster's PD.
pub const REAL_PD_VARIABLE: &str = "TIKV_PD";

/// Storage of a test's brains.
#[derive(Debug)]
pub struct Tikv {
    pd: String,
    mock_tikv: Option<MockTikv>,
}

impl Tikv {
    /// A mock in memory, or the cluster that `TIKV_PD` names.
    ///
    /// # Errors
    ///
    /// The mock does not start.
    pub fn for_test() -> anyhow::Result<Self> {
        if let Ok(pd) = std::env::var(REAL_PD_VARIABLE) {
            return Ok(Self { pd, mock_tikv: None });
        }
        let mock_tikv = MockTikv::start(None, &[])?;
        Ok(Self {
            pd: mock_tikv.pd().to_owned(),
            mock_tikv: Some(mock_tikv),
        })
    }

    /// Addresses of PD.
    pub fn pd(&self) -> &str {
        &self.pd
    }

    /// The mock, for tests that want something to go wrong.
    ///
    /// # Errors
    ///
    /// It is a real cluster.
    pub fn mock_tikv(&self) -> anyhow::Result<&MockTikv> {
        self.mock_tikv
            .as_ref()
            .with_context(|| format!("this needs the mock: unset {REAL_PD_VARIABLE}"))
    }
}

/// A mock that ends with this, and by the kernel's hand if this process is killed.
#[derive(Debug)]
pub struct MockTikv {
    child: Child,
    ready: ReadyReport,
}

/// Its report when its ports are open.
#[derive(Debug, Deserialize)]
struct ReadyReport {
    pd: String,
    control: String,
}

impl MockTikv {
    /// Starts one on free ports, with three stores. It keeps its data in `file`, or in memory.
    ///
    /// # Errors
    ///
    /// It is not built, or does not start.
    pub fn start(file: Option<&Path>, flags: &[&str]) -> anyhow::Result<Self> {
        let program = Program {
            name: "mock-tikv",
            path: own::Programs::find()?.get("mock-tikv")?,
        };
        let mut command = server::command(&program);
        command.args(["--stores=3", "--control-listen=127.0.0.1:0"]).args(flags);
        command.args(file.map(|file| format!("--data-file={}", file.display())));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = server::spawn(command).context("start the mock of TiKV")?;
        let output = child.stdout.take().context("the mock of TiKV has no output")?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .context("read what the mock of TiKV says")?;
        let ready = serde_json::from_str(&line);
        let ready = ready.with_context(|| format!("the mock of TiKV said {line:?} and not its addresses"))?;
        Ok(Self { child, ready })
    }

    /// `host:port` of PD.
    pub fn pd(&self) -> &str {
        &self.ready.pd
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do something: `GET /status`, `POST /faults`. `mock_tikv::control` lists all that it knows.
    ///
    /// # Errors
    ///
    /// It does not answer, or refuses.
    pub async fn command(&self, method: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
        let body = body.map_or_else(String::new, |body| body.to_string());
        let answer = probe::command(&self.ready.control, method, path, &body).await?;
        serde_json::from_str(&answer).with_context(|| format!("{method} {path}: no JSON: {answer}"))
    }
}

impl Drop for MockTikv {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
