//! Stores of many keys, right after a start, when nothing is in memory but what the kernel has cached.

use programs::members::ELECTION_MESSAGES;
use programs::server::{Program, Server, ServerPorts};
use tokio::time::Instant;

pub(crate) mod footprint;
mod keys;
mod load;

use crate::disk::{self, ServerDir};
use crate::report::{Report, Unit};
use crate::updates;
pub(crate) use keys::{fill, put as put_of};
use load::{UnaskedKeysLoad, read_from_files, written_to_disk};

/// Keys of the large delete, if that many exist.
const DELETED_KEYS: u64 = 300_000;
const MIB: f64 = 1024.0 * 1024.0;

/// One round on one server, which is on TiKV if PD is named.
pub(crate) async fn measure(
    (program, pd): (&Program, Option<&str>),
    place: &ServerDir,
    (keys, requests): (u64, u64),
    report: &mut Report,
) -> anyhow::Result<()> {
    let metrics = format!("127.0.0.1:{}", programs::server::free_ports()?.client);
    let mut flags = vec![
        format!("--listen-metrics-urls=http://{metrics}"),
        "--quota-backend-bytes=68719476736".to_owned(),
    ];
    if let Some(pd) = pd {
        flags.extend([
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={pd}"),
            // a real cluster may hold what others left
            format!("--tikv-key-prefix=size-{:032x}", rand::random::<u128>()),
        ]);
    }
    let mut round = SizeRound {
        program,
        place,
        is_on_tikv: pd.is_some(),
        ports: programs::server::free_ports()?,
        metrics,
        flags,
        keys,
        requests,
        report,
    };
    round.creates().await?;
    round.after_a_kill().await?;
    round.cold_keys().await?;
    round.updates_in_txns().await?;
    round.lists_and_deletes().await
}

/// The measurements of one server, which is started again for each part.
struct SizeRound<'a> {
    program: &'a Program,
    place: &'a ServerDir,
    is_on_tikv: bool,
    ports: ServerPorts,
    /// Address of the metrics port.
    metrics: String,
    flags: Vec<String>,
    keys: u64,
    requests: u64,
    report: &'a mut Report,
}

impl SizeRound<'_> {
    fn start(&self) -> anyhow::Result<Server> {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let server = Server::start_at(self.program, self.ports, &self.place.data(), &flags)?;
        let elected = if self.is_on_tikv {
            ELECTION_MESSAGES.as_slice()
        } else {
            &[]
        };
        Ok(elected.iter().fold(server, |server, text| server.expected_logs(text)))
    }

    async fn load(&self, server: &Server) -> anyhow::Result<UnaskedKeysLoad> {
        UnaskedKeysLoad::connect(server, self.keys, self.requests).await
    }

    fn say(&mut self, name: &str, unit: Unit, value: f64) {
        let on = if self.is_on_tikv { " on TiKV" } else { "" };
        let name = format!("{} keys{on}: {name}", self.keys);
        self.report.say(&name, unit, self.program.name, value);
    }

    async fn creates(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let (began, cpu) = (Instant::now(), server.usage()?.cpu);
        fill(&server, self.keys).await?;
        let (took, spent) = (began.elapsed().as_secs_f64(), server.usage()?.cpu - cpu);
        self.say("filled in", Unit::Seconds, took);
        self.say("creates in txns of 100: keys", Unit::PerSecond, self.keys as f64 / took);
        let spent = updates::each(spent, self.keys);
        self.say("creates in txns of 100: server CPU of a key", Unit::MicrosEach, spent);
        self.say("RSS, loaded", Unit::Mib, server.usage()?.rss as f64 / MIB);
        self.say("live data", Unit::Mib, footprint::live(self.keys) as f64 / MIB);
        if !self.is_on_tikv {
            self.say_written("creates in txns of 100", written_to_disk(&server)?);
            let occupied = disk::occupied(&self.place.data())?;
            self.say_occupied("loaded", occupied);
        }
        server.kill()
    }

    fn say_written(&mut self, by: &str, bytes: u64) {
        let part = bytes as f64 / footprint::live(self.keys) as f64 * 100.0;
        self.say(&format!("{by}: written to disk, of live data"), Unit::Percent, part);
    }

    fn say_occupied(&mut self, when: &str, bytes: u64) {
        let part = bytes as f64 / footprint::live(self.keys) as f64 * 100.0;
        self.say(&format!("directory, {when}"), Unit::Mib, bytes as f64 / MIB);
        self.say(&format!("directory, {when}: of live data"), Unit::Percent, part);
    }

    async fn after_a_kill(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let server = self.start()?;
        load::get(keys::client(&server).await?, self.keys / 2).await?;
        let took = began.elapsed().as_secs_f64();
        self.say("kill -9, restart to first read", Unit::Seconds, took);
        // a brain builds it in the background
        footprint::index_bytes(&self.metrics).await?;
        self.say("RSS, after a restart", Unit::Mib, server.usage()?.rss as f64 / MIB);
        self.load(&server).await?.list().await?;
        self.say("RSS, after a list of all", Unit::Mib, server.usage()?.rss as f64 / MIB);
        server.stop()
    }

    async fn cold_keys(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let server = self.start()?;
        self.say("start", Unit::Seconds, began.elapsed().as_secs_f64());
        let load = self.load(&server).await?;
        let cpu = server.usage()?.cpu;
        let (rate, bytes) = load.gets(&server).await?;
        let spent = updates::each(server.usage()?.cpu - cpu, load.requests);
        self.say("gets, cold", Unit::PerSecond, rate);
        self.say("gets, cold: server CPU", Unit::MicrosEach, spent);
        if !self.is_on_tikv {
            self.say("gets, cold: read from files", Unit::BytesEach, bytes);
        }
        let cpu = server.usage()?.cpu;
        let rate = load.updates().await?;
        let spent = updates::each(server.usage()?.cpu - cpu, load.requests);
        self.say("updates, cold", Unit::PerSecond, rate);
        self.say("updates, cold: server CPU", Unit::MicrosEach, spent);
        server.stop()
    }

    async fn updates_in_txns(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let load = self.load(&server).await?;
        let (read, cpu) = (read_from_files(&server)?, server.usage()?.cpu);
        let rate = load.update_many().await?;
        let updated = load.superseded();
        let spent = updates::each(server.usage()?.cpu - cpu, updated);
        let read = (read_from_files(&server)? - read) as f64 / updated as f64;
        self.say("updates in txns of 50, cold: keys", Unit::PerSecond, rate);
        self.say(
            "updates in txns of 50, cold: server CPU of a key",
            Unit::MicrosEach,
            spent,
        );
        if !self.is_on_tikv {
            let name = "updates in txns of 50, cold: read from files for a key";
            self.say(name, Unit::BytesEach, read);
        }
        let compaction = load.compact().await?;
        self.say(
            "compaction of what they superseded",
            Unit::Seconds,
            compaction.took.as_secs_f64(),
        );
        for (name, time) in [
            ("put while they are compacted, 99 of 100 within", compaction.most),
            ("put while they are compacted, the longest", compaction.longest),
        ] {
            self.say(name, Unit::Millis, time.as_secs_f64() * 1000.0);
        }
        if !self.is_on_tikv {
            let occupied = disk::settled(&self.place.data()).await?;
            self.say_written("updates in txns of 50 and their compaction", written_to_disk(&server)?);
            self.say_occupied("compacted", occupied);
        }
        server.stop()
    }

    async fn lists_and_deletes(&mut self) -> anyhow::Result<()> {
        let server = self.start()?;
        let load = self.load(&server).await?;
        for when in ["cold", "again"] {
            let cpu = server.usage()?.cpu;
            let rate = load.list().await?;
            let spent = updates::each(server.usage()?.cpu - cpu, self.keys);
            self.say(&format!("list of all, {when}: keys"), Unit::PerSecond, rate);
            let name = format!("list of all, {when}: server CPU of a key");
            self.say(&name, Unit::MicrosEach, spent);
        }
        let (before, cpu) = (footprint::forget_peak(&server)?, server.usage()?.cpu);
        if let Some(rate) = load.stream().await? {
            let usage = server.usage()?;
            let spent = updates::each(usage.cpu - cpu, self.keys);
            self.say("RangeStream of all: keys", Unit::PerSecond, rate);
            self.say("RangeStream of all: server CPU of a key", Unit::MicrosEach, spent);
            let more = usage.peak_rss.saturating_sub(before) as f64 / MIB;
            self.say("RangeStream of all: peak RSS above that before", Unit::Mib, more);
        }
        if let Some(bytes) = footprint::index_bytes(&self.metrics).await? {
            let each = bytes / self.keys as f64;
            self.say("memory of the index of keys", Unit::BytesEach, each);
        }
        let took = load.counted_pages().await?.as_micros() as f64;
        self.say("page of 500 with its count, random place: p50", Unit::MicrosEach, took);
        let took = load.counts().await?.as_micros() as f64;
        self.say("count_only of all: p50", Unit::MicrosEach, took);
        let longest = load.probes(&self.metrics).await?;
        self.say("/livez, the longest", Unit::Seconds, longest.as_secs_f64());
        let before = server.usage()?.rss;
        let longest = load.delete(self.keys.min(DELETED_KEYS)).await?.as_secs_f64();
        self.say("put while 300,000 are deleted, the longest", Unit::Seconds, longest);
        let usage = server.usage()?;
        let more = usage.peak_rss.saturating_sub(before) as f64 / MIB;
        self.say("peak RSS above that before the delete", Unit::Mib, more);
        self.say("peak RSS", Unit::Mib, usage.peak_rss as f64 / MIB);
        if !self.is_on_tikv {
            let occupied = disk::occupied(&self.place.data())?;
            self.say("directory, after the delete", Unit::Mib, occupied as f64 / MIB);
        }
        server.stop()
    }
}
