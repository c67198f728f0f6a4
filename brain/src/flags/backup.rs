//! `kubebrain backup`: flags that reach the member are etcdctl's, those that locate a new store are the server's, and those of the
//! destination are its own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{Command, PossibleValuesParser};
use clap::{Arg, ArgMatches, value_parser};

use super::attempts::{attempt_flags, attempts, request_id};
use super::command::{LOG, STORE, check_store_is_named, flags, is_set, option, quiet, store_flags, switch, value};
use super::import::{source, source_flags};
use super::snapshot::{bump_flags, bump_revision};
use super::{BackupAction, BackupChoice, BackupCommand, DeletedBackup, FlagError, RestorePoint, Subcommand, duration};
use backup_repository::{BackupName, DestinationOptions, Variables};
use chrono::{DateTime, Utc};
use retention::Retention;

/// The name that stands for the newest backup.
const LATEST: &str = "latest";

/// The bounds of `--archive-interval`.
const MIN_ARCHIVE_INTERVAL: Duration = Duration::from_secs(1);
const MAX_ARCHIVE_INTERVAL: Duration = Duration::from_secs(3_600);

const NOTES: &str = "\
A destination is file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix (also azblob://). Credentials are read \
from the variables that the provider's own tools read (AWS_*, GOOGLE_*, AZURE_*), from --destination-credentials-file, or from the service \
of the machine or pod. Several clusters may share a destination, but each should have its own.";

const CREATE: &str = "\
The member writes a snapshot and sends it, as for `etcdctl snapshot save`; its clients are served all the time. The snapshot is compressed, \
split into parts of 64 MiB and stored as it arrives. Up to 320 MiB of it wait in $TMPDIR. The manifest is written last: an interrupted \
backup is none, and `kubebrain backup delete --orphans` deletes its parts after a day. No variables but ETCDCTL_PASSWORD and those of the \
provider are read.

With --request-id it reads the manifests of all backups first. It can be repeated after any interruption, and makes one backup.";

const ARCHIVE: &str = "\
It runs beside the members, as any client, until it gets SIGTERM, and stores every change of a key in segments: after --archive-interval, or \
once there are 16 MiB of them. With a backup from before they restore the store to any revision and second. If the destination has no \
backup that the archive can begin at, it makes one.

It continues where it ended, whatever ended it, as long as the members have not compacted what is missing; if they have, it logs an error, \
counts a gap, makes a new backup, and begins again. Users and roles are those of the backup; leases get all of their time to live when they \
are restored. Only one process may write the archive of a cluster: an earlier one ends. No variables but ETCDCTL_PASSWORD and those of the \
provider are read.";

const RESTORE: &str = "\
With --at-revision, --at-time or --at-end the changes in the archive are added to the newest backup before that point, or to the one that is \
named, and all of them are compared in the end. Nothing is left out in silence: a segment that is missing or damaged is named, and a time \
at which the archive did not follow the store is refused.

The backup is read into an unnamed file next to the data directory, or in $TMPDIR for TiKV, and then restored as by `kubebrain snapshot \
restore`: after an interruption or a crash the same command continues, and no server starts on the store before it is complete. It takes up \
to four times the size of the snapshot on disk. --initial-cluster-token must be that of the members.

With --once the command can be repeated until it succeeds, whatever the newest backup is by then: a complete store is never changed.";

const VERIFY: &str = "\
All parts are read into an unnamed file in $TMPDIR and compared with the manifest; then the snapshot in them with its own checksum, and its \
content is read. Then all segments of the archive that follow the backup are read. The exit code is 3 if any of this is damaged or missing.

With --restore a store is made of all this in $TMPDIR, as by `kubebrain backup restore --at-end`, and compared: a file system is needed there with \
space for four times the size of the snapshot, and twelve times that of the segments. The store is deleted in the end; a process that is killed or interrupted may leave it in \
$TMPDIR/kubebrain-verify-*.";

const PRUNE: &str = "\
A backup stays if at least one of the rules keeps it. Hours, days, weeks (ISO), months and years are those of UTC, and only those that have \
backups count. \
Ages count from the newest backup, so nothing expires while backups fail. Each cluster is counted separately. Backups whose manifest cannot \
be read stay. Segments of the archive before the oldest backup of their cluster are deleted.";

pub(super) fn command() -> Command {
    let acts = |name: &'static str, about: &'static str| Command::new(name).about(about).args(destination_flags());
    let reads =
        |name, about| acts(name, about).arg(keys("FILES", "all keys that backups may have, separated by commas"));
    let chosen = "the name of the backup, or `latest`";
    let count = |name: &'static str, help: &'static str| option(name, "N", help).value_parser(value_parser!(usize));
    Command::new("backup")
        .about("Makes, lists, verifies, restores and deletes backups in an object store or a directory, and archives changes")
        .after_help(NOTES)
        .subcommand_required(true)
        .subcommands([
            acts("create", "Makes a backup of a running kubebrain")
                .after_help(CREATE)
                .args(object_flags())
                .arg(keys("FILE", "encrypt the backup with the key in this file: 32 random bytes, as they are, in base64 or in hexadecimal"))
                .args([
                    switch("verify", "read the backup again after it was made, and compare all of it with what was written"),
                    request_id("make no second backup for the same ID: if the destination has one, it is the result"),
                    option("result-file", "FILE", "write the result to this file, in JSON"),
                ])
                .args(source_flags("endpoints"))
                .args(flags(&LOG)),
            acts("archive", "Stores the changes of a running kubebrain all the time")
                .after_help(ARCHIVE)
                .args(object_flags())
                .arg(keys("FILE", "encrypt segments and backups with the key in this file: 32 random bytes, as they are, in base64 or in hexadecimal"))
                .arg(
                    option("archive-interval", "DURATION", "the time after which changes are stored: as much is lost at most")
                        .default_value("10s")
                        .value_parser(interval),
                )
                .args(source_flags("endpoints"))
                .args(flags(&["listen-metrics-urls"]).map(|arg| arg.help("comma-separated http URLs for /metrics")))
                .args(flags(&LOG)),
            quiet(acts("list", "Lists the backups, the oldest one first").args(flags(&LOG))).arg(
                option("output", "FORMAT", "the format of the list")
                    .default_value("table")
                    .value_parser(PossibleValuesParser::new(["table", "json"])),
            ),
            reads("verify", "Reads a backup and compares all of it with what was written")
                .after_help(VERIFY)
                .arg(name(chosen).default_value(LATEST))
                .arg(switch("restore", "restore the backup and the archive after it into an empty directory in $TMPDIR, compare that, and delete it"))
                .args(flags(&LOG)),
            reads("restore", "Creates a new store from a backup")
                .after_help(RESTORE)
                .arg(name("the name of the backup, or `latest`; may be left out with a point"))
                .args(point_flags())
                .args(bump_flags())
                .args(attempt_flags(
                    "do nothing if the target holds a complete store, and delete a part of another snapshot or backup there",
                ))
                .args(store_flags(&STORE)),
            reads("export", "Writes a backup to a file that `etcdutl snapshot restore` takes")
                .arg(name(chosen).required(true))
                .arg(
                    Arg::new("FILE")
                        .required(true)
                        .value_parser(value_parser!(PathBuf))
                        .help("the file, which must not exist"),
                )
                .args(flags(&LOG)),
            acts("delete", "Deletes a backup, or parts that belong to none")
                .arg(name("the name of the backup"))
                .arg(request_id("delete the backup that was made with this ID, if there is one"))
                .arg(switch("prune-archive", "then delete the segments of archives that no backup needs any more, as prune does"))
                .arg(switch("orphans", "delete parts that are older than a day and that no manifest names"))
                .args(flags(&LOG)),
            acts("prune", "Deletes the backups that no rule keeps")
                .after_help(PRUNE)
                .args([
                    count("keep-last", "keep the newest N backups"),
                    option("keep-within", "DURATION", "keep backups that are at most this much older than the newest one, such as 36h or 14d")
                        .value_parser(days),
                    count("keep-hourly", "keep the newest backup of each of the last N hours"),
                    count("keep-daily", "keep the newest backup of each of the last N days"),
                    count("keep-weekly", "keep the newest backup of each of the last N weeks"),
                    count("keep-monthly", "keep the newest backup of each of the last N months"),
                    count("keep-yearly", "keep the newest backup of each of the last N years"),
                    switch("dry-run", "print what would be deleted, and delete nothing"),
                ])
                .args(flags(&LOG)),
        ])
}

/// Returns the flags of the point that a store is restored to.
fn point_flags() -> [Arg; 3] {
    [
        option("at-revision", "N", "add the changes in the archive up to this revision")
            .value_parser(value_parser!(i64).range(1..)),
        option(
            "at-time",
            "TIME",
            "add the changes up to this time, in RFC 3339, such as 2026-11-29T16:45:00Z",
        )
        .value_parser(time),
        switch("at-end", "add all changes in the archive"),
    ]
}

fn point(args: &ArgMatches) -> Result<RestorePoint, FlagError> {
    let points = [
        value(args, "at-revision").map(RestorePoint::Revision),
        value(args, "at-time").map(RestorePoint::Time),
        is_set(args, "at-end").then_some(RestorePoint::End),
    ];
    let mut given = points.into_iter().flatten();
    match (given.next(), given.next()) {
        (None, _) => Ok(RestorePoint::Backup),
        (Some(point), None) => Ok(point),
        _ => Err(FlagError(
            "backup restore takes one of --at-revision, --at-time and --at-end".to_owned(),
        )),
    }
}

fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let time = DateTime::parse_from_rfc3339(text);
    let time = time.map_err(|error| format!("must be a time in RFC 3339, such as 2026-11-29T16:45:00Z: {error}"))?;
    Ok(time.to_utc())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    let allowed = MIN_ARCHIVE_INTERVAL..=MAX_ARCHIVE_INTERVAL;
    match allowed.contains(&interval) {
        true => Ok(interval),
        false => Err(format!(
            "must be between {MIN_ARCHIVE_INTERVAL:?} and {MAX_ARCHIVE_INTERVAL:?}"
        )),
    }
}

fn name(help: &'static str) -> Arg {
    Arg::new("NAME").help(help)
}

fn keys(value: &'static str, help: &'static str) -> Arg {
    option("encryption-key-file", value, help)
}

fn destination_flags() -> [Arg; 8] {
    let style = "put the bucket into the path of URLs, not into their host [default: true with an endpoint]";
    let file = "file of credentials: that of AWS's tools, with the profile that AWS_PROFILE names, or Google's in JSON";
    let directory = "directory of files named as the provider's variables, which they take precedence over, such as a mounted Secret; they are \
                     read again when they change";
    let explicit = "take credentials from variables and files alone, never from a service of the machine or pod";
    [
        option("destination", "URL", "the place of the backups").required(true),
        option(
            "destination-endpoint",
            "URL",
            "the URL of the service, for one that is not the provider's own",
        ),
        option(
            "destination-region",
            "NAME",
            "the region of the bucket, for S3 [default: AWS_REGION, or us-east-1]",
        ),
        option(
            "destination-ca-file",
            "FILE",
            "PEM file of the CA of the service [default: the CAs that this system trusts]",
        ),
        switch("destination-path-style", style),
        option("destination-credentials-file", "FILE", file),
        option("destination-credentials-dir", "DIR", directory),
        switch("destination-explicit-credentials", explicit),
    ]
}

/// Returns the flags of new objects.
fn object_flags() -> [Arg; 3] {
    let encryption = "how S3 encrypts the objects: AES256, aws:kms or aws:kms:dsse [default: as the bucket says]";
    [
        option(
            "storage-class",
            "NAME",
            "the storage class, or the access tier of Azure, of new objects",
        ),
        option("server-side-encryption", "NAME", encryption),
        option("kms-key-id", "ID", "the key that aws:kms uses [default: AWS's own]"),
    ]
}

pub(super) fn read(action: &str, args: &ArgMatches, env: &[(OsString, OsString)]) -> Result<Subcommand, FlagError> {
    let destination = destination(args, env)?;
    let files = value::<String>(args, "encryption-key-file").unwrap_or_default();
    let key_files: Vec<PathBuf> = files
        .split(',')
        .filter(|file| !file.is_empty())
        .map(PathBuf::from)
        .collect();
    let action = match action {
        "create" | "archive" if key_files.len() > 1 => {
            return Err(FlagError(
                "a backup is encrypted with one key: --encryption-key-file names several".to_owned(),
            ));
        }
        "create" => BackupAction::Create {
            source: Box::new(source("endpoints", args, env)?),
            request_id: value(args, "request-id"),
            verify: is_set(args, "verify"),
            result_file: value::<String>(args, "result-file").map(Into::into),
        },
        "archive" => BackupAction::Archive {
            source: Box::new(source("endpoints", args, env)?),
            interval: value(args, "archive-interval").unwrap_or(MAX_ARCHIVE_INTERVAL),
        },
        "list" => BackupAction::List {
            json: value::<String>(args, "output").is_some_and(|format| format == "json"),
        },
        "verify" => BackupAction::Verify {
            backup: choice(args)?,
            restores: is_set(args, "restore"),
        },
        "restore" => {
            check_store_is_named("backup restore", args)?;
            let point = point(args)?;
            if point == RestorePoint::Backup && value::<String>(args, "NAME").is_none() {
                let text = "backup restore needs <NAME>, or one of --at-revision, --at-time and --at-end";
                return Err(FlagError(text.to_owned()));
            }
            BackupAction::Restore {
                backup: choice(args)?,
                point,
                bump_revision: bump_revision(args)?,
                attempts: attempts(args)?,
            }
        }
        "export" => BackupAction::Export {
            backup: choice(args)?,
            file: value(args, "FILE").unwrap_or_default(),
        },
        "delete" => {
            let (name, request) = (value::<String>(args, "NAME"), value(args, "request-id"));
            let prune_archive = is_set(args, "prune-archive");
            let delete = |backup| BackupAction::Delete { backup, prune_archive };
            match (name, request, is_set(args, "orphans")) {
                (Some(name), None, false) => delete(DeletedBackup::Named(parse(&name)?)),
                (None, Some(request), false) => delete(DeletedBackup::OfRequest(request)),
                (None, None, true) if prune_archive => {
                    let text =
                        "backup delete --orphans deletes no segments that have a backup: --prune-archive has no effect";
                    return Err(FlagError(text.to_owned()));
                }
                (None, None, true) => BackupAction::DeleteOrphans,
                _ => {
                    let text = "backup delete needs one of <NAME>, --request-id and --orphans";
                    return Err(FlagError(text.to_owned()));
                }
            }
        }
        _ => BackupAction::Prune {
            retention: retention(args)?,
            dry_run: is_set(args, "dry-run"),
        },
    };
    Ok(Subcommand::Backup(Box::new(BackupCommand {
        destination,
        key_files,
        action,
    })))
}

fn destination(args: &ArgMatches, env: &[(OsString, OsString)]) -> Result<DestinationOptions, FlagError> {
    let text = |name| value::<String>(args, name);
    let variables = env.iter().filter_map(|(name, value)| {
        let (name, value) = (name.to_str()?, value.to_str()?);
        Some((name.to_owned(), value.to_owned()))
    });
    let options = DestinationOptions {
        url: text("destination").unwrap_or_default(),
        endpoint: text("destination-endpoint"),
        region: text("destination-region"),
        ca_file: text("destination-ca-file").map(Into::into),
        path_style: value(args, "destination-path-style"),
        storage_class: text("storage-class"),
        server_side_encryption: text("server-side-encryption"),
        kms_key_id: text("kms-key-id"),
        credentials_file: text("destination-credentials-file").map(Into::into),
        credentials_dir: text("destination-credentials-dir").map(Into::into),
        explicit_credentials: is_set(args, "destination-explicit-credentials"),
        variables: Variables::of(variables),
    };
    options.check().map_err(|error| FlagError(error.to_string()))?;
    Ok(options)
}

fn choice(args: &ArgMatches) -> Result<BackupChoice, FlagError> {
    match value::<String>(args, "NAME").as_deref() {
        None | Some(LATEST) => Ok(BackupChoice::Latest),
        Some(name) => Ok(BackupChoice::Named(parse(name)?)),
    }
}

fn parse(name: &str) -> Result<BackupName, FlagError> {
    name.parse()
        .map_err(|error: backup_repository::NotAName| FlagError(error.to_string()))
}

fn retention(args: &ArgMatches) -> Result<Retention, FlagError> {
    let count = |name| value::<usize>(args, name).unwrap_or_default();
    let retention = Retention {
        last: count("keep-last"),
        within: value(args, "keep-within"),
        hourly: count("keep-hourly"),
        daily: count("keep-daily"),
        weekly: count("keep-weekly"),
        monthly: count("keep-monthly"),
        yearly: count("keep-yearly"),
    };
    if retention.is_empty() {
        let text = "backup prune needs a rule that keeps something, such as --keep-last 7";
        return Err(FlagError(text.to_owned()));
    }
    Ok(retention)
}

/// Parses a duration in Go's format, or a number of days.
fn days(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 3_600)),
        None => duration::parse(text),
    }
}
