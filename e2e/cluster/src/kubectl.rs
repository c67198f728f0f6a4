//! kubectl, as a person would use it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use programs::command::{feed, output};

/// kubectl with one kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// The one in `programs`, a directory.
    pub fn new(programs: &Path, kubeconfig: PathBuf) -> Self {
        Self {
            program: programs.join("kubectl"),
            kubeconfig,
        }
    }

    /// The same program with another kubeconfig.
    #[must_use]
    pub fn with(&self, kubeconfig: PathBuf) -> Self {
        Self {
            program: self.program.clone(),
            kubeconfig,
        }
    }

    /// The file that says which API server it speaks to.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The executable.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The command, to be given arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
    }

    /// Runs it and gives its standard output.
    ///
    /// # Errors
    ///
    /// It fails; the error holds what it said.
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> anyhow::Result<String> {
        output(self.command().args(args))
    }

    /// `kubectl apply` of these YAML documents.
    ///
    /// # Errors
    ///
    /// It fails; the error holds what it said.
    pub fn apply(&self, documents: &str) -> anyhow::Result<()> {
        feed(self.command().args(["apply", "--filename", "-"]), documents.as_bytes())?;
        Ok(())
    }
}
