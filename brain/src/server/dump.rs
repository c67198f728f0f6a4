//! `kubebrain debug`: prints stored data, one JSON object per line. Reads only.
//!
//! People and scripts rely on the field names: they are stable. Byte strings are printed with Rust's ASCII escapes, ids of members
//! and leases in hexadecimal, as etcdctl does.

use std::io::{self, Write};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use prost::Message as _;
use serde_json::{Value, json};

use crate::flags::Dump;
use engine::log::reader::{LogEntry, Reader};
use engine::log::{DynLog, Slot};
use engine::rows::{Order, Scan, Snapshot};
use mvcc::auth::{AUTH_ROW, AuthRow, Role, User};
use mvcc::dictionaries::{Dictionaries, decode_dictionary};
use mvcc::keys::{self, RowRange};
use mvcc::record::{Change, Record};
use mvcc::row::{LeaseRow, Manifest, decode_index, decode_object};
use mvcc::view::successor;

/// Rows per read.
const PAGE_ROWS: usize = 1_000;
/// Bytes per read.
const PAGE_BYTES: usize = 1 << 20;

/// A field name and its value. Names need no escapes.
type DumpField = (&'static str, Value);

/// The output, and the number of lines that may still be printed.
#[derive(Debug)]
pub(super) struct DumpLines<W> {
    out: W,
    left: u64,
}

impl<W: Write> DumpLines<W> {
    /// Prints at most `limit` lines to `out`.
    pub(super) fn new(out: W, limit: Option<u64>) -> Self {
        let left = limit.unwrap_or(u64::MAX);
        Self { out, left }
    }

    /// Flushes the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Prints a line with its fields in this order, unless the limit is reached.
    fn put(&mut self, line: &[DumpField]) -> io::Result<()> {
        if self.is_full() {
            return Ok(());
        }
        self.left -= 1;
        for (index, (name, value)) in line.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            write!(self.out, "{before}\"{name}\":{value}")?;
        }
        writeln!(self.out, "}}")
    }
}

/// Prints barriers and batches from the watermark on, then records that are not known to be committed. Fails if the log cannot be
/// read, if records are invalid, or if `lines` cannot be written.
pub(super) async fn log<W: Write>(log: DynLog, lines: &mut DumpLines<W>) -> anyhow::Result<()> {
    let watermark = log.watermark().await?;
    let mut reader = Reader::seek(log.clone(), watermark).await?;
    while !lines.is_full() {
        match reader.next().await? {
            Some(LogEntry::Barrier(slot, barrier)) => lines.put(&[
                ("slot", json!(slot.0)),
                ("kind", json!("barrier")),
                ("epoch", json!(barrier.epoch)),
                ("member", json!(hex(barrier.writer))),
                ("lock", json!(hex(barrier.lock))),
                ("lease_ms", json!(barrier.lease.as_millis())),
            ])?,
            Some(LogEntry::Batch {
                first,
                next,
                epoch,
                payload,
                ..
            }) => lines.put(&batch((first, next), epoch, payload)?)?,
            None => break,
        }
    }
    let (mut position, now) = (reader.position(), log.watermark().await?);
    ensure!(
        now <= position,
        "slots were destroyed while they were read: the watermark moved from {watermark} to {now}; try again"
    );
    // Records of an incomplete batch, or after a free slot.
    while !lines.is_full() {
        let records = log.read(position, PAGE_BYTES).await?;
        let Some((last, _)) = records.last() else { break };
        position = last.next();
        for (slot, record) in records {
            lines.put(&[
                ("slot", json!(slot.0)),
                ("kind", json!("uncommitted")),
                ("bytes", json!(record.len())),
            ])?;
        }
    }
    Ok(())
}

fn batch((slot, next): (Slot, Slot), epoch: u64, payload: Bytes) -> anyhow::Result<Vec<DumpField>> {
    let bytes = payload.len();
    let record = Record::decode(payload)
        .with_context(|| format!("slot {slot}: the batch that begins here does not decode: the log is damaged"))?;
    let revisions = record.entries.iter().filter_map(|entry| match &entry.change {
        Some(Change::Keys(keys)) => Some(keys.revision),
        _ => None,
    });
    Ok(vec![
        ("slot", json!(slot.0)),
        ("slots", json!(next.0 - slot.0)),
        ("kind", json!("batch")),
        ("epoch", json!(epoch)),
        // Null for a batch that changes no key.
        ("first_revision", json!(revisions.clone().min())),
        ("last_revision", json!(revisions.max())),
        ("requests", json!(record.entries.len())),
        ("bytes", json!(bytes)),
    ])
}

/// Prints rows in the order of their keys. Fails if the rows cannot be read, if a row is not one that a brain writes, or if `lines`
/// cannot be written.
pub(super) async fn rows<W: Write>(rows: &dyn Snapshot, dump: &Dump, lines: &mut DumpLines<W>) -> anyhow::Result<()> {
    // Rows that need none are shown even if one is damaged.
    let dictionaries = Dictionaries::load(rows).await.unwrap_or_else(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "cannot read the dictionaries of compressed values"
        );
        Dictionaries::default()
    });
    for range in ranges(&dump.prefix) {
        let mut from = range.from;
        while !lines.is_full() {
            let scan = Scan {
                from,
                to: Some(range.to.clone()).filter(|to| !to.is_empty()),
                order: Order::Ascending,
                keys_only: false,
                max_rows: PAGE_ROWS,
                max_bytes: PAGE_BYTES,
            };
            let page = rows.scan(scan).await?;
            let Some((last, _)) = page.rows.last() else { break };
            from = successor(last);
            for (key, value) in &page.rows {
                if let Some(line) = row(key, value, dump, &dictionaries)? {
                    lines.put(&line)?;
                }
            }
            if page.done {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the row ranges that can hold rows of keys with a prefix, in order. An empty `to` is the end.
fn ranges(prefix: &[u8]) -> Vec<RowRange> {
    if prefix.is_empty() {
        let (from, to) = (Bytes::new(), Bytes::new());
        return vec![RowRange { from, to }];
    }
    let end = prefix
        .iter()
        .rposition(|byte| *byte != 0xff)
        .map_or_else(|| vec![0], |last| [&prefix[..last], &[prefix[last] + 1]].concat());
    vec![
        keys::attachments_range(),
        keys::index_range(prefix, &end),
        keys::object_range(prefix, &end),
    ]
}

/// Returns one row as a line; `None` if it does not match the options.
fn row(row: &Bytes, value: &Bytes, dump: &Dump, dictionaries: &Dictionaries) -> anyhow::Result<Option<Vec<DumpField>>> {
    let what = || format!("the row {:?}", row.escape_ascii().to_string());
    let line = match row.first() {
        Some(b'a') => {
            let (lease, key) = keys::parse_attachment(row).with_context(what)?;
            if !key.starts_with(&dump.prefix) {
                return Ok(None);
            }
            vec![
                ("kind", json!("attachment")),
                ("lease", json!(hex(lease.0))),
                ("key", json!(text(&key))),
            ]
        }
        Some(b'i') => {
            let key = keys::parse_index(row).with_context(what)?;
            let meta = decode_index(&key, value)?;
            vec![
                ("kind", json!("index")),
                ("key", json!(text(&key))),
                ("create_revision", json!(meta.create_revision)),
                ("mod_revision", json!(meta.mod_revision)),
                ("version", json!(meta.version)),
                ("lease", json!(hex(meta.lease.0))),
                ("size", json!(meta.size)),
            ]
        }
        Some(b'o') => object(row, value, dump, dictionaries)?,
        Some(b's') => {
            let lease = keys::parse_lease(row).with_context(what)?;
            let stored = LeaseRow::decode(value.clone()).with_context(what)?;
            vec![
                ("kind", json!("lease")),
                ("lease", json!(hex(lease.0))),
                ("ttl", json!(stored.ttl)),
                ("remaining", json!(stored.remaining)),
            ]
        }
        Some(b'd') => vec![
            ("kind", json!("dictionary")),
            ("number", json!(keys::parse_dictionary(row).with_context(what)?)),
            ("id", json!(decode_dictionary(row, value)?.id().get())),
            ("size", json!(value.len())),
        ],
        Some(b'm') if *row == keys::meta_key(AUTH_ROW) => {
            let stored = AuthRow::decode(value.clone()).with_context(what)?;
            vec![
                ("kind", json!("auth")),
                ("enabled", json!(stored.enabled)),
                ("auth_revision", json!(stored.revision)),
            ]
        }
        // Hashes of passwords are not shown.
        Some(b'u') => {
            let stored = User::decode(value.clone()).with_context(what)?;
            vec![
                ("kind", json!("user")),
                ("user", json!(keys::parse_user(row).with_context(what)?)),
                ("no_password", json!(stored.no_password)),
                ("roles", json!(stored.roles)),
            ]
        }
        Some(b'r') => {
            let stored = Role::decode(value.clone()).with_context(what)?;
            let permissions = stored.permissions.iter().map(|permission| {
                json!({
                "kind": permission.kind,
                "key": text(&permission.key),
                "range_end": text(&permission.range_end),
                })
            });
            vec![
                ("kind", json!("role")),
                ("role", json!(keys::parse_role(row).with_context(what)?)),
                ("permissions", json!(permissions.collect::<Vec<_>>())),
            ]
        }
        _ => vec![
            ("kind", json!("unknown")),
            ("row", json!(text(row))),
            ("size", json!(value.len())),
        ],
    };
    Ok(Some(line))
}

/// Returns a version of a key, or its deletion, as a line.
fn object(row: &Bytes, value: &Bytes, dump: &Dump, dictionaries: &Dictionaries) -> anyhow::Result<Vec<DumpField>> {
    let what = || format!("the row {:?}", row.escape_ascii().to_string());
    let (key, revision) = keys::parse_object(row).with_context(what)?;
    let Some((meta, value)) = decode_object(&key, value, dictionaries)? else {
        return Ok(vec![
            ("kind", json!("tombstone")),
            ("key", json!(text(&key))),
            ("revision", json!(revision)),
        ]);
    };
    let mut line = vec![
        ("kind", json!("object")),
        ("key", json!(text(&key))),
        ("revision", json!(revision)),
        ("create_revision", json!(meta.create_revision)),
        ("version", json!(meta.version)),
        ("lease", json!(hex(meta.lease.0))),
        ("size", json!(meta.size)),
    ];
    if dump.values {
        line.push(("value", json!(text(&value))));
    }
    Ok(line)
}

/// Prints the manifest, the row that is written with every change of rows. Fails if there is none, if it does not decode, or if
/// `lines` cannot be written.
pub(super) fn manifest<W: Write>(stored: Option<Bytes>, lines: &mut DumpLines<W>) -> anyhow::Result<()> {
    let stored = stored.context("there is no manifest: no member ever led on this store")?;
    let size = stored.len();
    let manifest = Manifest::decode(stored).context("the manifest does not decode: the rows are damaged")?;
    let alarms = manifest.alarms.iter();
    let alarms = alarms.map(|alarm| json!({"member": hex(alarm.member), "kind": alarm.kind}));
    let sizes = &manifest.sizes;
    lines.put(&[
        ("format", json!(manifest.format)),
        ("number", json!(manifest.number)),
        ("epoch", json!(manifest.epoch)),
        ("lock", json!(hex(manifest.lock))),
        ("lease_ms", json!(manifest.lease)),
        ("prior_lease_ms", json!(manifest.prior_lease_ms)),
        ("applied_slot", json!(manifest.applied_slot)),
        ("revision", json!(manifest.revision)),
        ("flushing_revision", json!(manifest.flushing_revision)),
        ("compacted", json!(manifest.compacted)),
        ("deleted_up_to", json!(manifest.deleted_up_to)),
        ("deleted_slot", json!(manifest.deleted_slot)),
        ("alarms", json!(alarms.collect::<Vec<_>>())),
        (
            "log",
            json!(
                manifest
                    .log_id
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
            ),
        ),
        ("log_last_slot", json!(manifest.log_last)),
        (
            "sizes",
            json!({
            "written": sizes.written,
            "deleted": sizes.deleted,
            "logged": sizes.logged,
            "dropped": sizes.dropped,
            }),
        ),
        ("bytes", json!(size)),
    ])?;
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn hex(id: impl std::fmt::LowerHex) -> String {
    format!("{id:x}")
}
