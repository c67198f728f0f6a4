//! Converts the given values to the typed [`Config`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::bootstrap::Bootstrap;
use super::config::*;
use super::table::Flag;
use super::{Given, duration, go_bool, number};
use crate::sizing;
use etcd_types::url::Url;
use net::http::BrowserPolicy;
use net::listen::SocketOptions;
use net::serve::Keepalive;
use store::flush::CompactionPace;
use telemetry::slow_requests::SlowOptions;

mod auth;
mod election;
mod gates;
mod log;
mod members;
pub(super) mod storage;
mod tls;
mod tracing;

pub use gates::features;

/// Reads and checks all values. `faults` keep a store from being begun with them. Warnings are appended to `warnings`.
pub(super) fn config(
    given: &BTreeMap<&'static str, Given>,
    faults: Vec<String>,
    warnings: &mut Vec<String>,
) -> Result<Config, String> {
    let values = Values { given };
    let name = values.text("name").to_owned();
    let data_dir = match values.text("data-dir") {
        "" => format!("{name}.etcd"),
        dir => dir.to_owned(),
    };
    let election_timeout = election_timeout(&values)?;
    let listen_client_urls = values.bind_urls("listen-client-urls")?;
    let listen_client_http_urls = values.bind_urls("listen-client-http-urls")?;
    let listen_metrics_urls = values.bind_urls("listen-metrics-urls")?;
    let listen_peer_urls = values.bind_urls("listen-peer-urls")?;
    let client_urls = [&listen_client_urls, &listen_client_http_urls, &listen_metrics_urls];
    let client_tls = tls::client(
        &values,
        &client_urls.into_iter().flatten().collect::<Vec<_>>(),
        warnings,
    )?;
    let peer_tls = tls::peer(&values, &listen_peer_urls.iter().collect::<Vec<_>>(), warnings)?;
    let storage = storage::read(&values)?;
    storage::check_member(&values, &name)?;
    let initial_advertise_peer_urls = values.host_urls("initial-advertise-peer-urls")?;
    let mut bootstrap = Bootstrap {
        faults,
        name: name.clone(),
        listed: Vec::new(),
        advertised: initial_advertise_peer_urls.clone(),
    };
    let mut config = Config {
        subcommand: None,
        checks: values.bool("check"),
        embedded_cluster_id: storage::embedded_cluster_id(&values)?,
        data_dir: data_dir.into(),
        listen_client_http_urls,
        listen_metrics_urls,
        listen_peer_urls,
        advertise_client_urls: advertised(&values, &listen_client_urls)?,
        listen_client_urls,
        discovery: members::discovery(&values, &storage, &mut bootstrap, warnings)?,
        initial_cluster: members::cluster(&values, &storage, &mut bootstrap),
        initial_advertise_peer_urls,
        election: election::read(&values, &storage)?,
        strict_reads: values.bool("strict-reads"),
        grpc_gateway: values.bool("enable-grpc-gateway"),
        leader_http: election::leader_http(&values)?,
        joins_existing: values.one_of("initial-cluster-state", &[("new", false), ("existing", true)])?,
        bootstrap,
        initial_cluster_token: values.text("initial-cluster-token").to_owned(),
        client_tls,
        peer_tls,
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
        auto_compaction: auto_compaction(&values, warnings)?,
        compaction: compaction_pace(&values, warnings)?,
        corrupt_check_interval: Some(values.duration("corrupt-check-time")?).filter(|every| !every.is_zero()),
        bootstrap_defrag_bytes: Some(values.number::<u32>("bootstrap-defrag-threshold-megabytes")?)
            .filter(|megabytes| *megabytes > 0)
            .map(|megabytes| u64::from(megabytes) << 20),
        slow_requests: SlowOptions {
            apply: values.duration("warning-apply-duration")?,
            unary: values.duration("warning-unary-request-duration")?,
        },
        tracing: tracing::read(&values)?,
        watch_progress_notify_interval: progress_interval(&values, warnings)?,
        election_timeout,
        auth: auth::read(&values, warnings)?,
        extensive_metrics: extensive_metrics(&values, warnings),
        unsafe_no_fsync: values.bool("unsafe-no-fsync"),
        embedded_cache_bytes: Some(values.number("embedded-cache-bytes")?).filter(|bytes| *bytes > 0),
        key_index_bytes: key_index_bytes(&values)?,
        storage,
        name,
    };
    gates::check(&values, warnings)?;
    members::check_fallback(&values)?;
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

    fn number<T: TryFrom<i128>>(&self, name: &str) -> Result<T, String> {
        let text = self.text(name);
        number::parse(text)
            .and_then(|number| number.try_into().ok())
            .ok_or_else(|| self.error(name, format!("{text:?} is not a number in range")))
    }

    /// Returns a duration. etcd takes negative ones, which mean what 0 means.
    fn duration(&self, name: &str) -> Result<Duration, String> {
        let text = self.text(name);
        match text.strip_prefix('-').map(duration::parse) {
            Some(Ok(_)) => Ok(Duration::ZERO),
            _ => duration::parse(text).map_err(|what| self.error(name, format!("{text:?}: {what}"))),
        }
    }

    /// Returns a list of URLs. As in etcd, an empty text is the default.
    fn urls(&self, name: &str) -> Result<Vec<Url>, String> {
        let text = match self.text(name) {
            "" => Flag::named(name).map_or("", |flag| flag.default),
            text => text,
        };
        Url::parse_list(text).map_err(|what| self.error(name, what))
    }

    /// The same of URLs that others dial.
    fn host_urls(&self, name: &str) -> Result<Vec<Url>, String> {
        let urls = self.urls(name)?;
        match urls
            .iter()
            .find(|url| url.host_port().is_some_and(|(host, _)| host.is_empty()))
        {
            Some(url) => Err(self.error(name, format!("unexpected empty host ({url})"))),
            None => Ok(urls),
        }
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

    /// The same as [`Values::one_of`], in any case.
    fn one_of_lower<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, String> {
        let lower = self.text(name).to_ascii_lowercase();
        match choices.iter().find(|(choice, _)| *choice == lower) {
            Some((_, value)) => Ok(*value),
            None => self.one_of(name, choices),
        }
    }

    fn one_of<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<T, String> {
        let text = self.text(name);
        choices
            .iter()
            .find(|(choice, _)| *choice == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                let choices = choices.iter().map(|(choice, _)| *choice);
                let choices: Vec<_> = choices.filter(|choice| !choice.is_empty()).collect();
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
        return values.host_urls("advertise-client-urls");
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
    // 0 is no limit, as in grpc-go.
    let max_concurrent_streams = match values.number("max-concurrent-streams")? {
        0 => u32::MAX,
        streams => streams,
    };
    Ok(Limits {
        max_inflight_bytes: inflight_bytes(values, max_request_bytes)?,
        max_request_bytes,
        max_receive_bytes: max_request_bytes + 512 * 1024,
        max_txn_ops: values.number("max-txn-ops")?,
        max_concurrent_streams,
        quota,
        disarms_nospace: values.bool("auto-disarm-nospace"),
    })
}

/// Returns the bytes of memory for requests and responses in flight; by default a share of the available memory.
fn inflight_bytes(values: &Values<'_>, max_request_bytes: usize) -> Result<usize, String> {
    // One connection may use half of it, and holds a request in encoded and in decoded form.
    let needed = max_request_bytes.saturating_add(512 * 1024).saturating_mul(8);
    let bytes = match values.number::<u64>("max-inflight-bytes")? {
        0 => sizing::IN_FLIGHT.of_available().max(needed),
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
        0 => sizing::KEY_INDEX.of_available(),
        bytes => usize::try_from(bytes).unwrap_or_default(),
    };
    Ok(bytes)
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

/// Returns the pace of compactions. Etcd's defaults are for bbolt; storage here has a size of its own for one write. 0 is the default, as
/// in etcd.
fn compaction_pace(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<CompactionPace, String> {
    const MOST: usize = 1_000_000;
    const LONGEST: Duration = Duration::from_secs(30);
    let mut pace = CompactionPace::default();
    if values.is_given("compaction-batch-limit") {
        let limit: usize = values.number("compaction-batch-limit")?;
        if limit > MOST {
            let origin = values.origin("compaction-batch-limit");
            warnings.push(format!("{origin} of {limit} is lowered to {MOST}"));
        }
        pace.batch_limit = Some(limit.min(MOST)).filter(|limit| *limit > 0);
    }
    if values.is_given("compaction-sleep-interval") {
        pace.pause = values.duration("compaction-sleep-interval")?;
        if pace.pause > LONGEST {
            let origin = values.origin("compaction-sleep-interval");
            warnings.push(format!("{origin} of {:?} is lowered to 30s", pace.pause));
            pace.pause = LONGEST;
        }
    }
    Ok(pace)
}

/// Returns the interval of progress notifications. As in etcd, 0 is the default, and shorter ones are the shortest.
fn progress_interval(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<Duration, String> {
    const DEFAULT: Duration = Duration::from_secs(600);
    const SHORTEST: Duration = Duration::from_millis(100);
    Ok(match values.duration("watch-progress-notify-interval")? {
        Duration::ZERO => DEFAULT,
        interval if interval < SHORTEST => {
            warnings.push("adjusting watch progress notify interval to minimum period 100ms".to_owned());
            SHORTEST
        }
        interval => interval,
    })
}

/// Returns true for `extensive`. As in etcd, everything else is `basic`.
fn extensive_metrics(values: &Values<'_>, warnings: &mut Vec<String>) -> bool {
    let text = values.text("metrics");
    if !["basic", "extensive"].contains(&text) {
        let origin = values.origin("metrics");
        warnings.push(format!(
            "{origin} of {text:?} is neither basic nor extensive: using basic"
        ));
    }
    text == "extensive"
}

/// Returns what automatic compaction keeps, as etcd reads it: a number of revisions or hours, or else a duration, whose nanoseconds are
/// revisions in the mode of these.
fn auto_compaction(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<AutoCompaction, String> {
    const HOUR: u64 = 3600;
    let by_revision = values.one_of("auto-compaction-mode", &[("periodic", false), ("revision", true)])?;
    let text = values.text("auto-compaction-retention");
    let number = text.parse::<u64>().ok();
    Ok(match (number, by_revision) {
        (Some(0), _) => AutoCompaction::Off,
        (Some(number), true) => AutoCompaction::Revision(number.try_into().unwrap_or(i64::MAX)),
        (Some(hours), false) => AutoCompaction::Periodic(Duration::from_secs(HOUR.saturating_mul(hours))),
        (None, _) => match (values.duration("auto-compaction-retention")?, by_revision) {
            (Duration::ZERO, _) => AutoCompaction::Off,
            (age, false) => AutoCompaction::Periodic(age),
            (age, true) => {
                let revisions = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
                warnings.push(format!(
                    "--auto-compaction-retention {text} is {revisions} revisions with --auto-compaction-mode=revision"
                ));
                AutoCompaction::Revision(revisions)
            }
        },
    })
}
