//! The fuzz targets, and the properties that they check.

use bytes::Bytes;
use prost::Message;

use super::{fuzz, scratch};
use crate::flags;
use api::request::{self, RequestLimits};
use cluster::membership::MemberTable;
use engine::log::frame::{Barrier, Frame, put_part_header};
use engine::log::laws::read_all;
use engine::log::{Log as _, Slot};
use engine_local::log::{FileLog, FileLogOptions};
use etcd_types::pb::etcdserverpb as pb;
use mvcc::auth::{AuthChange, Role, User, UserChange};
use mvcc::dictionaries::{Dictionaries, decode_dictionary};
use mvcc::keys;
use mvcc::record::{Change, Entry, Grant, KeyChange, Keys, Record, Token};
use mvcc::row::{self, LeaseRow, Manifest};
use runtime::compression::Dictionary;
use testkit::certificates::Ca;
use tls::{ServerTls, TlsOptions, TlsPolicy};

const QUICK_CASES: u32 = 2_000;
/// Number of cases for targets that open files.
const SLOW_CASES: u32 = 150;

/// Decodes a message, and checks that it is the same after encoding and decoding it again.
fn message<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(&message.encode_to_vec()[..]).unwrap();
    assert_eq!(again, message);
    Some(message)
}

#[test]
fn requests_never_panic() {
    let limits = RequestLimits {
        txn_ops: 128,
        request_bytes: 3 << 19,
        key_bytes: 4_000,
        value_bytes: 8 << 20,
    };
    let put = pb::PutRequest {
        key: Bytes::from_static(b"key"),
        value: Bytes::from_static(b"value"),
        lease: 7,
        prev_kv: true,
        ..pb::PutRequest::default()
    };
    let range = pb::RangeRequest {
        key: Bytes::from_static(b"a"),
        range_end: Bytes::from_static(b"z"),
        limit: 3,
        revision: -1,
        ..pb::RangeRequest::default()
    };
    let op = |request| pb::RequestOp { request: Some(request) };
    let inner = pb::TxnRequest {
        success: vec![op(pb::request_op::Request::RequestPut(put.clone()))],
        ..pb::TxnRequest::default()
    };
    let txn = pb::TxnRequest {
        compare: vec![pb::Compare {
            key: Bytes::from_static(b"key"),
            target_union: Some(pb::compare::TargetUnion::ModRevision(3)),
            ..pb::Compare::default()
        }],
        success: vec![
            op(pb::request_op::Request::RequestTxn(inner)),
            op(pb::request_op::Request::RequestRange(range.clone())),
        ],
        failure: vec![op(pb::request_op::Request::RequestDeleteRange(
            pb::DeleteRangeRequest {
                key: Bytes::from_static(b"key"),
                range_end: Bytes::from_static(b"\0"),
                prev_kv: true,
            },
        ))],
    };
    let seeds = vec![put.encode_to_vec(), range.encode_to_vec(), txn.encode_to_vec()];
    fuzz("requests", QUICK_CASES, seeds, |bytes| {
        if let Some(put) = message::<pb::PutRequest>(bytes) {
            let checked = request::put(&put, &limits);
            assert!(checked.is_err() || !put.key.is_empty() && put.key.len() <= limits.key_bytes);
        }
        if let Some(range) = message::<pb::RangeRequest>(bytes) {
            assert!(request::range(&range).is_err() || !range.key.is_empty());
        }
        if let Some(delete) = message::<pb::DeleteRangeRequest>(bytes) {
            assert!(request::delete(&delete).is_err() || !delete.key.is_empty());
        }
        if let Some(txn) = message::<pb::TxnRequest>(bytes) {
            let checked = request::txn(&txn, &limits);
            assert!(checked.is_err() || txn.success.len() <= limits.txn_ops);
        }
        message::<pb::WatchRequest>(bytes);
        message::<pb::LeaseGrantRequest>(bytes);
        message::<pb::CompactionRequest>(bytes);
    });
}

#[test]
fn log_frames_never_panic() {
    let barrier = Barrier {
        epoch: 3,
        nonce: 1 << 90,
        writer: 5,
        lease: std::time::Duration::from_secs(4),
        lock: 1,
    };
    let mut part = bytes::BytesMut::new();
    put_part_header(&mut part, 3, 0, 1, true);
    part.extend_from_slice(b"payload");
    let seeds = vec![barrier.encode().to_vec(), part.to_vec()];
    fuzz("frames", QUICK_CASES, seeds, |bytes| {
        match Frame::decode(Slot(1), Bytes::copy_from_slice(bytes)) {
            Ok(Frame::Barrier(barrier)) => {
                let again = Frame::decode(Slot(1), barrier.encode()).unwrap();
                assert_eq!(again, Frame::Barrier(barrier));
            }
            Ok(Frame::Part(part)) => assert!(bytes.ends_with(&part.payload)),
            Err(_) => {}
        }
    });
}

fn record() -> Record {
    let change = KeyChange {
        key: Bytes::from_static(b"key"),
        value: Bytes::from_static(b"value"),
        create_revision: 2,
        version: 1,
        ..KeyChange::default()
    };
    let keys = Keys {
        revision: 2,
        changes: vec![change],
    };
    let grant = Grant { id: 7, ttl: 60 };
    let user = UserChange {
        name: "user".to_owned(),
        user: Some(User::default()),
    };
    let auth = AuthChange {
        revision: 2,
        users: vec![user],
        ..AuthChange::default()
    };
    let token = Token {
        user: "user".to_owned(),
        digest: Bytes::from_static(&[7; 32]),
    };
    let changes = [
        Change::Keys(keys),
        Change::Grant(grant),
        Change::Auth(auth),
        Change::Token(token),
    ];
    Record {
        base: 1,
        entries: changes.map(Entry::from).into(),
    }
}

#[test]
fn records_never_panic() {
    let empty = Entry { change: None };
    let seeds = vec![record().encode_to_vec(), empty.encode_to_vec()];
    fuzz("records", QUICK_CASES, seeds, |bytes| {
        message::<Record>(bytes);
    });
}

#[test]
fn rows_never_panic() {
    let revision = 5;
    let keys = [
        keys::index_key(b"a\0b"),
        keys::object_key(b"a\0b", revision),
        keys::lease_key(etcd_types::types::LeaseId(-3)),
        keys::attachment_key(etcd_types::types::LeaseId(9), b"key"),
        keys::meta_key("format"),
        keys::dictionary_key(1),
        keys::user_key("ünser"),
        keys::role_key("role"),
    ];
    let long = b"four".repeat(1_000);
    let dictionaries = Dictionaries::default();
    let compressed = || row::encode_object_compressed(Some((&row::KeyMeta::default(), &long)), &dictionaries);
    let alone = compressed();
    let samples: Vec<Bytes> = (0..2_000)
        .map(|n| format!("{n} four{}", n * n).repeat(30).into())
        .collect();
    dictionaries.add(Dictionary::train(&samples).unwrap().into());
    let with_dictionary = compressed();
    let seeds = keys
        .iter()
        .chain([&alone, &with_dictionary])
        .map(|bytes| bytes.to_vec());
    fuzz("rows", QUICK_CASES, seeds.collect(), |bytes| {
        let row = Bytes::copy_from_slice(bytes);
        if let Ok(key) = keys::parse_index(&row) {
            assert_eq!(keys::index_key(&key), row);
        }
        if let Ok((key, revision)) = keys::parse_object(&row) {
            assert_eq!(keys::object_key(&key, revision), row);
        }
        if let Ok(id) = keys::parse_lease(&row) {
            assert_eq!(keys::lease_key(id), row);
        }
        if let Ok((id, key)) = keys::parse_attachment(&row) {
            assert_eq!(keys::attachment_key(id, &key), row);
        }
        drop(keys::parse_meta(&row));
        if let Ok(number) = keys::parse_dictionary(&row) {
            assert_eq!(keys::dictionary_key(number), row);
        }
        if let Ok(dictionary) = decode_dictionary(&keys::dictionary_key(1), &row) {
            assert_eq!(*dictionary.content(), row);
        }
        if let Ok(name) = keys::parse_user(&row) {
            assert_eq!(keys::user_key(&name), row);
        }
        if let Ok(name) = keys::parse_role(&row) {
            assert_eq!(keys::role_key(&name), row);
        }
        message::<User>(bytes);
        message::<Role>(bytes);
        if let Ok(meta) = row::decode_index(b"key", bytes) {
            assert_eq!(row::encode_index(&meta), row);
        }
        if let Ok(object) = row::decode_object(b"key", &row, &dictionaries) {
            let version = object.as_ref().map(|(meta, value)| (meta, &value[..]));
            for again in [
                row::encode_object(version),
                row::encode_object_compressed(version, &dictionaries),
            ] {
                assert_eq!(row::decode_object(b"key", &again, &dictionaries).unwrap(), object);
            }
        }
        message::<LeaseRow>(bytes);
    });
}

#[test]
fn databases_never_panic() {
    let mut writer = bbolt::Writer::new(std::io::Cursor::new(Vec::new())).unwrap();
    for bucket in [&b"a"[..], b"b", b"c"] {
        writer.begin_bucket(bucket).unwrap();
        for n in 0..if bucket == b"b" { 300_u32 } else { 3 } {
            writer.put(&n.to_be_bytes(), b"value").unwrap();
        }
    }
    let seeds = vec![writer.finish().unwrap().0.into_inner()];
    fuzz("databases", QUICK_CASES, seeds, |bytes| {
        let Ok(reader) = bbolt::Reader::open(bytes, bytes.len() as u64) else {
            return;
        };
        let mut content = 0;
        let visited: Result<(), bbolt::Error> = reader.visit(|visited| {
            if let bbolt::VisitedPart::Pair { key, value, .. } = visited {
                content += key.len() + value.len();
            }
            Ok(())
        });
        assert!(content <= bytes.len(), "{content} bytes, then {visited:?}");
        for name in [&b"a"[..], b"b", b"c"] {
            let Ok(Some(mut pairs)) = reader.bucket(name) else {
                continue;
            };
            while let Ok(Some((key, value))) = pairs.next() {
                assert!(key.len() + value.len() <= bytes.len());
            }
        }
    });
}

#[test]
fn manifests_never_panic() {
    let manifest = Manifest {
        epoch: 3,
        applied_slot: 900,
        revision: 77,
        compacted: 50,
        ..Manifest::fresh()
    };
    fuzz("manifest", QUICK_CASES, vec![manifest.encode_to_vec()], |bytes| {
        if let Some(manifest) = message::<Manifest>(bytes) {
            assert!(manifest.reached() >= manifest.revision);
        }
    });
}

#[test]
fn member_tables_never_panic() {
    fuzz(
        "member table",
        QUICK_CASES,
        vec![MemberTable::default().encode().to_vec()],
        |bytes| {
            let stored = Bytes::copy_from_slice(bytes);
            if let Ok(table) = MemberTable::decode(Some(&stored)) {
                assert_eq!(MemberTable::decode(Some(&table.encode())).unwrap(), table);
            }
        },
    );
}

#[test]
fn flags_never_panic() {
    fuzz("flags", SLOW_CASES, Vec::new(), |bytes| {
        // one argument per line; the environment follows an empty line
        use std::os::unix::ffi::OsStringExt as _;
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let text = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
        let args: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).map(text).collect();
        let env = lines.filter_map(|line| {
            let equals = line.iter().position(|byte| *byte == b'=')?;
            Some((text(&line[..equals]), text(&line[equals + 1..])))
        });
        if let Err(error) = flags::parse(args, env.collect::<Vec<_>>()) {
            assert!(!error.to_string().is_empty());
        }
    });
}

/// Files of a listener, one of them replaced by the fuzzed input.
struct Certificates {
    dir: tempfile::TempDir,
    options: TlsOptions,
}

impl Certificates {
    fn new(ca: &Ca) -> Self {
        let dir = scratch();
        let leaf = ca.server();
        let path = |name: &str| dir.path().join(name);
        for (name, content) in [("crt", &leaf.cert), ("key", &leaf.key), ("ca", &ca.pem)] {
            std::fs::write(path(name), content).unwrap();
        }
        let options = TlsOptions {
            pair: Some((path("crt"), path("key"))),
            dial_pair: None,
            trusted_ca: Some(path("ca")),
            system_roots: false,
            crl: None,
            allowed_hostnames: Vec::new(),
            allowed_common_names: Vec::new(),
            self_signed: None,
        };
        Self { dir, options }
    }

    fn load(&self, options: &TlsOptions) {
        if let Err(error) = ServerTls::load(options, &TlsPolicy::default()) {
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn pem_files_never_panic() {
    let ca = Ca::new("ca");
    let certificates = Certificates::new(&ca);
    let tried = certificates.dir.path().join("tried");
    let leaf = ca.server();
    let seeds = vec![leaf.cert.into(), leaf.key.into(), ca.pem.clone().into()];
    fuzz("pem", SLOW_CASES, seeds, |bytes| {
        std::fs::write(&tried, bytes).unwrap();
        let good = &certificates.options;
        let (cert, key) = good.pair.clone().unwrap();
        for options in [
            TlsOptions {
                trusted_ca: Some(tried.clone()),
                ..good.clone()
            },
            TlsOptions {
                pair: Some((tried.clone(), key)),
                ..good.clone()
            },
            TlsOptions {
                pair: Some((cert, tried.clone())),
                ..good.clone()
            },
        ] {
            certificates.load(&options);
        }
    });
}

#[test]
fn revocation_lists_never_panic() {
    let ca = Ca::new("ca");
    let certificates = Certificates::new(&ca);
    let tried = certificates.dir.path().join("tried");
    let list = ca.revoke(&ca.client("client"));
    let seeds = vec![list.pem().unwrap().into(), list.der().to_vec()];
    let options = TlsOptions {
        crl: Some(tried.clone()),
        ..certificates.options.clone()
    };
    fuzz("crl", SLOW_CASES, seeds, |bytes| {
        std::fs::write(&tried, bytes).unwrap();
        certificates.load(&options);
    });
}

/// Damage to a segment is detected, or is in records that were not acknowledged: no record ever differs from the written one.
#[test]
fn segments_show_no_record_that_was_not_written() {
    let options = FileLogOptions {
        first_segment_bytes: 8 << 10,
        segment_bytes: 8 << 10,
        unsafe_no_fsync: true,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let good = scratch();
    let written = runtime.block_on(async {
        let log = FileLog::open(good.path(), options).unwrap();
        for slot in 1..=12 {
            let record = engine::log::laws::record(slot, 0, 300);
            log.append(Slot(slot), record).await.unwrap();
        }
        read_all(&log, 1).await
    });
    let mut files: Vec<_> = std::fs::read_dir(good.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let segment = |path: &std::path::Path| path.extension().is_some_and(|extension| extension == "segment");
    let (segments, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|path| segment(path));
    let last = segments.last().unwrap();
    let seeds = vec![std::fs::read(last).unwrap()];
    fuzz("segments", SLOW_CASES, seeds, |bytes| {
        let dir = scratch();
        for path in others.iter().chain(&segments) {
            std::fs::copy(path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        std::fs::write(dir.path().join(last.file_name().unwrap()), bytes).unwrap();
        let Ok(log) = FileLog::open(dir.path(), options) else {
            return;
        };
        runtime.block_on(async {
            let mut next = Slot(1);
            while let Ok(read) = log.read(next, 64 << 10).await {
                let Some((last, _)) = read.last() else { return };
                next = last.next();
                for (slot, record) in read {
                    assert!(written.contains(&(slot.0, record)), "slot {slot}");
                }
            }
        });
    });
}
