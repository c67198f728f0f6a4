//! kube-controller-manager and kube-scheduler, with leader election as in any cluster.

use crate::cluster_context::ClusterContext;
use crate::namespace::PODS;
use crate::supervisor::SupervisedProgram;

/// The name in state and logs.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";
/// The name in state and logs.
pub const SCHEDULER: &str = "kube-scheduler";

/// Returns the program to run as controller manager.
pub fn controller_manager(site: &ClusterContext) -> SupervisedProgram {
    let args = [
        site.file_flag("kubeconfig", "config/controller-manager.kubeconfig"),
        site.file_flag("service-account-private-key-file", "pki/sa.key"),
        site.file_flag("root-ca-file", "pki/ca.crt"),
        "--use-service-account-credentials=true".to_owned(),
        "--allocate-node-cidrs=true".to_owned(),
        format!("--cluster-cidr={PODS}"),
        "--bind-address=127.0.0.1".to_owned(),
    ];
    site.kubernetes(CONTROLLER_MANAGER, args)
}

/// Returns the program to run as scheduler.
pub fn scheduler(site: &ClusterContext) -> SupervisedProgram {
    let args = [
        site.file_flag("kubeconfig", "config/scheduler.kubeconfig"),
        "--bind-address=127.0.0.1".to_owned(),
    ];
    site.kubernetes(SCHEDULER, args)
}
