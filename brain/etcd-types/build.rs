//! Compiles the wire messages without a system `protoc`, and keeps their descriptors.

use std::path::PathBuf;

use prost::Message as _;

/// `FieldDescriptorProto.Type` of `bytes`.
const TYPE_BYTES: i32 = 12;

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let mut files = protox::compile(
        ["rpc", "auth", "lock", "election", "health", "peer"].map(|name| format!("proto/{name}.proto")),
        ["proto"],
    )?;
    // The JSON gateway translates by these.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    // An event goes to many watchers and is encoded once: `WatchResponse.events` takes events that are encoded
    // already. On the wire a message field and a `bytes` field are the same, so the .proto file stays as it is.
    let events = files
        .file
        .iter_mut()
        .flat_map(|file| &mut file.message_type)
        .filter(|message| message.name.as_deref() == Some("WatchResponse"))
        .flat_map(|message| &mut message.field)
        .find(|field| field.name.as_deref() == Some("events"))
        .ok_or_else(|| anyhow::anyhow!("proto/rpc.proto has no field WatchResponse.events"))?;
    events.r#type = Some(TYPE_BYTES);
    events.type_name = None;
    // Members dial each other by this API, too.
    tonic_prost_build::configure()
        .build_client(true)
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
