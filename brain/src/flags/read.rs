//! Converts the given values to the typed [`Config`].

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use super::config::*;
use super::duration;
use super::table::Flag;
use super::url::Url;
use super::{Given, go_bool};
use crate::memory;
use crate::slow_requests::SlowOptions;

mod auth;
mod election;
mod gates;
mod log;
mod members;
pub(super) mod storage;
mod tls;
mod tracing;

pub use gates::features;

/// Reads and checks all values. Warnings are appended to `warnings`.
pub(super) fn config(given: &BTreeMap<&'static str, Given>, warnings: &mut Vec<String>) -> Result<Config, String> {
    let values = Values { given };
    let name = values.text("name").to_owned();
    let data_dir = match values.text("data-dir") {
        "" => format!("{name}.etcd"),
        dir => dir.to_owned(),
    };
    let election_timeout = election_timeout(&values)?;
    let listen_client_urls = values.bind_urls("listen-client-urls")?;
    if listen_client_urls.is_empty() {
        return Err("--listen-client-urls must name at least one URL".to_owned());
    }
    let storage = storage::read(&values)?;
    storage::check_member(&values, &name)?;
    let mut config = Config {
        wipes: false,
        checks: values.bool("check"),
        embedded_cluster_id: storage::embedded_cluster_id(&values)?,
        dump: None,
        snapshot: None,
        import: None,
        data_dir: data_dir.into(),
        listen_client_http_urls: values.bind_urls("listen-client-http-urls")?,
        listen_metrics_urls: values.bind_urls("listen-metrics-urls")?,
        listen_peer_urls: values.bind_urls("listen-peer-urls")?,
        advertise_client_urls: advertised(&values, &listen_client_urls)?,
        listen_client_urls,
        discovery: members::discovery(&values, &storage)?,
        initial_cluster: members::cluster(&values, &name, &storage)?,
        initial_advertise_peer_urls: values.urls("initial-advertise-peer-urls")?,
        election: election::read(&values, &storage)?,
        strict_reads: values.bool("strict-reads"),
        grpc_gateway: values.bool("enable-grpc-gateway"),
        leader_http: election::leader_http(&values)?,
        joins_existing: values.one_of("initial-cluster-state", &[("new", false), ("existing", true)])?,
        initial_cluster_token: values.text("initial-cluster-token").to_owned(),
        client_tls: tls::client(&values)?,
        peer_tls: tls::peer(&values)?,
        tls_policy: tls::policy(&values)?,
        limits: limits(&values, &storage, warnings)?,
        keepalive: keepalive(&values)?,
        socket: SocketOptions {
            reuse_port: values.bool("socket-reuse-port"),
            reuse_address: values.bool("socket-reuse-address"),
        },
        browsers: BrowserPolicy {
            cors: values.unless_all("cors"),
            host_whitelist: values.unless_all("host-whitelist"),
        },
        log: log::read(&values, warnings)?,
        auto_compaction: auto_compaction(&values)?,
        compaction: compaction_pace(&values)?,
        corrupt_check_interval: Some(values.duration("corrupt-check-time")?).filter(|every| !every.is_zero()),
        bootstrap_defrag_bytes: Some(values.number::<u32>("bootstrap-defrag-threshold-megabytes")?)
            .filter(|megabytes| *megabytes > 0)
            .map(|megabytes| u64::from(megabytes) << 20),
        slow_requests: SlowOptions {
            apply: values.duration("warning-apply-duration")?,
            unary: values.duration("warning-unary-request-duration")?,
        },
        tracing: tracing::read(&values)?,
        watch_progress_notify_interval: positive(&values, "watch-progress-notify-interval")?,
        election_timeout,
        auth: auth::read(&values, warnings)?,
        extensive_metrics: values.one_of("metrics", &[("basic", false), ("extensive", true)])?,
        unsafe_no_fsync: values.bool("unsafe-no-fsync"),
        embedded_cache_bytes: Some(values.number("embedded-cache-bytes")?).filter(|bytes| *bytes > 0),
        key_index_bytes: key_index_bytes(&values)?,
        storage,
        name,
    };
    gates::check(&values, warnings)?;
    values.one_of("logger", &[("zap", ())])?;
    tls::self_sign(&values, &mut config, warnings)?;
    tls::check_schemes(&config, warnings)?;
    Ok(config)
}

/// The values by name: the given one, else the default.
pub(super) struct Values<'a> {
    given: &'a BTreeMap<&'static str, Given>,
}

impl<'a> Values<'a> {
    fn text(&self, name: &str) -> &'a str {
        let default = || Flag::named(name).map_or("", |flag| flag.default);
        self.given.get(name).map_or_else(default, |given| given.value.as_str())
    }

    fn origin(&self, name: &str) -> String {
        self.given
            .get(name)
            .map_or_else(|| format!("--{name}"), |given| given.origin.clone())
    }

    fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    fn bool(&self, name: &str) -> bool {
        go_bool(self.text(name)).unwrap_or(false)
    }

    fn error(&self, name: &str, what: impl std::fmt::Display) -> String {
        format!("{} is not valid: {what}", self.origin(name))
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.text(name);
        text.parse()
            .map_err(|_| self.error(name, format!("{text:?} is not a number in range")))
    }

    fn duration(&self, name: &str) -> Result<Duration, String> {
        let text = self.text(name);
        duration::parse(text).map_err(|what| self.error(name, format!("{text:?}: {what}")))
    }

    fn urls(&self, name: &str) -> Result<Vec<Url>, String> {
        Url::parse_list(self.text(name)).map_err(|what| self.error(name, what))
    }

    fn bind_urls(&self, name: &str) -> Result<Vec<Url>, String> {
        let urls = self.urls(name)?;
        urls.iter()
            .try_for_each(Url::check_bind)
            .map_err(|what| self.error(name, what))?;
        Ok(urls)
    }

    fn list(&self, name: &str) -> Vec<String> {
        let parts = self
            .text(name)
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    }

    /// Returns a list in which `*` means all, which an empty list stands for.
    fn unless_all(&self, name: &str) -> Vec<String> {
        let list = self.list(name);
        if list.iter().any(|entry| entry == "*") {
            Vec::new()
        } else {
            list
        }
    }

    fn one_of<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, String> {
        let text = self.text(name);
        choices
            .iter()
            .find(|(choice, _)| *choice == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                let choices: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
                self.error(name, format!("{text:?} is none of {}", choices.join(", ")))
            })
    }
}

/// Returns the election timeout, within etcd's bounds, which are relative to the heartbeat interval.
fn election_timeout(values: &Values<'_>) -> Result<Duration, String> {
    let heartbeat: u64 = values.number("heartbeat-interval")?;
    let election: u64 = values.number("election-timeout")?;
    if heartbeat == 0 {
        return Err(format!("--heartbeat-interval must be >0 (set to {heartbeat}ms)"));
    }
    if election < heartbeat.saturating_mul(5) {
        return Err(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]"
        ));
    }
    if election > 50_000 {
        return Err(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than 50000ms"
        ));
    }
    Ok(Duration::from_millis(election))
}

/// Returns the URLs that clients are to dial: the given ones, else the listen URLs if they can be dialled.
fn advertised(values: &Values<'_>, listen: &[Url]) -> Result<Vec<Url>, String> {
    if values.is_given("advertise-client-urls") || !values.is_given("listen-client-urls") {
        return values.urls("advertise-client-urls");
    }
    if listen.iter().any(Url::is_wildcard) {
        return Err("--advertise-client-urls is required when --listen-client-urls names every address".to_owned());
    }
    Ok(listen.to_vec())
}

fn limits(values: &Values<'_>, storage: &Storage, warnings: &mut Vec<String>) -> Result<Limits, String> {
    const DEFAULT_QUOTA: u64 = 2 * 1024 * 1024 * 1024;
    const LARGEST_REQUEST: usize = 1024 * 1024 * 1024;
    let quota: i64 = values.number("quota-backend-bytes")?;
    let quota = match u64::try_from(quota) {
        Err(_) => Quota::Off,
        // TiKV can grow by adding machines.
        Ok(0) if *storage != Storage::Embedded => Quota::Off,
        Ok(0) => Quota::Bytes(DEFAULT_QUOTA),
        Ok(bytes) => Quota::Bytes(bytes),
    };
    let max_request_bytes: usize = values.number("max-request-bytes")?;
    if max_request_bytes == 0 || max_request_bytes > LARGEST_REQUEST {
        return Err(values.error(
            "max-request-bytes",
            format!("{max_request_bytes} is not in 1 to {LARGEST_REQUEST}"),
        ));
    }
    if max_request_bytes > 10 * 1024 * 1024 {
        warnings.push(format!(
            "--max-request-bytes of {max_request_bytes} exceeds the recommended 10485760"
        ));
    }
    let max_concurrent_streams = values.number("max-concurrent-streams")?;
    if max_concurrent_streams == 0 {
        return Err(values.error("max-concurrent-streams", "0 would serve nobody"));
    }
    Ok(Limits {
        max_inflight_bytes: inflight_bytes(values, max_request_bytes)?,
        max_request_bytes,
        max_receive_bytes: max_request_bytes + 512 * 1024,
        max_txn_ops: values.number("max-txn-ops")?,
        max_concurrent_streams,
        quota,
    })
}

/// Returns the bytes of memory for requests and responses in flight; by default a share of the available memory.
fn inflight_bytes(values: &Values<'_>, max_request_bytes: usize) -> Result<usize, String> {
    const SHARE: u64 = 4;
    const LEAST: u64 = 128 << 20;
    const MOST: u64 = 1 << 30;
    // One connection may use half of it, and holds a request in encoded and in decoded form.
    let needed = max_request_bytes.saturating_add(512 * 1024).saturating_mul(8);
    let bytes = match values.number::<u64>("max-inflight-bytes")? {
        0 => {
            let default = (memory::available() / SHARE).clamp(LEAST, MOST);
            usize::try_from(default).unwrap_or(usize::MAX).max(needed)
        }
        bytes => usize::try_from(bytes).unwrap_or(usize::MAX),
    };
    if bytes < needed {
        return Err(values.error(
            "max-inflight-bytes",
            format!("{bytes} is less than the {needed} that requests of --max-request-bytes need"),
        ));
    }
    Ok(bytes)
}

/// Returns the bytes of memory for the index of keys; by default a share of the available memory.
fn key_index_bytes(values: &Values<'_>) -> Result<usize, String> {
    let bytes = match values.number::<i64>("key-index-bytes")? {
        0 => memory::key_index_share(memory::available()),
        bytes => u64::try_from(bytes).unwrap_or_default(),
    };
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The least time between pings if 0 is given: that of grpc-go, which etcd leaves it to then.
const GRPC_MIN_TIME: Duration = Duration::from_secs(300);

fn keepalive(values: &Values<'_>) -> Result<Keepalive, String> {
    let interval = values.duration("grpc-keepalive-interval")?;
    let timeout = values.duration("grpc-keepalive-timeout")?;
    let off = interval.is_zero() || timeout.is_zero();
    let min_time = match values.duration("grpc-keepalive-min-time")? {
        Duration::ZERO => GRPC_MIN_TIME,
        time => time,
    };
    Ok(Keepalive {
        interval: (!off).then_some(interval),
        timeout,
        min_time,
    })
}

/// Returns the pace of compactions. Etcd's defaults are for bbolt; storage here has a size of its own for one write.
fn compaction_pace(values: &Values<'_>) -> Result<CompactionPace, String> {
    const MOST: usize = 1_000_000;
    const LONGEST: Duration = Duration::from_secs(30);
    let mut pace = CompactionPace::default();
    if values.is_given("compaction-batch-limit") {
        let limit = values.number("compaction-batch-limit")?;
        if limit == 0 || limit > MOST {
            return Err(values.error("compaction-batch-limit", format!("{limit} is not in 1 to {MOST}")));
        }
        pace.batch_limit = Some(limit);
    }
    if values.is_given("compaction-sleep-interval") {
        pace.pause = values.duration("compaction-sleep-interval")?;
        if pace.pause > LONGEST {
            return Err(values.error("compaction-sleep-interval", "a pause is not longer than 30s"));
        }
    }
    Ok(pace)
}

fn positive(values: &Values<'_>, name: &str) -> Result<Duration, String> {
    match values.duration(name)? {
        Duration::ZERO => Err(values.error(name, "it must be >0")),
        duration => Ok(duration),
    }
}

fn auto_compaction(values: &Values<'_>) -> Result<AutoCompaction, String> {
    let by_revision = values.one_of("auto-compaction-mode", &[("periodic", false), ("revision", true)])?;
    let text = values.text("auto-compaction-retention");
    let number = text.parse::<u32>().ok();
    Ok(match (number, by_revision) {
        (Some(0), _) => AutoCompaction::Off,
        (Some(number), true) => AutoCompaction::Revision(number.into()),
        (Some(hours), false) => AutoCompaction::Periodic(Duration::from_secs(3600 * u64::from(hours))),
        (None, true) => {
            return Err(values.error(
                "auto-compaction-retention",
                format!("{text:?} is not a number of revisions"),
            ));
        }
        (None, false) => match values.duration("auto-compaction-retention")? {
            Duration::ZERO => AutoCompaction::Off,
            age => AutoCompaction::Periodic(age),
        },
    })
}
