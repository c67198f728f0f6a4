//! Compiles the client side of the wire from the brain's own files, without a system `protoc`.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> anyhow::Result<()> {
    const PROTO: &str = "../../brain/etcd-types/proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile(
        ["rpc", "auth", "lock", "election"].map(|name| format!("{PROTO}/{name}.proto")),
        [PROTO],
    )?;
    // Requests and answers are written and read as JSON by these.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
