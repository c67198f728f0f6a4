//! Render epochs: pods are not replaced because the operator is newer.
//!
//! The rendering of StatefulSets changes only with a new epoch, and each StatefulSet records its own. A newer operator renders an existing
//! StatefulSet in the recorded epoch until a change of the spec replaces the pods anyway; that roll-out moves it to the newest epoch.
//! `fixtures/epoch-N` keeps the bytes of each epoch forever.

use kube::ResourceExt;
use kube::core::DynamicObject;

/// Annotation of a StatefulSet with the number of its epoch; StatefulSets of the first epoch have none.
pub(super) const EPOCH_ANNOTATION: &str = "kubebrain.io/render-epoch";

/// A way to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epoch {
    /// Brains listen only on IPv4, and a change of resources replaces their pods.
    First,
    /// Brains listen on all IP families. Resources have a hash of their own and are not part of the restart hash.
    Second,
    /// Brains on TiKV have a directory for temporary files.
    Third,
    /// A brain with a data directory gets the name of the only member at its first start.
    Fourth,
}

impl Epoch {
    #[cfg(test)]
    pub const ALL: [Self; 4] = [Self::First, Self::Second, Self::Third, Self::Fourth];
    pub const NEWEST: Self = Self::Fourth;

    /// Returns the value of the annotation on a StatefulSet.
    pub fn record(self) -> Option<&'static str> {
        match self {
            Self::First => None,
            Self::Second => Some("2"),
            Self::Third => Some("3"),
            Self::Fourth => Some("4"),
        }
    }

    /// Returns the epoch that a StatefulSet was rendered in; `None` if a newer operator rendered it.
    pub fn of(set: &DynamicObject) -> Option<Self> {
        match set.annotations().get(EPOCH_ANNOTATION).map(String::as_str) {
            None => Some(Self::First),
            Some("2") => Some(Self::Second),
            Some("3") => Some(Self::Third),
            Some("4") => Some(Self::Fourth),
            Some(_) => None,
        }
    }

    /// Returns the wildcard address of the machine, for a URL.
    pub fn any_address(self) -> &'static str {
        match self {
            Self::First => "0.0.0.0",
            Self::Second | Self::Third | Self::Fourth => "[::]",
        }
    }

    /// Returns true if pods are reachable on all IP families, so that every Service may use all of them.
    pub fn listens_on_all_families(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if a change of resources reaches the pods in place.
    pub fn resizes_in_place(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if brains are started for one TiKV cluster once its id is known.
    pub fn names_tikv_cluster(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if a brain starts only with an existing store once there was one. This flag is not part of the restart hash.
    pub fn pins_store(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if an embedded brain gets the name of the only member at its first start.
    pub fn names_only_member(self) -> bool {
        self >= Self::Fourth
    }

    /// Returns true if brains on TiKV, which have no volume of their own, have a directory for temporary files, where they write snapshots.
    pub fn has_temporary_files(self) -> bool {
        self >= Self::Third
    }

    /// Returns true if null in a podTemplate removes a field, and if containers that it adds get no additional rights unless they request
    /// them.
    pub fn merges_strictly(self) -> bool {
        self >= Self::Second
    }
}
