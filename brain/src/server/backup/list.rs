//! The list of backups, as a table or as JSON.

use std::collections::HashMap;

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use backup_repository::archive::{Span, reach};
use backup_repository::{BackupName, Manifest, ObjectError, Repository};

/// The format of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
}

const HEAD: [&str; 9] = [
    "NAME",
    "TIME",
    "REVISION",
    "SNAPSHOT",
    "STORED",
    "KEY",
    "CLUSTER",
    "ARCHIVED TO",
    "AT",
];

/// The backups of a destination, and how far archives lead from them.
pub(super) struct Listing {
    backups: Vec<(BackupName, Result<Manifest, ObjectError>)>,
    /// The archives by cluster: their spans, and the time at the end of each as far as it can be read.
    archives: HashMap<String, Vec<(Span, Option<String>)>>,
}

impl Listing {
    pub(super) async fn read(repository: &Repository) -> Result<Self, ObjectError> {
        let mut archives = HashMap::new();
        for archive in repository.archives().await? {
            let mut spans = Vec::new();
            for span in archive.spans() {
                let end = repository.end_time(&archive.cluster, &span).await;
                if let Err(error) = &end {
                    tracing::warn!(error = in_one_line(error), "the end of an archive cannot be read");
                }
                spans.push((span, end.ok().and_then(time)));
            }
            archives.insert(archive.cluster, spans);
        }
        let backups = repository.backups().await?;
        Ok(Self { backups, archives })
    }

    /// Returns the revision that a backup can be brought to, and the time at which it was known to be the newest one.
    fn archived(&self, manifest: &Manifest) -> Option<(i64, Option<&str>)> {
        let archive = self.archives.get(&manifest.cluster_id)?;
        let spans: Vec<Span> = archive.iter().map(|(span, _)| span.clone()).collect();
        let end = reach(&spans, manifest.revision);
        let found = archive.iter().find(|(span, _)| span.last == end)?;
        Some((end, found.1.as_deref()))
    }
}

fn time(millis: i64) -> Option<String> {
    let time = DateTime::<Utc>::from_timestamp_millis(millis)?;
    Some(time.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// Prints backups; one whose manifest cannot be read with the reason.
pub(super) fn list(listing: &Listing, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => Ok(table(listing)),
        Format::Json => {
            let all = listing.backups.iter();
            let all: Vec<Value> = all.map(|(name, manifest)| entry(listing, name, manifest)).collect();
            let text = serde_json::to_string_pretty(&all).context("encode the list")?;
            Ok(format!("{text}\n"))
        }
    }
}

fn entry(listing: &Listing, name: &BackupName, manifest: &Result<Manifest, ObjectError>) -> Value {
    match manifest {
        Ok(manifest) => json!({
            "name": name.to_string(),
            "kind": manifest.kind,
            "time": manifest.time,
            "revision": manifest.revision,
            "clusterId": manifest.cluster_id,
            "snapshotBytes": manifest.snapshot.bytes,
            "storedBytes": manifest.stored_bytes(),
            "parts": manifest.parts.len(),
            "keyId": manifest.encryption.map(|encryption| encryption.key_id),
            "archivedTo": listing.archived(manifest).map(|(revision, time)| json!({ "revision": revision, "time": time })),
        }),
        Err(error) => json!({ "name": name.to_string(), "error": in_one_line(error) }),
    }
}

fn table(listing: &Listing) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut faults = String::new();
    for (name, manifest) in &listing.backups {
        let archived = manifest.as_ref().ok().and_then(|manifest| listing.archived(manifest));
        match manifest {
            Ok(manifest) => rows.push([
                name.to_string(),
                manifest.time.clone(),
                manifest.revision.to_string(),
                describe_size(manifest.snapshot.bytes),
                describe_size(manifest.stored_bytes()),
                manifest
                    .encryption
                    .map_or_else(|| "-".to_owned(), |it| it.key_id.to_string()),
                manifest.cluster_id.clone(),
                archived.map_or_else(|| "-".to_owned(), |(revision, _)| revision.to_string()),
                archived.and_then(|(_, time)| time).unwrap_or("-").to_owned(),
            ]),
            Err(error) => faults.push_str(&format!("{name} cannot be read: {}\n", in_one_line(error))),
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; HEAD.len()] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text + &faults
}

/// Returns an error with its causes.
fn in_one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Formats bytes in binary units.
pub(super) fn describe_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{size:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_536, "1.5 KiB"),
            (64 << 20, "64.0 MiB"),
            (5 << 40, "5.0 TiB"),
            (5_000 << 40, "5000.0 TiB"),
        ] {
            assert_eq!(describe_size(bytes), text);
        }
    }

    #[test]
    fn backup_that_cannot_be_read_is_listed_with_the_reason() {
        let name: BackupName = "20261129T113542.123Z-0000000000000012345".parse().unwrap();
        let missing = ObjectError::Missing {
            object: "manifests/it".to_owned(),
        };
        let listing = Listing {
            backups: vec![(name, Err(missing))],
            archives: HashMap::new(),
        };
        let table = list(&listing, Format::Table).unwrap();
        assert!(table.starts_with("NAME  TIME  REVISION"), "{table}");
        let line = "20261129T113542.123Z-0000000000000012345 cannot be read: manifests/it is missing";
        assert_eq!(table.lines().last(), Some(line));
        let json: Value = serde_json::from_str(&list(&listing, Format::Json).unwrap()).unwrap();
        assert_eq!(json[0]["error"], "manifests/it is missing");
    }
}
