//! Render epochs: pods are not replaced because the operator is newer.
//!
//! The rendering of StatefulSets changes only with a new epoch, and each StatefulSet records its own. A newer operator renders an
//! existing StatefulSet in the recorded epoch until the spec asks for something that replaces the pods anyway; that roll-out takes it to
//! the newest epoch. `fixtures/epoch-N` holds the bytes of each epoch for ever.

use kube::ResourceExt;
use kube::core::DynamicObject;

/// Annotation of a StatefulSet with the number of its epoch; the first one had none.
pub(super) const ANNOTATION: &str = "kubebrain.io/render-epoch";

/// A way to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Epoch {
    /// Brains listen on IPv4 alone, and other resources replace their pods.
    First,
    /// Brains listen on all families of addresses; resources are left out of the restart hash, and have a hash of their own.
    Second,
    /// Brains on TiKV have a directory for temporary files.
    Third,
    /// A brain with a data directory is told the name of the only member from the beginning.
    Fourth,
}

impl Epoch {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] = [Self::First, Self::Second, Self::Third, Self::Fourth];
    pub(crate) const NEWEST: Self = Self::Fourth;

    /// Returns its record on a StatefulSet.
    pub(super) fn record(self) -> Option<&'static str> {
        match self {
            Self::First => None,
            Self::Second => Some("2"),
            Self::Third => Some("3"),
            Self::Fourth => Some("4"),
        }
    }

    /// The epoch that a StatefulSet was rendered in; `None` if a newer operator rendered it.
    pub(super) fn of(set: &DynamicObject) -> Option<Self> {
        match set.annotations().get(ANNOTATION).map(String::as_str) {
            None => Some(Self::First),
            Some("2") => Some(Self::Second),
            Some("3") => Some(Self::Third),
            Some("4") => Some(Self::Fourth),
            Some(_) => None,
        }
    }

    /// Every address of the machine, for a URL.
    pub(super) fn any_address(self) -> &'static str {
        match self {
            Self::First => "0.0.0.0",
            Self::Second | Self::Third | Self::Fourth => "[::]",
        }
    }

    /// Returns true if pods are reached by all families of addresses, so that every Service may name them by all.
    pub(super) fn listens_on_all_families(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if other resources reach the pods in place.
    pub(super) fn resizes_in_place(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if brains are started for one TiKV cluster, if its id is known.
    pub(super) fn names_tikv_cluster(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if a brain is started only if its store is there, once there was one. It is left out of the restart hash.
    pub(super) fn pins_store(self) -> bool {
        self >= Self::Second
    }

    /// Returns true if an embedded brain is told from the beginning that it is the only member.
    pub(super) fn names_only_member(self) -> bool {
        self >= Self::Fourth
    }

    /// Returns true if brains on TiKV, which have no volume of their own, have a directory for temporary files: they write snapshots there.
    pub(super) fn has_temporary_files(self) -> bool {
        self >= Self::Third
    }

    /// Returns true if a null in a podTemplate removes a field, and containers that it adds get no further rights unless they ask for them.
    pub(super) fn merges_strictly(self) -> bool {
        self >= Self::Second
    }
}
