//! Starts and stops the real thing: Kubernetes, etcd, brains and the operator.
