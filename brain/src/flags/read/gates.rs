//! Feature gates: `Gate=true,Other=false`, with the names and defaults of etcd 3.6.

use super::super::config::Features;
use super::{Values, go_bool};

/// A gate's name, and whether its stage is beta.
const GATES: &[(&str, bool)] = &[
    ("CompactHashCheck", false),
    ("InitialCorruptCheck", false),
    ("LeaseCheckpoint", false),
    ("LeaseCheckpointPersist", false),
    ("SetMemberLocalAddr", false),
    ("StopGRPCServiceOnDefrag", false),
    ("TxnModeWriteWithSharedBuffer", true),
];

pub(super) fn read(values: &Values<'_>) -> Result<Features, String> {
    let mut named = Vec::new();
    let mut stages = [None, None];
    for pair in values.list("feature-gates") {
        let error = |what: String| values.error("feature-gates", what);
        let Some((name, text)) = pair.split_once('=') else {
            return Err(error(format!("missing bool value for {pair}")));
        };
        let (name, text) = (name.trim(), text.trim());
        let on = go_bool(text).ok_or_else(|| error(format!("invalid value of {name}={text}: use true or false")))?;
        match name {
            "AllAlpha" => stages[0] = Some(on),
            "AllBeta" => stages[1] = Some(on),
            _ if GATES.iter().any(|(gate, _)| *gate == name) => named.push((name.to_owned(), on)),
            _ => return Err(error(format!("unrecognized feature gate: {name}"))),
        }
    }
    let on = |name: &str| {
        let beta = GATES.iter().any(|(gate, beta)| *gate == name && *beta);
        let chosen = named.iter().rfind(|(gate, _)| gate == name).map(|(_, on)| *on);
        chosen.or(stages[usize::from(beta)]).unwrap_or(beta)
    };
    let features = Features {
        initial_corrupt_check: on("InitialCorruptCheck"),
        compact_hash_check: on("CompactHashCheck"),
        lease_checkpoint: on("LeaseCheckpoint"),
        lease_checkpoint_persist: on("LeaseCheckpointPersist"),
        set_member_local_addr: on("SetMemberLocalAddr"),
        stop_grpc_service_on_defrag: on("StopGRPCServiceOnDefrag"),
        txn_mode_write_with_shared_buffer: on("TxnModeWriteWithSharedBuffer"),
    };
    if features.lease_checkpoint_persist && !features.lease_checkpoint {
        return Err(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint".to_owned(),
        );
    }
    Ok(features)
}
