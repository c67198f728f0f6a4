//! Several members of one cluster, each a process of its own: brains on one TiKV cluster, or etcds to compare with.
//!
//! Invariant: a member keeps its name, its ports and its directory however often it is started.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use wire::etcdserverpb as pb;

use crate::server::{self, Program, Server};
use pb::maintenance_client::MaintenanceClient;

/// Time until a member leads, on a busy machine too.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a member's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Election flags of brains unless a test needs others: longer than the machine of a test run may stall.
pub const PATIENT_ELECTION_FLAGS: [&str; 2] = ["--election-lease-duration=4s", "--election-renew-deadline=3s"];

/// Messages that members may log about an election that was due.
pub const ELECTION_MESSAGES: [&str; 8] = [
    // logged when /health is requested while there is no leader
    "RAFT NO LEADER",
    "lost leadership",
    // it was stopped within its first lease
    "could not transfer leadership",
    "could not renew the lease in time",
    "no answer from the lock",
    "the lock of the election answers slowly",
    // storage did not respond for that long
    "cannot lead: giving up the lock",
    "the writer does not end in time",
];

/// A cluster whose members can be killed and started again one by one. Dropping it kills them.
#[derive(Debug)]
pub struct Members {
    program: Program,
    flags: Vec<String>,
    seats: Vec<MemberSeat>,
    /// Name and peer URL of a member that the caller starts.
    guest: Option<String>,
    expected_logs: Vec<String>,
    _dir: TempDir,
}

#[derive(Debug)]
struct MemberSeat {
    name: String,
    ports: server::ServerPorts,
    dir: std::path::PathBuf,
    server: Option<Server>,
}

impl MemberSeat {
    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.peer)
    }
}

impl Members {
    /// Starts `count` brains on the TiKV cluster with the PD at `pd`, and waits until they are ready. The first one leads.
    ///
    /// # Errors
    ///
    /// One of them ended, or was not ready in time.
    pub fn brains(program: &Program, pd: &str, count: usize, flags: &[&str]) -> anyhow::Result<Self> {
        Self::brains_with(None, program, pd, count, flags)
    }

    /// The same with one more member, `<name>=<peer URL>`, which the caller starts with [`Members::shared_flags`].
    ///
    /// # Errors
    ///
    /// As [`Members::brains`].
    pub fn brains_with(
        guest: Option<String>,
        program: &Program,
        pd: &str,
        count: usize,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let storage = [
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={pd}"),
            // a real cluster may hold what others left
            format!("--tikv-key-prefix=members-{:032x}", rand::random::<u128>()),
        ];
        let flags = storage
            .into_iter()
            .chain(flags.iter().map(ToString::to_string))
            .collect();
        let mut members = Self::seated(program, count, flags)?;
        members.guest = guest;
        for text in ELECTION_MESSAGES {
            members.expect_log(text);
        }
        // each waits for a leader
        members.start(0)?;
        members.start_all(1..count)?;
        Ok(members)
    }

    /// Starts `count` etcds, and waits until they are ready. Any of them may lead.
    ///
    /// # Errors
    ///
    /// One of them ended, or was not ready in time.
    pub fn etcds(program: &Program, count: usize, flags: &[&str]) -> anyhow::Result<Self> {
        let mut members = Self::seated(program, count, flags.iter().map(ToString::to_string).collect())?;
        members.start_all(0..count)?;
        Ok(members)
    }

    fn seated(program: &Program, count: usize, flags: Vec<String>) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("members-")
            .tempdir()
            .context("make directories for members")?;
        let mut seats = Vec::new();
        for member in 0..count {
            let name = format!("m{member}");
            seats.push(MemberSeat {
                dir: dir.path().join(&name),
                name,
                ports: server::free_ports()?,
                server: None,
            });
        }
        Ok(Self {
            program: program.clone(),
            flags,
            seats,
            guest: None,
            expected_logs: Vec::new(),
            _dir: dir,
        })
    }

    /// Returns the flags that all members have in common, a guest too: it needs them beside its own name, addresses and directory.
    pub fn shared_flags(&self) -> Vec<String> {
        let seats = self
            .seats
            .iter()
            .map(|seat| format!("{}={}", seat.name, seat.peer_url()));
        let all: Vec<String> = seats.chain(self.guest.clone()).collect();
        let mut flags = vec![format!("--initial-cluster={}", all.join(","))];
        flags.extend(self.flags.iter().cloned());
        flags
    }

    fn launch(&self, member: usize) -> anyhow::Result<Server> {
        let (seat, mut flags) = (self.seat(member)?, self.shared_flags());
        flags.push(format!("--name={}", seat.name));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let server = Server::start_at(&self.program, seat.ports, &seat.dir, &flags)?;
        Ok(self
            .expected_logs
            .iter()
            .fold(server, |server, text| server.expected_logs(text)))
    }

    fn start_all(&mut self, members: std::ops::Range<usize>) -> anyhow::Result<()> {
        let this = &*self;
        let started: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = members
                .map(|member| (member, scope.spawn(move || this.launch(member))))
                .collect();
            let join = |(member, thread): (usize, std::thread::ScopedJoinHandle<'_, _>)| {
                (
                    member,
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(anyhow!("the thread that starts member {member} panicked"))),
                )
            };
            threads.into_iter().map(join).collect()
        });
        for (member, server) in started {
            self.seat_mut(member)?.server = Some(server?);
        }
        Ok(())
    }

    /// Lets lines with this text pass in the logs of all members that are started from now on.
    pub fn expect_log(&mut self, text: &str) {
        self.expected_logs.push(text.to_owned());
    }

    /// Starts a member that is down, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It ended, or was not ready in time.
    pub fn start(&mut self, member: usize) -> anyhow::Result<()> {
        let server = self.launch(member)?;
        self.seat_mut(member)?.server = Some(server);
        Ok(())
    }

    /// Ends a member by SIGKILL.
    ///
    /// # Errors
    ///
    /// It was down, or had complained.
    pub fn kill(&mut self, member: usize) -> anyhow::Result<()> {
        self.take(member)?.kill()
    }

    /// Ends a member by SIGTERM.
    ///
    /// # Errors
    ///
    /// It was down, does not end, or had complained.
    pub fn end(&mut self, member: usize) -> anyhow::Result<()> {
        self.take(member)?.stop()
    }

    /// Ends all members that run, one after the other.
    ///
    /// # Errors
    ///
    /// One does not end, or had complained.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.running().into_iter().try_for_each(|member| self.end(member))
    }

    /// Those that run.
    pub fn running(&self) -> Vec<usize> {
        let runs = |member: &usize| self.seats[*member].server.is_some();
        (0..self.seats.len()).filter(runs).collect()
    }

    /// A member that runs.
    ///
    /// # Errors
    ///
    /// It is down.
    pub fn server(&self, member: usize) -> anyhow::Result<&Server> {
        let server = self.seat(member)?.server.as_ref();
        server.with_context(|| format!("member {member} is down"))
    }

    /// Returns the URL on which a member serves clients, also while it is down.
    ///
    /// # Errors
    ///
    /// There is no such member.
    pub fn url(&self, member: usize) -> anyhow::Result<String> {
        Ok(format!("http://127.0.0.1:{}", self.seat(member)?.ports.client))
    }

    /// Returns a member's own status.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn status(&self, member: usize) -> anyhow::Result<pb::StatusResponse> {
        status(&self.url(member)?).await
    }

    /// The member that leads by its own word, as soon as there is one.
    ///
    /// # Errors
    ///
    /// No member reports so in time.
    pub async fn leader(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + ELECTION_TIMEOUT;
        loop {
            for member in self.running() {
                let Ok(status) = self.status(member).await else {
                    continue; // one that is being killed, or has no leader yet
                };
                if leads(&status) {
                    return Ok(member);
                }
            }
            if Instant::now() > deadline {
                bail!("no member reports that it leads after {ELECTION_TIMEOUT:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Those that run and do not lead.
    ///
    /// # Errors
    ///
    /// As [`Members::leader`].
    pub async fn followers(&self) -> anyhow::Result<Vec<usize>> {
        let leader = self.leader().await?;
        Ok(self.running().into_iter().filter(|member| *member != leader).collect())
    }

    /// Returns the first key of a kind in TiKV: `f` is the fence and its lanes, `r` the rows, `w` the slots.
    ///
    /// # Errors
    ///
    /// These are no brains on TiKV.
    pub fn first_key(&self, kind: u8) -> anyhow::Result<Vec<u8>> {
        let prefix = |flag: &String| flag.strip_prefix("--tikv-key-prefix=").map(str::to_owned);
        let prefix = self
            .flags
            .iter()
            .find_map(prefix)
            .context("these do not store in TiKV")?;
        Ok([&[u8::try_from(prefix.len())?], prefix.as_bytes(), &[kind]].concat())
    }

    fn seat(&self, member: usize) -> anyhow::Result<&MemberSeat> {
        self.seats
            .get(member)
            .with_context(|| format!("there is no member {member}"))
    }

    fn seat_mut(&mut self, member: usize) -> anyhow::Result<&mut MemberSeat> {
        self.seats
            .get_mut(member)
            .with_context(|| format!("there is no member {member}"))
    }

    fn take(&mut self, member: usize) -> anyhow::Result<Server> {
        let server = self.seat_mut(member)?.server.take();
        server.with_context(|| format!("member {member} is down already"))
    }
}

/// Returns the own status of the member at a URL.
///
/// # Errors
///
/// It does not answer.
pub async fn status(url: &str) -> anyhow::Result<pb::StatusResponse> {
    let endpoint = Endpoint::new(url.to_owned())?
        .connect_timeout(ANSWER_TIMEOUT)
        .timeout(ANSWER_TIMEOUT);
    let channel = endpoint.connect().await.with_context(|| format!("connect to {url}"))?;
    let answer = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await;
    Ok(answer
        .with_context(|| format!("ask {url} for its status"))?
        .into_inner())
}

/// Returns true if a member reports that it leads.
pub fn leads(status: &pb::StatusResponse) -> bool {
    let id = status.header.as_ref().map(|header| header.member_id);
    id == Some(status.leader)
}
