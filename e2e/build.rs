//! Compiles the client side of the wire from the brain's own files, without a system `protoc`.

fn main() -> anyhow::Result<()> {
    const PROTO: &str = "../brain/proto";
    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile(
        ["rpc", "auth", "lock", "election"].map(|name| format!("{PROTO}/{name}.proto")),
        [PROTO],
    )?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
