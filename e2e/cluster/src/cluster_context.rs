//! The context that every program of a cluster gets.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use programs::tools::Tools;

use crate::cluster_dir::ClusterDir;
use crate::kubectl::Kubectl;
use crate::namespace::NetworkNamespace;
use crate::supervisor::SupervisedProgram;

/// The place where one cluster's programs run.
#[derive(Clone, Debug)]
pub struct ClusterContext {
    /// Its files.
    pub home: ClusterDir,
    /// Its network.
    pub namespace: NetworkNamespace,
    /// The programs.
    pub tools: Tools,
}

impl ClusterContext {
    /// A program that runs in the cluster's network.
    pub fn program<A: Into<OsString>>(
        &self,
        name: &str,
        path: &Path,
        args: impl IntoIterator<Item = A>,
    ) -> SupervisedProgram {
        let (nsenter, mut words) = self.namespace.enter(path);
        words.extend(args.into_iter().map(Into::into));
        SupervisedProgram {
            name: name.to_owned(),
            path: nsenter,
            args: words,
        }
    }

    /// A Kubernetes program that runs in the cluster's network.
    pub fn kubernetes<A: Into<OsString>>(&self, name: &str, args: impl IntoIterator<Item = A>) -> SupervisedProgram {
        self.program(name, &self.tools.kubernetes.join(name), args)
    }

    /// `--flag=<file in the home>`.
    pub fn file_flag(&self, flag: &str, inside: &str) -> String {
        format!("--{flag}={}", self.home.path(inside).display())
    }

    /// The kubeconfig that a program of the cluster uses.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.home.path(format!("config/{user}.kubeconfig"))
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.tools.kubernetes, self.home.kubeconfig())
    }
}
