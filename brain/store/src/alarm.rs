//! Alarms, by etcd's numbers. [`crate::sequencer`] raises them, records keep them, and [`crate::state::StoreState`] holds those that are
//! active.

/// The alarm that refuses puts and grants while there is no space.
pub const NOSPACE: i32 = 1;

/// The alarm that refuses all changes while data is damaged, or while rows refuse what was acknowledged.
pub const CORRUPT: i32 = 2;
