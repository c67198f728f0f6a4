//! The last apply of an object: an object that an apply left unchanged is as admission wants it, and has not drifted.

use std::time::Duration;

use kube::core::DynamicObject;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::objects::Object;

/// SHA-256.
pub type Digest = [u8; 32];

/// The last apply of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastApply {
    /// The object as last applied.
    pub rendered: Digest,
    /// The live object, if this apply did not change it.
    pub unchanged: Option<Digest>,
    /// Remaining pause until it is applied again.
    pub held: Duration,
}

impl LastApply {
    /// Returns true if an apply of `object` over `live` is known to change nothing.
    pub fn is_settled(&self, object: &Object, live: &DynamicObject) -> bool {
        self.unchanged.is_some() && self.rendered == digest(&object.body) && self.unchanged == content(live)
    }

    /// Returns the pause until `object` is applied again, because another manager keeps changing it; `None` if it may be applied now.
    pub fn held(&self, object: &Object) -> Option<Duration> {
        (!self.held.is_zero() && self.rendered == digest(&object.body)).then_some(self.held)
    }
}

/// An apply that left the live object as it was, although the two are written differently: the API server omits empty texts, and writes
/// quantities in its own way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnchangedApply {
    rendered: Digest,
    live: Digest,
}

impl UnchangedApply {
    /// Returns the apply of `rendered` over `live`.
    pub fn of(rendered: &Value, live: &impl Serialize) -> Option<Self> {
        Some(Self {
            rendered: digest(rendered),
            live: content(live)?,
        })
    }
}

/// Returns the digest of an object without its status and without the counters of the API server.
pub fn content(live: &impl Serialize) -> Option<Digest> {
    let mut value = serde_json::to_value(live).ok()?;
    value.as_object_mut()?.remove("status");
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    for counted in ["resourceVersion", "generation", "managedFields"] {
        metadata.remove(counted);
    }
    Some(digest(&value))
}

/// Returns the digest of a JSON value.
pub fn digest(value: &Value) -> Digest {
    // Maps of serde_json are ordered by key, so equal objects have equal texts.
    Sha256::digest(value.to_string().as_bytes()).into()
}
