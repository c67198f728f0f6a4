//! Compiles the client side of the wire messages without a system `protoc`.

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=../brain/proto");
    let files = protox::compile(["../brain/proto/rpc.proto"], ["../brain/proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    Ok(())
}
