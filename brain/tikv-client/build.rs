//! Compiles the messages of PD and TiKV without a system `protoc`.

use anyhow::Context;

mod needed_rpcs;

/// The RPCs that are called, by service.
const RPCS: &[(&str, &[&str])] = &[
    (
        "PD",
        &[
            "GetMembers",
            "Tso",
            "GetRegion",
            "GetStore",
            "GetAllStores",
            "UpdateGCSafePoint",
        ],
    ),
    (
        "Tikv",
        &[
            "KvGet",
            "KvScan",
            "KvPrewrite",
            "KvCommit",
            "KvBatchGet",
            "KvBatchRollback",
            "KVPessimisticRollback",
            "KvResolveLock",
            "KvScanLock",
            "KvPessimisticLock",
            "KvCheckTxnStatus",
            "KvCheckSecondaryLocks",
            "UnsafeDestroyRange",
        ],
    ),
];

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=needed_rpcs.rs");
    let mut files = protox::compile(["pdpb.proto", "tikvpb.proto"], ["proto", "proto/include"])
        .context("compile the messages in proto")?;
    needed_rpcs::keep(&mut files, RPCS);
    tonic_prost_build::configure()
        .build_server(false)
        .disable_comments(["."])
        .include_file("kvproto.rs")
        .compile_fds(files)?;
    Ok(())
}
