//! Short lists without the heap: states are copied and hashed by the million.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Up to `N` items. A model that needs more stops.
#[derive(Clone, Copy)]
pub(crate) struct List<T, const N: usize> {
    len: u8,
    items: [T; N],
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self {
            len: 0,
            items: [T::default(); N],
        }
    }
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.as_slice().iter().copied()
    }

    pub(crate) fn push(&mut self, item: T) {
        assert!(usize::from(self.len) < N, "a list of the model is too short");
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(T) -> bool) {
        let mut kept = Self::default();
        self.iter().filter(|item| keep(*item)).for_each(|item| kept.push(item));
        *self = kept;
    }
}

impl<T: Copy + Default + Ord, const N: usize> List<T, N> {
    /// Adds to a list that is kept sorted, once.
    pub(crate) fn insert(&mut self, item: T) {
        if let Err(at) = self.as_slice().binary_search(&item) {
            self.push(item);
            self.as_mut_slice()[at..].rotate_right(1);
        }
    }

    pub(crate) fn contains(&self, item: T) -> bool {
        self.as_slice().contains(&item)
    }
}

impl<T: Copy + Default + PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Copy + Default + Eq, const N: usize> Eq for List<T, N> {}

impl<T: Copy + Default + Ord, const N: usize> PartialOrd for List<T, N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Copy + Default + Ord, const N: usize> Ord for List<T, N> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl<T: Copy + Default + Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl<T: Copy + Default + fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
