//! `kubebrain-bench-kubernetes`: measures a Kubernetes on a brain beside one on etcd.

use std::process::ExitCode;

use bench::kubernetes;
use clap::Parser as _;
use programs::progress::Progress;

fn main() -> ExitCode {
    let progress = Progress::stderr();
    let outcome = kubernetes::run(kubernetes::KubernetesFlags::parse(), &progress);
    progress.exit_code("bench-kubernetes", outcome.map(|()| true))
}
