//! The list of backups, as a table or as JSON.

use anyhow::Context as _;
use serde_json::{Value, json};

use backup_repository::{BackupName, Manifest, ObjectError};

/// The format of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
}

const HEAD: [&str; 7] = ["NAME", "TIME", "REVISION", "SNAPSHOT", "STORED", "KEY", "CLUSTER"];

/// Prints backups; one whose manifest cannot be read with the reason.
pub(super) fn list(backups: &[(BackupName, Result<Manifest, ObjectError>)], format: Format) -> anyhow::Result<String> {
    match format {
        Format::Table => Ok(table(backups)),
        Format::Json => {
            let all: Vec<Value> = backups.iter().map(|(name, manifest)| entry(name, manifest)).collect();
            let text = serde_json::to_string_pretty(&all).context("encode the list")?;
            Ok(format!("{text}\n"))
        }
    }
}

fn entry(name: &BackupName, manifest: &Result<Manifest, ObjectError>) -> Value {
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
        }),
        Err(error) => json!({ "name": name.to_string(), "error": in_one_line(error) }),
    }
}

fn table(backups: &[(BackupName, Result<Manifest, ObjectError>)]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut faults = String::new();
    for (name, manifest) in backups {
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
        let backups = [(name, Err(missing))];
        let table = list(&backups, Format::Table).unwrap();
        assert!(table.starts_with("NAME  TIME  REVISION"), "{table}");
        let line = "20261129T113542.123Z-0000000000000012345 cannot be read: manifests/it is missing";
        assert_eq!(table.lines().last(), Some(line));
        let json: Value = serde_json::from_str(&list(&backups, Format::Json).unwrap()).unwrap();
        assert_eq!(json[0]["error"], "manifests/it is missing");
    }
}
