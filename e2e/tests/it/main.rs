//! Real programs on a brain, over public protocols only.
#![allow(clippy::unwrap_used, reason = "tests")]

mod alerts;
mod argocd;
mod bad_input;
mod brains;
mod certificates;
mod chaos;
mod chart;
mod cleanup;
mod clients;
mod component_leases;
mod conformance;
mod contests;
mod crash;
mod demo;
mod differential;
mod durability;
mod etcd_tests;
mod etcdctl;
mod followers;
mod gateway;
mod harness;
mod hostile;
mod import;
mod jwt;
mod kubectl;
mod lease;
mod locks;
mod members;
mod operator;
mod range_stream;
mod release;
mod snapshot;
mod watch_compaction;
mod workloads;
mod writers;
