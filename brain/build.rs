//! Compiles the wire messages without a system `protoc`.

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
