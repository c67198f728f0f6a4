//! The network between the members and all other processes, which can be cut.
//!
//! All namespaces and links live in a network and a mount namespace of this process, and go with it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use programs::command::{feed, run};
use programs::tcp_proxy::TcpProxy;
use programs::tikv::real::PdAddresses;
use programs::tools::debian;

/// Address of this process, its clients and the mock.
pub(crate) const HUB_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
/// Set within the namespaces: where the real cluster is, if there is one.
const INSIDE_VARIABLE: &str = "KUBEBRAIN_CHAOS_INSIDE";
/// The network that this program was started in.
const OUTSIDE_NETNS: &str = "/run/netns/outside";
/// Script that starts the second program argument of `sh` with all that follow.
const NETNS_SCRIPT: &str = "mkdir -p /run/netns
    mount -t tmpfs chaos /run/netns
    touch /run/netns/outside
    mount --bind /proc/self/ns/net /run/netns/outside
    exec \"$@\"";

/// Starts this program again in namespaces of its own; returns only in there, with what `real` said outside.
///
/// # Errors
///
/// The kernel refuses, or `real` fails.
pub(crate) fn enter(real: impl FnOnce() -> anyhow::Result<Option<PdAddresses>>) -> anyhow::Result<Option<PdAddresses>> {
    if let Ok(found) = std::env::var(INSIDE_VARIABLE) {
        return serde_json::from_str(&found).with_context(|| format!("read {INSIDE_VARIABLE}"));
    }
    let program = std::env::current_exe().context("find this program")?;
    let unshare = debian::find("unshare")?;
    let error = Command::new(&unshare)
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            NETNS_SCRIPT,
            "chaos",
        ])
        .arg(&unshare)
        .arg("--net")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE_VARIABLE, serde_json::to_string(&real()?)?)
        .exec();
    Err(error).context("enter namespaces of its own")
}

/// The address of a member.
pub(crate) fn address(member: usize) -> Ipv4Addr {
    let last = u8::try_from(11 + member).expect("a few members");
    Ipv4Addr::new(10, 98, 0, last)
}

/// An address that a member is cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    Member(usize),
    /// PD, or a store.
    Process(SocketAddr),
}

/// Which packets of a member are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    From,
    To,
}

/// Packets that are lost: those of a member, from or to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NetworkCut {
    pub(crate) member: usize,
    pub(crate) direction: Direction,
    pub(crate) endpoint: Endpoint,
}

/// Namespaces, links and cuts.
#[derive(Debug)]
pub(crate) struct Network {
    members: usize,
    cuts: BTreeSet<NetworkCut>,
}

impl Network {
    /// Makes the namespaces of this many members.
    ///
    /// # Errors
    ///
    /// The kernel refuses something.
    pub(crate) fn create(members: usize) -> anyhow::Result<Self> {
        let mut script = format!(
            "ip link set lo up
            ip link add br0 type bridge
            ip addr add {HUB_ADDRESS}/24 dev br0
            ip link set br0 up\n"
        );
        for member in 0..members {
            let (name, address) = (name(member), address(member));
            writeln!(
                script,
                "ip netns add {name}
                ip link add v{member} type veth peer name eth0 netns {name}
                ip link set v{member} master br0 up
                ip -n {name} addr add {address}/24 dev eth0
                ip -n {name} link set eth0 up
                ip -n {name} link set lo up"
            )?;
        }
        run("sh", ["-ec", &script]).context("set up the network")?;
        Ok(Self {
            members,
            cuts: BTreeSet::new(),
        })
    }

    /// The program and first arguments that run `program` at a member.
    pub(crate) fn enter(member: usize, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "nsenter"])
            .arg(format!("--net={}", namespace(member).display()))
            .arg("--")
            .arg(program.into());
        command
    }

    /// Lets all members reach addresses of the network that this program was started in.
    ///
    /// # Errors
    ///
    /// One of them is taken.
    pub(crate) fn relay(&self, addresses: &[SocketAddr]) -> anyhow::Result<TcpProxy> {
        let members: Vec<PathBuf> = (0..self.members).map(namespace).collect();
        TcpProxy::start(Path::new(OUTSIDE_NETNS), &members, addresses)
    }

    /// Cuts more.
    ///
    /// # Errors
    ///
    /// Those of `nft`.
    pub(crate) fn cut(&mut self, cuts: &[NetworkCut]) -> anyhow::Result<()> {
        self.cuts.extend(cuts);
        self.apply()
    }

    /// Mends what was cut.
    ///
    /// # Errors
    ///
    /// Those of `nft`.
    pub(crate) fn mend(&mut self, cuts: &[NetworkCut]) -> anyhow::Result<()> {
        self.cuts.retain(|cut| !cuts.contains(cut));
        self.apply()
    }

    fn apply(&self) -> anyhow::Result<()> {
        for member in 0..self.members {
            let rules = rules(self.cuts.iter().filter(|cut| cut.member == member));
            let mut nft = Self::enter(member, debian::find("nft")?);
            feed(nft.args(["-f", "-"]), rules.as_bytes()).with_context(|| format!("cut member {member} off"))?;
        }
        Ok(())
    }
}

fn name(member: usize) -> String {
    format!("b{member}")
}

fn namespace(member: usize) -> PathBuf {
    Path::new("/run/netns").join(name(member))
}

/// All rules of one member.
fn rules<'a>(cuts: impl Iterator<Item = &'a NetworkCut>) -> String {
    let (mut input, mut output) = (String::new(), String::new());
    for cut in cuts {
        let (side, chain) = match cut.direction {
            Direction::From => ("s", &mut input),
            Direction::To => ("d", &mut output),
        };
        let rule = match cut.endpoint {
            Endpoint::Member(other) => format!("ip {side}addr {} drop; ", address(other)),
            Endpoint::Process(SocketAddr::V4(at)) => {
                format!("ip {side}addr {} tcp {side}port {} drop; ", at.ip(), at.port())
            }
            Endpoint::Process(SocketAddr::V6(at)) => {
                format!("ip6 {side}addr {} tcp {side}port {} drop; ", at.ip(), at.port())
            }
        };
        chain.push_str(&rule);
    }
    format!(
        "flush ruleset
        table inet chaos {{
            chain input {{ type filter hook input priority 0; {input} }}
            chain output {{ type filter hook output priority 0; {output} }}
        }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_in_one_way_has_one_rule() {
        let pd = Endpoint::Process("10.98.0.1:7".parse().unwrap());
        let cut = |direction, endpoint| NetworkCut {
            member: 0,
            direction,
            endpoint,
        };
        let rules = rules([cut(Direction::To, Endpoint::Member(2)), cut(Direction::From, pd)].iter());
        assert!(
            rules.contains("hook output priority 0; ip daddr 10.98.0.13 drop;"),
            "{rules}"
        );
        assert!(
            rules.contains("hook input priority 0; ip saddr 10.98.0.1 tcp sport 7 drop;"),
            "{rules}"
        );
    }
}
