//! What real programs do with a brain, over public protocols only.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bad_input;
mod brains;
mod chaos;
mod chart;
mod contests;
mod crash;
mod demo;
mod differential;
mod followers;
mod harness;
mod hostile;
mod kubectl;
mod lease;
mod locks;
mod members;
mod operator;
mod release;
mod sweep;
mod upstream;
mod workloads;
mod writers;
