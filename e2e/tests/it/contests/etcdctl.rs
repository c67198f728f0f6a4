//! etcdctl takes locks of a brain, and elects.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use e2e::progress::Progress;
use e2e::server::{Program, Server};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::deadline;

/// etcdctl on a server, ended by its end.
struct Etcdctl(Child);

impl Etcdctl {
    fn start(server: &Server, args: &[&str]) -> Self {
        let etcd = Program::etcd(&Progress::stderr()).unwrap().path;
        let mut command = Command::new(etcd.with_file_name("etcdctl"));
        command.args(["--endpoints", server.endpoint()]).args(args);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The next lines that it says.
    fn says(&mut self, lines: usize) -> Vec<String> {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        output.lines().take(lines).map(Result::unwrap).collect()
    }

    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        self.0.wait().unwrap();
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn etcdctl_locks_and_elects() {
    let _deadline = deadline();
    let server = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let mut holder = Etcdctl::start(&server, &["lock", "l"]);
    let key = holder.says(1);
    assert!(key[0].starts_with("l/"), "{key:?}");
    let mut next = Etcdctl::start(&server, &["lock", "l", "echo", "mine"]);
    let mut leader = Etcdctl::start(&server, &["elect", "e", "value"]);
    let elected = leader.says(2);
    assert!(elected[0].starts_with("e/") && elected[1] == "value", "{elected:?}");
    let mut listener = Etcdctl::start(&server, &["elect", "--listen", "e"]);
    assert_eq!(listener.says(2), elected);
    assert!(next.0.try_wait().unwrap().is_none(), "two hold one lock");
    holder.interrupt();
    assert_eq!(next.says(1), ["mine"]);
    next.ends_well();
    leader.interrupt();
    listener.interrupt();
    server.stop().unwrap();
}
