//! `kubebrain import`: the command line. Flags that say how to reach the source are etcdctl's, those that select the store are the
//! server's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use super::config::{ImportCommand, Storage};
use super::read::storage::TIKV_STORE;
use super::snapshot::{LOG_FLAGS, STORE_FLAGS};
use super::table::{Flag, Kind};
use super::{Config, FlagError, duration};
use backup::import::{Password, SourceOptions};
use etcd_types::url::{Scheme, Url};
use tls::TlsOptions;

/// The subcommand.
const IMPORT: &str = "import";

/// The variable that holds the password, as for etcdctl.
const PASSWORD: &str = "ETCDCTL_PASSWORD";

/// etcdctl's default of `--dial-timeout`.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Flags of the subcommand with a value.
const TEXT: [&str; 8] = [
    "from-endpoints",
    "cacert",
    "cert",
    "key",
    "user",
    "password",
    "dial-timeout",
    "until-revision",
];

/// Flags of the subcommand without a value.
const SWITCHES: [&str; 2] = ["follow", "restart"];

const HELP: &str = "\
Copies a running etcd or kubebrain into a new store, and follows it until its clients move to the copy

Usage: kubebrain import --from-endpoints URLS --data-dir DIR [flags]
       kubebrain import --from-endpoints URLS --storage tikv --tikv-pd-endpoints PD --tikv-key-prefix PREFIX [flags]

It takes a snapshot of the source, creates a store from it, and then applies the changes of the source, at the same revisions, until it has
reached the source's revision. Then all keys of both stores are compared: values, revisions, versions and leases. Keys keep their revisions,
all of history since the compacted revision, and their leases with their remaining time; users and roles are copied, alarms and members are
not. The source serves its clients all the time. No server starts on the store before it is complete.

To migrate: run it with --follow until it logs that it has reached the source, stop the clients of the source, send it SIGUSR1, and start
kubebrain on the store when it has ended. It can be interrupted at any time; started again with the same flags, it continues.

  --from-endpoints URLS  the source's client URLs, separated by commas
  --cacert, --cert, --key  PEM files: the CA of the source [default: those that this system trusts], and the client certificate and its key
  --user NAME[:PASSWORD]  the user, who needs the role root if the source has auth enabled
  --password PASSWORD  the user's password; without it, the variable ETCDCTL_PASSWORD is read
  --dial-timeout DURATION  the timeout of a connection attempt [default: 2s]
  --follow  follow the source until SIGUSR1, then finish
  --until-revision N  follow the source to this revision and finish there, even if the source has a newer one
  --restart  delete an incomplete copy in the directory, and start with a new snapshot

Flags locate the store, as for the server: --data-dir, or --storage tikv with --tikv-pd-endpoints, --tikv-key-prefix, --tikv-cluster-id,
--tikv-ca, --tikv-cert, --tikv-key and --initial-cluster-token, which must be that of the members; --log-outputs, --log-level and
--log-format. No other variables are read.
";

/// The request of the subcommand.
pub(super) enum Taken {
    /// Print this and exit.
    Help(String),
    /// Copy a store.
    Command(Box<ImportCommand>),
}

/// Removes the subcommand and its own arguments; returns `None` if the subcommand is absent. Fails if it does not accept an argument,
/// or if one is missing.
pub(super) fn take(args: &mut Vec<OsString>, env: &[(OsString, OsString)]) -> Result<Option<Taken>, FlagError> {
    if args.first().is_none_or(|first| first != IMPORT) {
        return Ok(None);
    }
    args.remove(0);
    let is_help = |arg: &OsString| ["-h", "-help", "--help"].iter().any(|help| arg == help);
    if args.iter().any(is_help) {
        return Ok(Some(Taken::Help(HELP.to_owned())));
    }
    let mut own = BTreeMap::new();
    let mut others = Vec::new();
    let mut rest = std::mem::take(args).into_iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy().into_owned();
        if !text.starts_with('-') {
            return Err(FlagError(format!("import takes only flags, not {text:?}")));
        }
        let bare = text.trim_start_matches('-');
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        if let Some(switch) = SWITCHES.iter().find(|switch| **switch == name) {
            let given = match value.as_deref() {
                None | Some("true") => true,
                Some("false") => false,
                Some(other) => return Err(FlagError(format!("--{switch} must be true or false, not {other:?}"))),
            };
            own.insert(*switch, given.to_string());
        } else if let Some(flag) = TEXT.iter().find(|flag| **flag == name) {
            let next = || rest.next().map(|next| next.to_string_lossy().into_owned());
            let value = value.or_else(next);
            own.insert(
                *flag,
                value.ok_or_else(|| FlagError(format!("--{flag} needs a value")))?,
            );
        } else {
            let flag = Flag::named(name);
            let flag = flag.ok_or_else(|| FlagError(format!("unknown flag --{name}: see kubebrain import --help")))?;
            others.push(arg);
            if flag.kind == Kind::Text && value.is_none() {
                others.extend(rest.next());
            }
        }
    }
    *args = others;
    let password = env.iter().find(|(variable, _)| variable == PASSWORD);
    let password = password.map(|(_, value)| value.to_string_lossy().into_owned());
    command(&own, password).map(|command| Some(Taken::Command(Box::new(command))))
}

/// Checks the subcommand's own flags.
fn command(own: &BTreeMap<&str, String>, password: Option<String>) -> Result<ImportCommand, FlagError> {
    let text = |name: &str| own.get(name).map(String::as_str);
    let is_set = |name: &str| text(name) == Some("true");
    let invalid = |name: &str, what: String| FlagError(format!("--{name} is not valid: {what}"));
    let tls = TlsOptions {
        pair: match (text("cert"), text("key")) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            _ => return Err(FlagError("--cert and --key must be set together".to_owned())),
        },
        trusted_ca: text("cacert").map(Into::into),
        system_roots: text("cacert").is_none(),
        ..TlsOptions::default()
    };
    let has_tls = tls.pair.is_some() || tls.trusted_ca.is_some();
    let endpoints = text("from-endpoints").ok_or_else(|| FlagError("import requires --from-endpoints".to_owned()))?;
    let endpoints = endpoints_of(endpoints, has_tls).map_err(|what| invalid("from-endpoints", what))?;
    let dial_timeout = match text("dial-timeout") {
        None => DIAL_TIMEOUT,
        Some(text) => duration::parse(text).map_err(|what| invalid("dial-timeout", format!("{text:?}: {what}")))?,
    };
    if dial_timeout.is_zero() {
        return Err(invalid("dial-timeout", "it must be >0".to_owned()));
    }
    let until_revision = match text("until-revision").map(|text| (text, text.parse::<i64>())) {
        None => None,
        Some((_, Ok(revision))) if revision > 0 => Some(revision),
        Some((text, _)) => return Err(invalid("until-revision", format!("{text:?} is not a revision"))),
    };
    let follows = is_set("follow");
    if follows && until_revision.is_some() {
        return Err(FlagError("--follow and --until-revision exclude each other".to_owned()));
    }
    Ok(ImportCommand {
        source: SourceOptions {
            endpoints,
            tls,
            user: user(text("user"), text("password"), password)?,
            dial_timeout,
        },
        follows,
        until_revision,
        restarts: is_set("restart"),
    })
}

/// Parses URLs. As for etcdctl, one without a scheme gets that of the other flags.
fn endpoints_of(text: &str, has_tls: bool) -> Result<Vec<Url>, String> {
    let scheme = if has_tls { "https" } else { "http" };
    let mut urls = Vec::new();
    for part in text.split(',').map(str::trim) {
        let url = if part.contains("://") {
            Url::parse(part)?
        } else {
            Url::parse(&format!("{scheme}://{part}"))?
        };
        if !matches!(url.scheme(), Scheme::Http | Scheme::Https) {
            return Err(format!("{part:?} has a scheme other than http and https"));
        }
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    Ok(urls)
}

fn user(
    user: Option<&str>,
    password: Option<&str>,
    variable: Option<String>,
) -> Result<Option<(String, Password)>, FlagError> {
    let Some(user) = user else {
        return match password {
            Some(_) => Err(FlagError("--password needs --user".to_owned())),
            None => Ok(None),
        };
    };
    let (name, password) = match (user.split_once(':'), password) {
        (Some(_), Some(_)) => return Err(FlagError("--user and --password both give a password".to_owned())),
        (Some((name, password)), None) => (name, Some(password.to_owned())),
        (None, Some(password)) => (user, Some(password.to_owned())),
        (None, None) => (user, variable),
    };
    match password {
        Some(password) if !name.is_empty() => Ok(Some((name.to_owned(), Password(password)))),
        Some(_) => Err(FlagError("--user needs a name".to_owned())),
        None => Err(FlagError(format!(
            "--user needs a password: --password, or the variable {PASSWORD}"
        ))),
    }
}

/// Refuses a flag that the subcommand does not accept, or the lack of one that it needs.
pub(super) fn check(given: impl Iterator<Item = &'static str>, config: &Config) -> Result<(), FlagError> {
    let names: Vec<&str> = given.collect();
    let is_taken = |name: &str| {
        [&LOG_FLAGS[..], &STORE_FLAGS, &TIKV_STORE]
            .iter()
            .any(|flags| flags.contains(&name))
    };
    if let Some(name) = names.iter().find(|name| !is_taken(name)) {
        return Err(FlagError(format!("import takes no --{name}")));
    }
    let needed = match config.storage {
        Storage::Embedded => "data-dir",
        Storage::Tikv(_) => "tikv-key-prefix",
    };
    if !names.contains(&needed) {
        return Err(FlagError(format!("import needs --{needed}")));
    }
    Ok(())
}
