//! Compiles the messages of PD and TiKV without a system `protoc`.

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let files = protox::compile(["pdpb.proto", "tikvpb.proto"], ["proto", "proto/include"])
        .context("compile the messages in proto")?;
    tonic_prost_build::configure()
        .build_server(false)
        .disable_comments(["."])
        .include_file("kvproto.rs")
        .compile_fds(files)?;
    Ok(())
}
