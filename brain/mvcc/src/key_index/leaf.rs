//! A leaf of the tree: sorted keys in one piece of memory, without the prefix that all of them share.

/// Keys of a leaf at most.
pub(super) const MAX_LEAF_KEYS: usize = 128;

/// Bytes of keys in a leaf at most, one key excepted.
const MAX_LEAF_BYTES: usize = 8 << 10;

/// Memory that an allocation takes beside its bytes.
const ALLOCATION_OVERHEAD_BYTES: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LeafNode {
    /// The shared prefix, then the rest of each key.
    bytes: Vec<u8>,
    prefix: usize,
    /// The end of each key's rest in `bytes`.
    ends: Vec<u32>,
}

impl LeafNode {
    /// A leaf with one key.
    pub(super) fn of(key: &[u8]) -> Self {
        Self {
            bytes: key.to_vec(),
            prefix: key.len(),
            ends: vec![offset(key.len())],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory on the heap.
    pub(super) fn heap(&self) -> usize {
        allocated(self.bytes.capacity()) + allocated(self.ends.capacity() * size_of::<u32>())
    }

    /// The first key; empty if there is none.
    pub(super) fn first(&self) -> Vec<u8> {
        match self.ends.first() {
            Some(_) => [self.shared(), self.rest(0)].concat(),
            None => Vec::new(),
        }
    }

    /// The position of a key, or the one at which it would be inserted.
    pub(super) fn position(&self, key: &[u8]) -> Result<usize, usize> {
        let Some(rest) = key.strip_prefix(self.shared()) else {
            // Such a key sorts before or after all keys of the leaf.
            return Err(if key < self.shared() { 0 } else { self.len() });
        };
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.rest(middle).cmp(rest) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// True if one more key leaves the leaf within its bounds.
    pub(super) fn fits(&self, key: &[u8]) -> bool {
        let prefix = common(self.shared(), key);
        self.len() < MAX_LEAF_KEYS && self.bytes_with_prefix(prefix) + key.len() - prefix <= MAX_LEAF_BYTES
    }

    /// Inserts a key at its position.
    pub(super) fn insert(&mut self, at: usize, key: &[u8]) {
        if self.len() == 0 {
            *self = Self::of(key);
            return;
        }
        let prefix = common(self.shared(), key);
        if prefix < self.prefix {
            *self = self.copy(0, self.len(), prefix);
        }
        let rest = &key[self.prefix..];
        let start = self.start(at);
        reserve(&mut self.bytes, rest.len());
        self.bytes.extend_from_slice(rest);
        self.bytes[start..].rotate_right(rest.len());
        reserve(&mut self.ends, 1);
        self.ends.insert(at, offset(start));
        for end in &mut self.ends[at..] {
            *end += offset(rest.len());
        }
    }

    /// Removes the key at a position.
    pub(super) fn remove(&mut self, at: usize) {
        if self.len() == 1 {
            *self = Self::default();
            return;
        }
        let (start, end) = (self.start(at), self.end(at));
        self.bytes.drain(start..end);
        self.ends.remove(at);
        for later in &mut self.ends[at..] {
            *later -= offset(end - start);
        }
        if self.bytes.capacity() > 2 * self.bytes.len() + 64 {
            self.bytes.shrink_to_fit();
            self.ends.shrink_to_fit();
        }
    }

    /// Keeps the keys before a position, and returns the others.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let right = self.copy(at, self.len(), self.prefix_of(at, self.len()));
        *self = self.copy(0, at, self.prefix_of(0, at));
        right
    }

    /// Appends the next leaf, if both together are small.
    pub(super) fn try_append(&mut self, right: &Self) -> bool {
        if self.len() + right.len() > MAX_LEAF_KEYS * 3 / 4 {
            return false;
        }
        let prefix = common(self.shared(), right.shared());
        let bytes = self.bytes_with_prefix(prefix) + right.bytes_with_prefix(prefix);
        if bytes > MAX_LEAF_BYTES * 3 / 4 {
            return false;
        }
        let mut merged = self.copy(0, self.len(), prefix);
        merged.bytes.reserve_exact(bytes.saturating_sub(merged.bytes.len()));
        merged.ends.reserve_exact(right.len());
        right.copy_to(&mut merged, (0, right.len()));
        *self = merged;
        true
    }

    /// The keys in order.
    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.len()).map(|at| [self.shared(), self.rest(at)].concat())
    }

    fn shared(&self) -> &[u8] {
        &self.bytes[..self.prefix]
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(self.prefix, |before| self.end(before))
    }

    fn end(&self, at: usize) -> usize {
        self.ends[at] as usize
    }

    fn rest(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.end(at)]
    }

    /// The length of `bytes` if the shared prefix is shortened.
    fn bytes_with_prefix(&self, prefix: usize) -> usize {
        self.bytes.len() - self.prefix + prefix + (self.prefix - prefix) * self.len()
    }

    /// The length of the prefix that keys of a range share: that of the first and the last.
    fn prefix_of(&self, from: usize, to: usize) -> usize {
        match to.checked_sub(1) {
            Some(last) if from <= last => self.prefix + common(self.rest(from), self.rest(last)),
            _ => 0,
        }
    }

    /// The keys of a range that is not empty as a leaf with this length of the shared prefix, which all of them have.
    fn copy(&self, from: usize, to: usize, prefix: usize) -> Self {
        let own = self.start(from);
        let mut copy = Self {
            bytes: Vec::with_capacity(
                prefix + (self.start(to) - own + self.prefix * (to - from)) - prefix * (to - from),
            ),
            prefix,
            ends: Vec::with_capacity(to - from),
        };
        let shorter = prefix.min(self.prefix);
        copy.bytes.extend_from_slice(&self.bytes[..shorter]);
        copy.bytes.extend_from_slice(&self.bytes[own..own + prefix - shorter]);
        self.copy_to(&mut copy, (from, to));
        copy
    }

    /// Adds the keys of a range to a leaf whose prefix they have.
    fn copy_to(&self, copy: &mut Self, (from, to): (usize, usize)) {
        let shorter = copy.prefix.min(self.prefix);
        for at in from..to {
            copy.bytes.extend_from_slice(&self.bytes[shorter..self.prefix]);
            copy.bytes.extend_from_slice(&self.rest(at)[copy.prefix - shorter..]);
            copy.ends.push(offset(copy.bytes.len()));
        }
    }
}

/// Bytes of memory that an allocation takes.
pub(super) fn allocated(bytes: usize) -> usize {
    if bytes == 0 {
        0
    } else {
        bytes + ALLOCATION_OVERHEAD_BYTES
    }
}

/// Makes room for more, and for a little beyond it: memory counts, and so do copies.
fn reserve<T>(items: &mut Vec<T>, more: usize) {
    if items.capacity() - items.len() < more {
        items.reserve_exact(more + items.len() / 8);
    }
}

/// The length of the prefix that two keys share.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Leaves hold a few KiB, or a key that is no longer than a request.
fn offset(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
