//! Simple tokens: `<random letters>.<slot>`, as etcd's `<random letters>.<index>`.
//!
//! The leader generates the letters and records their digest, with the user, in the log, so that every member knows the token as soon as it
//! has applied the record. The record is before the slot in the token, so a member that is behind knows up to which slot it must wait.
//! Members keep tokens in memory, and each member tracks separately when a token was last used: a forwarded request carries its user, not
//! the age of its token.

use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use engine::log::Slot;
use mvcc::auth::TokenDigest;

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// As many as etcd's tokens have.
const TOKEN_LENGTH: usize = 16;

/// Returns random letters.
pub(super) fn random() -> String {
    let mut rng = rand::rng();
    let letters = (0..TOKEN_LENGTH).map(|_| LETTERS[rng.random_range(0..LETTERS.len())]);
    letters.map(char::from).collect()
}

/// Returns the token of letters that were recorded before `slot`.
pub(super) fn token(letters: &str, slot: Slot) -> String {
    format!("{letters}.{}", slot.0)
}

/// Returns the digest of letters.
pub(super) fn digest(letters: &str) -> TokenDigest {
    Sha256::digest(letters.as_bytes()).into()
}

/// Returns the digest of a token; `None` if it is no simple one.
pub(super) fn digest_of(token: &str) -> Option<TokenDigest> {
    let (letters, slot) = token.split_once('.')?;
    slot.parse::<u64>().ok()?;
    Some(digest(letters))
}
