//! Checks of the install files, most of them written by hand: that Kubernetes understands them, that parts which several of them have are
//! the same, and that they fit the programs.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod admission;
mod argocd;
mod chart;
mod files;
mod kustomize;
mod monitoring;
mod operator;
mod rights;
mod samples;
mod values;
mod versions;
