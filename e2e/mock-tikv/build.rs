//! Compiles the server side of PD's and TiKV's services from the `.proto` files of the client, so that the mock and the
//! client under test speak of the same messages. No system `protoc`, no copy of the files.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

#[path = "../../brain/tikv-client/needed_rpcs.rs"]
mod needed_rpcs;

/// The RPCs that the mock answers, by service.
const RPCS: &[(&str, &[&str])] = &[
    (
        "PD",
        &[
            "GetMembers",
            "Tso",
            "GetRegion",
            "GetRegionByID",
            "GetStore",
            "GetAllStores",
            "UpdateGCSafePoint",
            "ScanRegions",
            "UpdateServiceGCSafePoint",
            "AdvanceTxnSafePoint",
            "AdvanceGCSafePoint",
        ],
    ),
    ("Keyspace", &["LoadKeyspace"]),
    (
        "Tikv",
        &[
            "KvGet",
            "KvBatchGet",
            "KvScan",
            "KvPrewrite",
            "KvCommit",
            "KvBatchRollback",
            "KvCheckTxnStatus",
            "KvCheckSecondaryLocks",
            "KvResolveLock",
            "KvScanLock",
            "KvTxnHeartBeat",
            "KvPessimisticLock",
            "KVPessimisticRollback",
            "UnsafeDestroyRange",
        ],
    ),
];

/// Directory of `proto/` and `proto/include/`, seen from here.
const CLIENT: &str = "../../brain/tikv-client";

/// RPCs and messages of newer PDs, as in kvproto, which the client's files do not have yet. The RPCs are added to the service `PD`, the
/// messages at the end of the file.
const GC_STATES: [&str; 2] = [
    "
    rpc AdvanceGCSafePoint(AdvanceGCSafePointRequest) returns (AdvanceGCSafePointResponse) {}
    rpc AdvanceTxnSafePoint(AdvanceTxnSafePointRequest) returns (AdvanceTxnSafePointResponse) {}
",
    "
message KeyspaceScope { uint32 keyspace_id = 1; }

message AdvanceGCSafePointRequest {
    RequestHeader header = 1;
    KeyspaceScope keyspace_scope = 2;
    uint64 target = 3;
}

message AdvanceGCSafePointResponse {
    ResponseHeader header = 1;
    uint64 old_gc_safe_point = 2;
    uint64 new_gc_safe_point = 3;
}

message AdvanceTxnSafePointRequest {
    RequestHeader header = 1;
    KeyspaceScope keyspace_scope = 2;
    uint64 target = 3;
}

message AdvanceTxnSafePointResponse {
    ResponseHeader header = 1;
    uint64 old_txn_safe_point = 2;
    uint64 new_txn_safe_point = 3;
    string blocker_description = 4;
}
",
];

fn main() -> anyhow::Result<()> {
    // As it is now: with a cache of its own a checkout may have moved since this program was built.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR is not set")?;
    let proto = Path::new(&package).join(CLIENT).join("proto");
    let include = proto.join("include");
    println!("cargo:rerun-if-changed={}", proto.display());
    println!("cargo:rerun-if-changed=build.rs");
    let amended = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?).join("proto");
    amend(&proto, &amended)?;
    let roots = [&amended, &proto, &include];
    println!("cargo:rerun-if-changed={CLIENT}/needed_rpcs.rs");
    let mut files = protox::compile(["pdpb.proto", "keyspacepb.proto", "tikvpb.proto"], roots)
        .with_context(|| format!("compile the messages in {}", proto.display()))?;
    needed_rpcs::keep(&mut files, RPCS);
    let mut builder = tonic_prost_build::configure();
    for field in [
        "region_error",
        "KvPair.error",
        "GetResponse.error",
        "ScanResponse.error",
    ] {
        // Errors are large and rare: inline, every pair of a scan would carry room for one.
        builder = builder.boxed(field);
    }
    builder
        .build_client(false)
        .generate_default_stubs(true)
        .bytes(".")
        .disable_comments(["."])
        .include_file("kvproto.rs")
        .compile_fds(files)?;
    Ok(())
}

/// Writes PD's file with [`GC_STATES`] into another directory.
fn amend(proto: &Path, amended: &Path) -> anyhow::Result<()> {
    let [calls, messages] = GC_STATES;
    let text = std::fs::read_to_string(proto.join("pdpb.proto")).context("read pdpb.proto")?;
    ensure!(
        !text.contains("AdvanceTxnSafePoint"),
        "the client's pdpb.proto has GC states: remove them from this file"
    );
    let service = "service PD {";
    ensure!(text.contains(service), "pdpb.proto has no service PD");
    let text = text.replacen(service, &format!("{service}{calls}"), 1) + messages;
    std::fs::create_dir_all(amended).context("make a directory for pdpb.proto")?;
    std::fs::write(amended.join("pdpb.proto"), text).context("write pdpb.proto")
}
