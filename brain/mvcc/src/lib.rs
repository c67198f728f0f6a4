//! The versions of keys, without clocks, tasks or disk access: evaluation, codec, memtables, views and leases.
//!
//! It must not know members, the network or a real engine.

pub mod apply;
pub mod auth;
pub mod dictionaries;
pub mod evaluate;
pub mod fetch;
pub mod hot_rows;
pub mod key_filter;
pub mod key_index;
pub mod keys;
pub mod lease;
pub mod memtable;
pub mod next_page_count;
pub mod op;
pub mod overlay;
pub mod record;
pub mod row;
pub mod row_check;
mod select;
pub mod sizes;
pub mod view;
