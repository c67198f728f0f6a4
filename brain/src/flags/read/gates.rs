//! Feature gates: `Gate=true,Other=false`, with the names and stages of etcd 3.6.
//!
//! No gate has an effect here: each is always on, or always off. A request for the opposite is answered with the reason.

use super::{Values, go_bool};

struct Gate {
    name: &'static str,
    is_beta: bool,
    /// True if the feature is always on, whatever is requested.
    is_on: bool,
    why: &'static str,
}

const fn gate(name: &'static str, is_on: bool, why: &'static str) -> Gate {
    Gate {
        name,
        is_beta: false,
        is_on,
        why,
    }
}

const GATES: &[Gate] = &[
    gate(
        "CompactHashCheck",
        false,
        "no two members have their own copy of the data",
    ),
    gate(
        "InitialCorruptCheck",
        true,
        "every record and block is checked when it is read",
    ),
    gate(
        "LeaseCheckpoint",
        true,
        "the remaining time of leases is always recorded",
    ),
    gate(
        "LeaseCheckpointPersist",
        true,
        "the remaining time of leases is always kept",
    ),
    gate(
        "SetMemberLocalAddr",
        false,
        "the kernel chooses the source address of connections to peers",
    ),
    gate(
        "StopGRPCServiceOnDefrag",
        false,
        "requests are answered while the store is defragmented",
    ),
    Gate {
        is_beta: true,
        ..gate("TxnModeWriteWithSharedBuffer", true, "txns read from a shared view")
    },
];

/// Returns the name and the stage of each feature gate, and whether its feature is on.
pub fn features() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let stage = |gate: &Gate| if gate.is_beta { "BETA" } else { "ALPHA" };
    let gates = GATES.iter().map(move |gate| (gate.name, stage(gate), gate.is_on));
    gates.chain([("AllAlpha", "ALPHA", false), ("AllBeta", "BETA", false)])
}

/// Reads the requested gates, and warns about those that cannot be set so.
pub(super) fn check(values: &Values<'_>, warnings: &mut Vec<String>) -> Result<(), String> {
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
            _ if GATES.iter().any(|gate| gate.name == name) => named.push((name.to_owned(), on)),
            _ => return Err(error(format!("unrecognized feature gate: {name}"))),
        }
    }
    let asked = |gate: &Gate| {
        let by_name = named.iter().rfind(|(name, _)| name == gate.name).map(|(_, on)| *on);
        by_name.or(stages[usize::from(gate.is_beta)])
    };
    let is_asked = |name| GATES.iter().any(|gate| gate.name == name && asked(gate) == Some(true));
    if is_asked("LeaseCheckpointPersist") && !is_asked("LeaseCheckpoint") {
        return Err(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint".to_owned(),
        );
    }
    for gate in GATES {
        if let Some(on) = asked(gate).filter(|on| *on != gate.is_on) {
            warnings.push(format!(
                "the feature gate {}={on} has no effect here: {}",
                gate.name, gate.why
            ));
        }
    }
    Ok(())
}
