//! Nothing of a cluster is left on the machine, however it ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e_cluster::cluster::{self, Cluster};
use e2e_cluster::cluster_dir::{ClusterDir, ClusterName};
use e2e_cluster::config::{ClusterConfig, StoreProgram};
use e2e_cluster::lock::FileLock;
use programs::progress::Progress;
use programs::tools::own::Programs;
use rustix::process::Signal;

use crate::harness::{cluster_program, deadline};

fn config(suffix: &str) -> ClusterConfig {
    let tests = ClusterName::of_tests(Programs::find().unwrap().dir());
    ClusterConfig {
        name: format!("{tests}-{suffix}").parse().unwrap(),
        store: StoreProgram::Etcd,
        through: None,
        product: false,
        test_images: false,
        ports: Default::default(),
    }
}

fn start(config: &ClusterConfig, progress: &Progress) -> Cluster {
    cluster::down(&config.name, progress).unwrap();
    Cluster::start(config, &cluster_program().unwrap(), progress).unwrap()
}

/// All that a machine shows of a cluster, but logs.
fn traces(home: &ClusterDir) -> Vec<String> {
    let mut traces = Vec::new();
    let dir = home.dir();
    let homes = dir.parent().and_then(Path::to_str).unwrap();
    let mut search = |dir: &str, what: &str| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        traces.extend(
            names
                .filter(|name| name.contains(what))
                .map(|name| format!("{dir}/{name}")),
        );
    };
    search(homes, &home.name().to_string());
    search("/run/netns", &home.netns());
    search("/var/lib/cni/results", &format!("{}-", home.netns()));
    for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        search(
            &format!("{}/kubebrain", hierarchy.path().display()),
            &home.name().to_string(),
        );
    }
    search("/sys/fs/cgroup/kubebrain", &home.name().to_string());
    let dir = home.dir().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    traces.extend(mounts.lines().filter(|mount| mount.contains(&dir)).map(str::to_owned));
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&format!("{dir}/")) {
            traces.push(format!("{}: {line}", process.path().display()));
        }
    }
    for link in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        let target = fs::read_link(link.path()).unwrap_or_default();
        if target.starts_with(home.logs()) {
            traces.push(link.path().display().to_string());
        }
    }
    traces
}

#[test]
fn a_cluster_whose_owner_is_gone_ends_and_leaves_nothing() {
    let _deadline = deadline();
    let (config, progress) = (config("a"), Progress::stderr());
    let home = ClusterDir::of(&config.name);
    let cluster = start(&config, &progress);
    assert!(
        traces(&home).len() > 20,
        "what is searched for is found: {:#?}",
        traces(&home)
    );
    drop(cluster);
    let lock = FileLock::take(&home).unwrap(); // its host holds it to the very end
    let traces: Vec<_> = traces(&home)
        .into_iter()
        .filter(|trace| *trace != home.lock().display().to_string())
        .collect();
    assert!(traces.is_empty(), "left behind: {traces:#?}");
    drop(lock);
    cluster::down(&config.name, &progress).unwrap();
}

#[test]
fn what_a_killed_run_left_is_swept() {
    let _deadline = deadline();
    let (config, progress) = (config("k"), Progress::stderr());
    let home = ClusterDir::of(&config.name);
    let cluster = start(&config, &progress);
    let state = cluster.state().unwrap();
    assert!(FileLock::holder(&home).unwrap().signal(Signal::KILL));
    assert!(cluster.stop().is_err(), "a killed host did not end well");
    let orphans = state
        .programs
        .values()
        .filter(|program| program.alive().is_some())
        .count();
    assert_eq!(orphans, state.programs.len(), "its programs run on");
    assert!(cluster::down(&config.name, &progress).unwrap());
    assert!(traces(&home).is_empty(), "left behind: {:#?}", traces(&home));
    let cluster = start(&config, &progress);
    cluster.stop().unwrap();
    assert!(
        traces(&home).is_empty(),
        "left behind after a second run: {:#?}",
        traces(&home)
    );
}

#[test]
fn directory_of_a_brain_survives_down() {
    let _deadline = deadline();
    let home = ClusterDir::of(&config("b").name);
    let data = home.path("member/rows/000001");
    fs::create_dir_all(data.parent().unwrap()).unwrap();
    fs::write(&data, "somebody's").unwrap();
    let mut down = Command::new(cluster_program().unwrap());
    let down = down
        .args(["cluster", "down", "--name", &home.name().to_string()])
        .output()
        .unwrap();
    let survived = fs::read_to_string(&data);
    // only now, for a failed test must not leave what the next run refuses
    drop(fs::remove_dir_all(home.dir()));
    assert_eq!(survived.unwrap(), "somebody's");
    let said = String::from_utf8_lossy(&down.stderr);
    assert!(!down.status.success() && said.contains("not removed"), "{said}");
}
