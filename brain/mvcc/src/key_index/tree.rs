//! A sorted set of keys that counts the keys before a given one in a logarithmic number of steps.
//!
//! A B+ tree whose inner nodes hold the number of keys below each child.

use super::leaf::{LeafNode, MAX_LEAF_KEYS, allocated};

/// Children of an inner node at most.
const MAX_CHILDREN: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct KeyTree {
    root: TreeNode,
    len: usize,
    memory: HeapBytes,
}

/// Bytes on the heap.
#[derive(Debug, Default)]
struct HeapBytes(isize);

impl HeapBytes {
    fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add_unsigned(bytes);
    }

    fn sub(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub_unsigned(bytes);
    }

    /// Replaces a charge of `before` bytes by one of `after` bytes.
    fn change(&mut self, before: usize, after: usize) {
        self.sub(before);
        self.add(after);
    }
}

#[derive(Debug)]
enum TreeNode {
    Leaf(LeafNode),
    Inner(InnerNode),
}

/// Never without children, but for a moment.
#[derive(Debug)]
struct InnerNode {
    children: Vec<ChildNode>,
}

#[derive(Debug)]
struct ChildNode {
    /// No key of the child is smaller, and every key of the child before it is. The first child's is not looked at.
    from: Box<[u8]>,
    /// The number of keys.
    count: usize,
    node: TreeNode,
}

/// The right part of a node that was split. It is inserted after the left part.
struct SplitSibling {
    from: Box<[u8]>,
    node: TreeNode,
}

impl Default for TreeNode {
    fn default() -> Self {
        Self::Leaf(LeafNode::default())
    }
}

impl KeyTree {
    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory, with an estimate of what the allocator adds.
    pub(super) fn bytes(&self) -> usize {
        usize::try_from(self.memory.0).unwrap_or_default()
    }

    /// The number of keys before this one.
    pub(super) fn rank(&self, key: &[u8]) -> usize {
        let (mut node, mut before) = (&self.root, 0);
        loop {
            match node {
                TreeNode::Leaf(leaf) => return before + leaf.position(key).unwrap_or_else(|at| at),
                TreeNode::Inner(inner) => {
                    let at = inner.child_of(key);
                    before += inner.children[..at].iter().map(|child| child.count).sum::<usize>();
                    node = &inner.children[at].node;
                }
            }
        }
    }

    /// Inserts a key; false if it exists already.
    pub(super) fn insert(&mut self, key: &[u8]) -> bool {
        let (inserted, sibling) = self.root.insert(key, &mut self.memory);
        self.len += usize::from(inserted);
        if let Some(sibling) = sibling {
            let left = std::mem::take(&mut self.root);
            let left = ChildNode {
                from: Box::default(),
                count: left.count(),
                node: left,
            };
            let mut inner = InnerNode {
                children: vec![left, ChildNode::of(sibling)],
            };
            inner.children.reserve_exact(MAX_CHILDREN / 4);
            self.memory.add(inner.heap());
            self.root = TreeNode::Inner(inner);
        }
        inserted
    }

    /// Removes a key; false if it is not there.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let removed = self.root.remove(key, &mut self.memory);
        self.len -= usize::from(removed);
        while let TreeNode::Inner(inner) = &mut self.root {
            if inner.children.len() > 1 {
                break;
            }
            self.memory.sub(inner.heap());
            self.root = match inner.children.pop() {
                Some(only) => {
                    self.memory.sub(only.heap());
                    only.node
                }
                None => TreeNode::default(),
            };
        }
        removed
    }
}

impl TreeNode {
    fn count(&self) -> usize {
        match self {
            TreeNode::Leaf(leaf) => leaf.len(),
            TreeNode::Inner(inner) => inner.children.iter().map(|child| child.count).sum(),
        }
    }

    fn insert(&mut self, key: &[u8], memory: &mut HeapBytes) -> (bool, Option<SplitSibling>) {
        match self {
            TreeNode::Leaf(leaf) => insert_into_leaf(leaf, key, memory),
            TreeNode::Inner(inner) => inner.insert(key, memory),
        }
    }

    fn remove(&mut self, key: &[u8], memory: &mut HeapBytes) -> bool {
        match self {
            TreeNode::Leaf(leaf) => {
                let Ok(at) = leaf.position(key) else { return false };
                let before = leaf.heap();
                leaf.remove(at);
                memory.change(before, leaf.heap());
                true
            }
            TreeNode::Inner(inner) => inner.remove(key, memory),
        }
    }

    /// Appends the next node, if both together are small.
    fn try_append(&mut self, right: &mut Self, from: &[u8], memory: &mut HeapBytes) -> bool {
        match (self, right) {
            (TreeNode::Leaf(left), TreeNode::Leaf(right)) => {
                let before = left.heap() + right.heap();
                let appended = left.try_append(right);
                if appended {
                    memory.change(before, left.heap());
                }
                appended
            }
            (TreeNode::Inner(left), TreeNode::Inner(right)) => {
                if left.children.len() + right.children.len() > MAX_CHILDREN * 3 / 4 {
                    return false;
                }
                let before = left.heap() + right.heap();
                if let Some(first) = right.children.first_mut() {
                    memory.change(first.heap(), allocated(from.len()));
                    first.from = from.into();
                }
                left.children.append(&mut right.children);
                memory.change(before, left.heap());
                true
            }
            _ => false,
        }
    }
}

fn insert_into_leaf(leaf: &mut LeafNode, key: &[u8], memory: &mut HeapBytes) -> (bool, Option<SplitSibling>) {
    let Err(at) = leaf.position(key) else {
        return (false, None);
    };
    let before = leaf.heap();
    let sibling = if leaf.len() == 0 || leaf.fits(key) {
        leaf.insert(at, key);
        None
    } else if at == leaf.len() {
        // Keys that arrive in order produce full leaves.
        Some((key.into(), LeafNode::of(key)))
    } else if at == 0 {
        let right = std::mem::replace(leaf, LeafNode::of(key));
        Some((right.first(), right))
    } else {
        let middle = leaf.len() / 2;
        let mut right = leaf.split_off(middle);
        if at <= middle {
            leaf.insert(at, key);
        } else {
            right.insert(at - middle, key);
        }
        Some((right.first(), right))
    };
    let after = leaf.heap() + sibling.as_ref().map_or(0, |(_, right)| right.heap());
    memory.change(before, after);
    let sibling = sibling.map(|(from, leaf)| {
        memory.add(allocated(from.len()));
        SplitSibling {
            from: from.into_boxed_slice(),
            node: TreeNode::Leaf(leaf),
        }
    });
    (true, sibling)
}

impl ChildNode {
    fn of(sibling: SplitSibling) -> Self {
        Self {
            from: sibling.from,
            count: sibling.node.count(),
            node: sibling.node,
        }
    }

    /// It may be merged with a neighbour.
    fn is_small(&self) -> bool {
        match &self.node {
            TreeNode::Leaf(leaf) => leaf.len() < MAX_LEAF_KEYS / 4,
            TreeNode::Inner(inner) => inner.children.len() < MAX_CHILDREN / 4,
        }
    }

    /// Bytes of its bound.
    fn heap(&self) -> usize {
        allocated(self.from.len())
    }
}

impl InnerNode {
    /// Bytes of the list of children, without what they hold.
    fn heap(&self) -> usize {
        allocated(self.children.capacity() * size_of::<ChildNode>())
    }

    fn child_of(&self, key: &[u8]) -> usize {
        self.children
            .partition_point(|child| *child.from <= *key)
            .saturating_sub(1)
    }

    fn insert(&mut self, key: &[u8], memory: &mut HeapBytes) -> (bool, Option<SplitSibling>) {
        let at = self.child_of(key);
        let child = &mut self.children[at];
        let (inserted, sibling) = child.node.insert(key, memory);
        let Some(sibling) = sibling else {
            child.count += usize::from(inserted);
            return (inserted, None);
        };
        child.count = child.node.count();
        let before = self.heap();
        if self.children.len() == self.children.capacity() {
            self.children.reserve_exact(MAX_CHILDREN / 4);
        }
        self.children.insert(at + 1, ChildNode::of(sibling));
        let mut right = None;
        if self.children.len() > MAX_CHILDREN {
            let mut children = self.children.split_off(self.children.len() / 2);
            self.children.shrink_to_fit();
            children.shrink_to_fit();
            // From now on the parent holds the bound and counts its memory.
            let from = children.first_mut().map(|first| std::mem::take(&mut first.from));
            let inner = InnerNode { children };
            memory.add(inner.heap());
            right = Some(SplitSibling {
                from: from.unwrap_or_default(),
                node: TreeNode::Inner(inner),
            });
        }
        memory.change(before, self.heap());
        (inserted, right)
    }

    fn remove(&mut self, key: &[u8], memory: &mut HeapBytes) -> bool {
        let at = self.child_of(key);
        let child = &mut self.children[at];
        if !child.node.remove(key, memory) {
            return false;
        }
        child.count -= 1;
        if child.count == 0 {
            let gone = self.children.remove(at);
            memory.sub(gone.heap());
            memory.sub(match &gone.node {
                TreeNode::Leaf(leaf) => leaf.heap(),
                TreeNode::Inner(inner) => inner.heap(),
            });
        } else if child.is_small() {
            let merged = at > 0 && self.merge_behind(at - 1, memory);
            if !merged && at + 1 < self.children.len() {
                self.merge_behind(at, memory);
            }
        }
        true
    }

    /// Merges a child with the next one, if both together are small.
    fn merge_behind(&mut self, at: usize, memory: &mut HeapBytes) -> bool {
        let Some([left, right]) = self.children.get_mut(at..at + 2) else {
            return false;
        };
        if !left.node.try_append(&mut right.node, &right.from, memory) {
            return false;
        }
        left.count += right.count;
        let gone = self.children.remove(at + 1);
        memory.sub(gone.heap());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    fn heap(node: &TreeNode, keys: &mut Vec<Vec<u8>>) -> usize {
        match node {
            TreeNode::Leaf(leaf) => {
                keys.extend(leaf.keys());
                leaf.heap()
            }
            TreeNode::Inner(inner) => {
                let children = inner.children.iter().map(|child| {
                    assert_eq!(child.count, child.node.count());
                    child.heap() + heap(&child.node, keys)
                });
                children.sum::<usize>() + inner.heap()
            }
        }
    }

    fn check(tree: &KeyTree, model: &BTreeSet<Vec<u8>>) {
        let mut keys = Vec::new();
        let bytes = heap(&tree.root, &mut keys);
        assert!(keys.iter().eq(model), "the tree holds other keys");
        assert_eq!(tree.len(), model.len());
        assert_eq!(tree.bytes(), bytes, "memory is not what is counted");
    }

    /// Keys with long common prefixes, and some that are prefixes of others, or long.
    fn key(rng: &mut StdRng, spread: u32) -> Vec<u8> {
        let n = rng.random_range(0..spread);
        match rng.random_range(0..100) {
            0 => vec![0; n as usize % 9 + 1],
            1 => vec![0xff; n as usize % 9 + 1],
            2 => [vec![b'l'; 5_000], n.to_string().into_bytes()].concat(),
            3..10 => format!("/registry/pods/namespace-{:04}/", n % 100).into_bytes(),
            _ => format!("/registry/pods/namespace-{:04}/pod-{n:08}", n % 100).into_bytes(),
        }
    }

    #[test]
    fn tree_agrees_with_a_sorted_set() {
        for seed in 0..6 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut tree, mut model) = (KeyTree::default(), BTreeSet::new());
            let spread = [20, 500, 20_000][seed as usize % 3];
            for step in 0..40_000 {
                let key = key(&mut rng, spread);
                // Grows, then shrinks, then grows again.
                let grows = step / 10_000 % 2 == 0;
                if rng.random_bool(if grows { 0.8 } else { 0.1 }) {
                    assert_eq!(tree.insert(&key), model.insert(key), "seed {seed}");
                } else {
                    assert_eq!(tree.remove(&key), model.remove(&key), "seed {seed}");
                }
                if step % 4_000 == 0 {
                    check(&tree, &model);
                    for (before, key) in model.iter().enumerate() {
                        assert_eq!(tree.rank(key), before);
                    }
                }
            }
            check(&tree, &model);
            // In order, as the deletion of a range is.
            for (left, key) in model.iter().enumerate() {
                assert_eq!(
                    tree.rank(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
                    model.len() - left
                );
                assert!(tree.remove(key));
            }
            check(&tree, &BTreeSet::new());
            assert!(tree.bytes() < 1_000, "{} bytes are kept for nothing", tree.bytes());
        }
    }

    #[test]
    fn many_keys_take_few_bytes_in_any_order() {
        let key = |n: u32| format!("/registry/pods/namespace-{:04}/pod-{n:010}", n % 1_000).into_bytes();
        let count = 200_000;
        let mut sorted: Vec<Vec<u8>> = (0..count).map(key).collect();
        let (mut in_order, mut mixed) = (KeyTree::default(), KeyTree::default());
        for n in 0..count {
            mixed.insert(&key(n * 7_919 % count));
        }
        sorted.sort();
        sorted.iter().for_each(|key| assert!(in_order.insert(key)));
        for tree in [&in_order, &mixed] {
            assert_eq!(tree.len(), count as usize);
            let each = tree.bytes() / count as usize;
            assert!(each <= 40, "{each} bytes for each key");
        }
    }
}
