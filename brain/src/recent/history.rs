//! The versions of one key, newest first: one task adds, any number of others read and never wait.
//!
//! A list whose nodes also point far back: to where the two jumps before lead, where these are of equal length. So any version is found
//! in a number of steps that grows with the logarithm of how many newer ones there are.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Version;
use crate::mvcc::Revision;

/// The versions of one key; at least one.
#[derive(Debug)]
pub(super) struct History {
    newest: ArcSwap<Node>,
}

/// One version, and the way to the older ones.
///
/// `older` stands before `jump` and so is dropped first: that frees the nodes up to where the jump leads, which the jump still holds. So the
/// depth of the stack on which a list is freed also grows with the logarithm of its length.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) revision: Revision,
    pub(super) version: Version,
    depth: usize,
    older: Option<Arc<Node>>,
    jump: Option<Arc<Node>>,
}

impl History {
    pub(super) fn new(revision: Revision, version: Version) -> Self {
        Self {
            newest: ArcSwap::from_pointee(Node {
                revision,
                version,
                depth: 0,
                older: None,
                jump: None,
            }),
        }
    }

    /// Adds a version. Only one task may do so, and revisions must ascend.
    pub(super) fn push(&self, revision: Revision, version: Version) {
        let older = self.newest.load_full();
        assert!(
            older.revision < revision,
            "versions of a key are added in the order of their revisions"
        );
        let jump = older.landing();
        let even = older.depth - jump.depth == jump.depth - jump.landing().depth;
        let jump = if even { jump.landing() } else { &older };
        self.newest.store(Arc::new(Node {
            revision,
            version,
            depth: older.depth + 1,
            jump: Some(jump.clone()),
            older: Some(older),
        }));
    }

    /// The newest version not after `at`.
    pub(super) fn at(&self, at: Revision) -> Option<(Revision, Version)> {
        let newest = self.newest.load();
        let mut node: &Node = &newest;
        while node.revision > at {
            node = match &node.jump {
                Some(jump) if jump.revision > at => jump,
                _ => node.older.as_ref()?,
            };
        }
        Some((node.revision, node.version.clone()))
    }

    /// The newest version, from which [`Node::older`] leads to all others.
    pub(super) fn newest(&self) -> Arc<Node> {
        self.newest.load_full()
    }
}

impl Node {
    pub(super) fn older(&self) -> Option<&Arc<Node>> {
        self.older.as_ref()
    }
}

trait Landing {
    /// Where the jump of a node leads: from the oldest one nowhere else.
    fn landing(&self) -> &Arc<Node>;
}

impl Landing for Arc<Node> {
    fn landing(&self) -> &Arc<Node> {
        self.jump.as_ref().unwrap_or(self)
    }
}
