//! `kubebrain import`: flags that reach the source are etcdctl's, those that locate the new store are the server's.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::Command;
use clap::{Arg, ArgMatches};

use super::attempts::{attempt_flags, attempts};
use super::command::{STORE, check_store_is_named, flags, is_set, option, store_flags, switch, value};
use super::{FlagError, ImportCommand, Subcommand, duration};
use backup::import::{Password, SourceOptions};
use etcd_types::url::{Scheme, Url};
use tls::TlsOptions;

/// The variable that holds the password, as for etcdctl.
const PASSWORD: &str = "ETCDCTL_PASSWORD";

const NOTES: &str = "\
It takes a snapshot of the source, creates a store from it, and then applies the changes of the source, at the same revisions, until it has \
reached the source's revision. Then all keys of both stores are compared: values, revisions, versions and leases. Keys keep their revisions, \
all of history since the compacted revision, and their leases with their remaining time; users and roles are copied, alarms and members are \
not. The source serves its clients all the time. No server starts on the store before it is complete. With --cutover-file a source that does not answer is waited for, and so is the end of its writers.

To migrate: run it with --follow until it logs that it has reached the source, stop the clients of the source, send it SIGUSR1, and start \
kubebrain on the store when it has ended. It can be interrupted at any time; started again with the same flags, it continues. A source that is still \
written to after the signal is an error: stop the writers, and start it again.

Where no signal can be sent, as in a pod, --cutover-file does the same. With --listen-metrics-urls, /readyz is 200 once the copy has reached the \
source, and /metrics has the revisions of both. With --once the command can be repeated by a Job: it ends well, and changes nothing, if the store is \
complete.

Flags locate the store, as for the server, but without defaults: --data-dir, or --storage tikv with --tikv-pd-endpoints and \
--tikv-key-prefix. --initial-cluster-token must be that of the members. No variables but ETCDCTL_PASSWORD are read.";

/// Returns the flags that reach a running etcd, as etcdctl has them; that of its endpoints is named `endpoints`.
pub(super) fn source_flags(endpoints: &'static str) -> [Arg; 7] {
    let ca = "PEM file of the CA of the source [default: the CAs that this system trusts]";
    let user = "the user, who needs the role root if the source has auth enabled";
    let password = "the user's password; without it, the variable ETCDCTL_PASSWORD is read";
    let urls = "the source's client URLs, separated by commas";
    [
        option(endpoints, "URLS", urls).required(true),
        option("cacert", "FILE", ca),
        option(
            "cert",
            "FILE",
            "PEM file of the client certificate that is presented to the source",
        ),
        option("key", "FILE", "PEM file of the key of --cert"),
        option("user", "NAME[:PASSWORD]", user),
        option("password", "PASSWORD", password),
        option("dial-timeout", "DURATION", "the timeout of a connection attempt")
            .default_value("2s")
            .value_parser(dial_timeout),
    ]
}

pub(super) fn command() -> Command {
    let until = "follow the source to this revision and finish there, even if the source has a newer one";
    Command::new("import")
        .about("Copies a running etcd or kubebrain into a new store, and follows it until its clients move to the copy")
        .after_help(NOTES)
        .args(source_flags("from-endpoints"))
        .args([
            switch("follow", "follow the source until SIGUSR1, then finish"),
            option(
                "cutover-file",
                "FILE",
                "finish a copy with --follow once this file exists and is not empty, and no client writes to the source",
            ),
            option("until-revision", "N", until).value_parser(revision),
            switch(
                "restart",
                "delete an incomplete copy in the directory, and start with a new snapshot",
            ),
        ])
        .args(attempt_flags(
            "do nothing if there is a complete store; delete what an interrupted command has left",
        ))
        .args(flags(&["listen-metrics-urls"]).map(|arg| arg.help("comma-separated http URLs for /metrics and /readyz")))
        .args(store_flags(&STORE))
}

/// Reads [`source_flags`].
pub(super) fn source(
    endpoints: &str,
    args: &ArgMatches,
    env: &[(OsString, OsString)],
) -> Result<SourceOptions, FlagError> {
    let text = |name| value::<String>(args, name);
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
    let urls = endpoints_of(&text(endpoints).unwrap_or_default(), has_tls)
        .map_err(|what| FlagError(format!("--{endpoints} is not valid: {what}")))?;
    let variable = env.iter().find(|(variable, _)| variable == PASSWORD);
    let variable = variable.map(|(_, value)| value.to_string_lossy().into_owned());
    Ok(SourceOptions {
        endpoints: urls,
        tls,
        user: user(text("user").as_deref(), text("password").as_deref(), variable)?,
        dial_timeout: value(args, "dial-timeout").unwrap_or_default(),
    })
}

pub(super) fn read(args: &ArgMatches, env: &[(OsString, OsString)]) -> Result<Subcommand, FlagError> {
    let command = ImportCommand {
        source: source("from-endpoints", args, env)?,
        follows: is_set(args, "follow"),
        until_revision: value(args, "until-revision"),
        restarts: is_set(args, "restart"),
        cutover_file: value::<String>(args, "cutover-file").map(Into::into),
        attempts: attempts(args)?,
    };
    if command.follows && command.until_revision.is_some() {
        return Err(FlagError("--follow and --until-revision exclude each other".to_owned()));
    }
    let file = &command.cutover_file;
    if file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return Err(FlagError("--cutover-file needs the path of a file".to_owned()));
    }
    if command.cutover_file.is_some() && !command.follows {
        return Err(FlagError("--cutover-file needs --follow".to_owned()));
    }
    if command.attempts.once && command.restarts {
        return Err(FlagError("--once and --restart exclude each other".to_owned()));
    }
    check_store_is_named("import", args)?;
    Ok(Subcommand::Import(Box::new(command)))
}

fn dial_timeout(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err("must be >0".to_owned()),
        timeout => timeout,
    }
}

fn revision(text: &str) -> Result<i64, &'static str> {
    let number = text.parse().ok();
    number.filter(|revision| *revision > 0).ok_or("not a revision")
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
