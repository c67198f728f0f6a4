//! etcdctl on a brain: each of its commands, beside etcd where they say the same.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use programs::progress::Progress;
use programs::server::{Program, Server};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::deadline;

/// etcdctl on a server, ended by its end.
struct Etcdctl(Child);

impl Etcdctl {
    fn start(server: &Server, args: &[&str]) -> Self {
        let mut command = etcdctl(server);
        command.args(args);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The next lines that it says.
    fn says(&mut self, lines: usize) -> Vec<String> {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        output.lines().take(lines).map(Result::unwrap).collect()
    }

    fn terminate(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

/// A command for a server.
fn etcdctl(server: &Server) -> Command {
    let etcd = Program::etcd(&Progress::stderr()).unwrap().path;
    let mut command = Command::new(etcd.with_file_name("etcdctl"));
    command.args(["--endpoints", server.endpoint()]);
    command
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
    holder.terminate();
    assert_eq!(next.says(1), ["mine"]);
    next.ends_well();
    leader.terminate();
    listener.terminate();
    server.stop().unwrap();
}

/// Commands with the same output on both, in order. `LEASE` is the lease that was granted last, `DIR` a directory. The text after ` < `
/// is typed, with `;` for line ends.
const COMMANDS: &[&str] = &[
    "version",
    "completion bash",
    "put a 1",
    "put a 2 --prev-kv",
    "put b --ignore-value",
    "put a --ignore-value",
    "put c < typed",
    "get a -w json",
    "get a b --print-value-only",
    "get a --prefix --keys-only --order=DESCEND --sort-by=KEY",
    "get --from-key a --limit 1 --count-only -w fields",
    "get a --rev=2",
    "get a --rev=99",
    "txn < mod(\"a\") = \"4\";;put d 4;get a;;del a;;",
    "txn < value(\"a\") = \"other\";;put d 5;;get d;del d;;",
    "del d",
    "del a --prev-kv --prefix",
    "compaction 3",
    "compaction 3",
    "compaction 99",
    "get a --rev=2",
    "lease grant 60",
    "put l 1 --lease=LEASE",
    "lease timetolive LEASE --keys",
    "lease keep-alive --once LEASE",
    "lease list",
    "lease revoke LEASE",
    "lease revoke LEASE",
    "lease timetolive LEASE",
    "get l",
    "alarm list",
    "alarm disarm",
    "defrag",
    "endpoint health",
    "snapshot save DIR/snapshot.db",
    "downgrade cancel",
    "downgrade validate 3.5",
    "downgrade validate 3.7",
    "downgrade enable three",
    "move-leader 12",
    "member promote 12",
    "member remove 12",
    "member update 12 --peer-urls=http://127.0.0.1:1",
    "role add reader",
    "role add reader",
    "role grant-permission reader read k",
    "role grant-permission reader readwrite m/ --prefix",
    "role get reader",
    "role revoke-permission reader k",
    "role list",
    "user add root:secret",
    "user add kim --new-user-password=first",
    "user passwd kim --interactive=false < second",
    "user grant-role kim reader",
    "user get kim --detail",
    "user list",
    "user grant-role root root",
    "auth enable",
    "auth status",
    "--user=root:secret auth status",
    "--user=kim:first get m/1",
    "--user=kim:second put m/1 1",
    "--user=kim:second get m/1",
    "--user=kim:second put k 1",
    "--user=root:secret user revoke-role kim reader",
    "--user=kim:second get m/1",
    "--user=root:secret user delete kim",
    "--user=root:secret role delete reader",
    "--user=root:secret auth disable",
    "no-such-command",
];

/// Number of these commands that fail.
const FAILING_COMMANDS: usize = 18;

/// Commands whose output has the same fields on both.
const SAME_FIELDS_COMMANDS: &[&str] = &["endpoint status", "endpoint hashkv", "member list"];

/// Runs a command on a server. Returns its output, with a word in place of each address, id and time.
fn said(server: &Server, dir: &Path, lease: &mut String, line: &str) -> String {
    let (line, typed) = line
        .split_once(" < ")
        .map_or((line, None), |(line, typed)| (line, Some(typed)));
    let (typed, dir) = (typed.map(|typed| typed.replace(';', "\n")), dir.to_str().unwrap());
    let args = line
        .split(' ')
        .map(|arg| arg.replace("LEASE", lease).replace("DIR", dir));
    let mut command = etcdctl(server);
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading.
    drop(std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        typed.unwrap_or_default().as_bytes(),
    ));
    let output = child.wait_with_output().unwrap();
    let (printed, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    if let Some(granted) = printed
        .strip_prefix("lease ")
        .and_then(|rest| rest.split_once(" granted"))
    {
        granted.0.clone_into(lease);
    }
    let errors = errors.lines().filter(|line| !line.starts_with('{'));
    let is_term = |line: &&str| line.starts_with("\"RaftTerm\"");
    let lines = printed.lines().filter(|line| !is_term(line)).chain(errors).map(|line| {
        let line = line.replace(server.endpoint(), "SERVER").replace(dir, "DIR");
        let words = line.split(' ').map(|word| match word {
            id if id.len() > 14 && id.trim_end_matches(',').bytes().all(|byte| byte.is_ascii_hexdigit()) => "ID",
            time if time.starts_with(|first: char| first.is_ascii_digit()) && time.ends_with('s') => "TIME",
            left if left.starts_with("remaining(") => "remaining",
            json if json.starts_with("{\"header\"") => json.split_once(",\"kvs\"").map_or(json, |(_, rest)| rest),
            word => word,
        });
        words.collect::<Vec<_>>().join(" ")
    });
    format!(
        "$ {line}\n{:?}\n{}\n",
        output.status.code(),
        lines.collect::<Vec<_>>().join("\n")
    )
}

/// Runs all commands on a fresh server, and returns the output of each.
fn all_said(program: &Program) -> Vec<String> {
    let (server, dir) = (Server::start(program, &[]).unwrap(), tempfile::tempdir().unwrap());
    let mut lease = String::new();
    let mut all: Vec<_> = COMMANDS
        .iter()
        .map(|line| said(&server, dir.path(), &mut lease, line))
        .collect();
    for line in SAME_FIELDS_COMMANDS {
        let fields = said(&server, dir.path(), &mut lease, &format!("{line} -w fields"));
        let names = fields.lines().map(|line| line.split(" : ").next().unwrap_or_default());
        all.push(names.collect::<Vec<_>>().join("\n"));
    }
    server.stop().unwrap();
    all
}

#[test]
fn etcdctl_says_the_same_of_a_brain_as_of_etcd() {
    let _deadline = deadline();
    let programs = [
        Program::etcd(&Progress::stderr()).unwrap(),
        Program::kubebrain().unwrap(),
    ];
    let [etcd, brain] = std::thread::scope(|scope| {
        let runs = programs.map(|program| scope.spawn(move || all_said(&program)));
        runs.map(|run| run.join().unwrap())
    });
    for (brain, etcd) in brain.iter().zip(&etcd) {
        assert_eq!(brain, etcd);
    }
    let failed = brain.iter().filter(|said| !said.contains("\nSome(0)\n"));
    assert_eq!(failed.count(), FAILING_COMMANDS, "{brain:#?}");
}

#[test]
fn etcdctl_watches_mirrors_and_checks() {
    let _deadline = deadline();
    let server = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let mut checked = Etcdctl::start(&server, &["check", "perf", "--load=s"]);
    let put = |key: &str, value: &str| Etcdctl::start(&server, &["put", key, value]).ends_well();
    put("m/1", "one");
    let mut mirrored = Etcdctl::start(&server, &["watch", "--prefix", "n/", "--rev=1"]);
    let host = server.endpoint();
    let mirror = Etcdctl::start(&server, &["make-mirror", "--prefix=m/", "--dest-prefix=n/", host]);
    assert_eq!(mirrored.says(3), ["PUT", "n/1", "one"]);
    put("m/2", "two");
    assert_eq!(mirrored.says(3), ["PUT", "n/2", "two"]);
    mirror.terminate();
    mirrored.terminate();
    let mut past = Etcdctl::start(&server, &["watch", "m/1", "--rev=1"]);
    assert_eq!(past.says(3), ["PUT", "m/1", "one"]);
    past.terminate();
    let mut added = Etcdctl::start(&server, &["member", "add", "two", "--peer-urls=http://127.0.0.1:1"]);
    assert!(
        !added.0.wait().unwrap().success(),
        "members are those that were started"
    );
    let mut downgraded = Etcdctl::start(&server, &["downgrade", "enable", "3.5"]);
    assert!(
        !downgraded.0.wait().unwrap().success(),
        "no older etcd reads the data of a brain"
    );
    Etcdctl::start(&server, &["check", "datascale", "--load=s"]).ends_well();
    // The result of the speed check depends on the machine.
    let lines = checked.says(usize::MAX).join("\n");
    assert!(lines.contains("Throughput"), "{lines}");
    server.stop().unwrap();
}
