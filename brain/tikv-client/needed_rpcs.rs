//! Leaves out what no RPC in use needs. PD and TiKV have some 120 RPCs, and the code of each takes the compiler as long as that of one in use.

use std::collections::{BTreeMap, BTreeSet};

use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorSet};

/// Removes all RPCs but these, by service, and all messages that none of them reaches.
///
/// # Panics
/// There is no such RPC.
pub(crate) fn keep(files: &mut FileDescriptorSet, needed: &[(&str, &[&str])]) {
    let mut types = Vec::new();
    for file in &mut files.file {
        for service in &mut file.service {
            let mut rpcs = needed.iter().filter(|(name, _)| *name == service.name());
            let rpcs = rpcs.next().map_or(&[][..], |(_, rpcs)| rpcs);
            service.method.retain(|method| rpcs.contains(&method.name()));
            for rpc in rpcs {
                let mut found = service.method.iter();
                assert!(
                    found.any(|method| method.name() == *rpc),
                    "{} has no RPC {rpc}",
                    service.name()
                );
            }
            let methods = service.method.iter();
            types.extend(methods.flat_map(|method| [method.input_type().to_owned(), method.output_type().to_owned()]));
        }
        file.service.retain(|service| !service.method.is_empty());
    }
    let reached = reached(files, types);
    for file in &mut files.file {
        let package = file.package().to_owned();
        file.message_type
            .retain(|message| reached.contains(&full_name(&package, message)));
        // It has the numbers that messages had before.
        file.source_code_info = None;
    }
}

/// Returns the names of all messages that these need, with their own; an inner message counts as the one that it is in.
fn reached(files: &FileDescriptorSet, mut types: Vec<String>) -> BTreeSet<String> {
    let messages = files.file.iter().flat_map(|file| {
        let with_name = |message| (full_name(file.package(), message), message);
        file.message_type.iter().map(with_name)
    });
    let messages: BTreeMap<String, &DescriptorProto> = messages.collect();
    let mut reached = BTreeSet::new();
    while let Some(name) = types.pop() {
        let outer = messages
            .iter()
            .find(|(outer, _)| name == **outer || name.starts_with(&format!("{outer}.")));
        let Some((outer, message)) = outer else { continue };
        if reached.insert(outer.clone()) {
            fields(message, &mut types);
        }
    }
    reached
}

/// Adds the types of the fields of a message, and of those in it.
fn fields(message: &DescriptorProto, types: &mut Vec<String>) {
    types.extend(message.field.iter().filter_map(|field| field.type_name.clone()));
    for inner in &message.nested_type {
        fields(inner, types);
    }
}

fn full_name(package: &str, message: &DescriptorProto) -> String {
    format!(".{package}.{}", message.name())
}
