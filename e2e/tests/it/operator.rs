//! The operator on a real cluster: what it makes of `KubeBrainCluster`s, under load and on bad days.

mod bad_days;
mod brains;
mod certificates;
mod ground;
mod kit;
mod load;
mod members;
mod pods;
mod tikv;
mod trust;
mod upgrade;
