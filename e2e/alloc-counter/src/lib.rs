//! An allocator that counts what a process allocates, and samples the stacks of allocations. For benchmarks: no product uses it.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: alloc_counter::Counting<std::alloc::System> = alloc_counter::Counting(std::alloc::System);
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use stacks::{StackCount, by_stack};

mod stacks;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static MOVES: AtomicU64 = AtomicU64::new(0);
static MOVED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The number of allocations between two samples; 0: none is sampled.
static SAMPLE_INTERVAL: AtomicU64 = AtomicU64::new(0);
static SAMPLES: Mutex<Vec<Sample>> = Mutex::new(Vec::new());

thread_local! {
    /// True while allocations of this thread are not counted.
    static IS_IGNORED: Cell<bool> = const { Cell::new(false) };
}

/// The allocations of this process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocationCounts {
    /// Allocations, and reallocations that moved.
    pub allocations: u64,
    /// The bytes of both.
    pub bytes: u64,
    /// Reallocations that moved, because there was no room after the old place.
    pub moves: u64,
    /// The bytes that these copied.
    pub moved_bytes: u64,
}

/// A sampled allocation.
#[derive(Debug)]
pub struct Sample {
    bytes: usize,
    stack: Backtrace,
}

/// Returns the allocations so far.
#[must_use]
pub fn counts() -> AllocationCounts {
    AllocationCounts {
        allocations: ALLOCATIONS.load(Ordering::Relaxed),
        bytes: BYTES.load(Ordering::Relaxed),
        moves: MOVES.load(Ordering::Relaxed),
        moved_bytes: MOVED_BYTES.load(Ordering::Relaxed),
    }
}

/// Counts and samples no more allocations of this thread.
pub fn ignore_this_thread() {
    IS_IGNORED.set(true);
}

/// Samples each `interval`-th allocation, none if it is 0.
pub fn sample(interval: u64) {
    SAMPLE_INTERVAL.store(interval, Ordering::Relaxed);
}

/// Returns the samples since the last call.
#[must_use]
pub fn take_samples() -> Vec<Sample> {
    std::mem::take(&mut *SAMPLES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Counts the allocations of another allocator.
#[derive(Debug)]
pub struct Counting<A>(pub A);

impl<A> Counting<A> {
    fn count(bytes: usize) {
        // A thread that ends may allocate after its locals are gone.
        if IS_IGNORED.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let number = ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        let interval = SAMPLE_INTERVAL.load(Ordering::Relaxed);
        if interval > 0 && number.is_multiple_of(interval) {
            IS_IGNORED.set(true);
            let stack = Backtrace::force_capture();
            let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push(Sample { bytes, stack });
            drop(samples);
            IS_IGNORED.set(false);
        }
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe; every call is passed on as it is")]
// SAFETY: the memory is that of the other allocator, which keeps the contract.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let before = at.addr();
        // SAFETY: the caller's.
        let after = unsafe { self.0.realloc(at, layout, bytes) };
        if after.addr() != before && !IS_IGNORED.try_with(Cell::get).unwrap_or(true) {
            MOVES.fetch_add(1, Ordering::Relaxed);
            MOVED_BYTES.fetch_add(layout.size().min(bytes) as u64, Ordering::Relaxed);
            Self::count(bytes);
        }
        after
    }
}
