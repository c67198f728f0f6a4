//! Simple tokens: each is a random text that identifies a user.
//!
//! The leader makes them and records a digest in the log, so that every member knows them. They are kept in memory only:
//! a member that begins from rows does not know those that are no longer in the log, and its clients authenticate again, as
//! with etcd. Each member decides by itself when a token was last used.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Auth, AuthChange};

/// The digest of a token: a reader of the log does not learn the token itself.
pub type TokenDigest = [u8; 32];

/// The most tokens. The least recently used ones are removed for new ones.
const MAX_TOKENS: usize = 100_000;

#[derive(Debug)]
struct CachedToken {
    user: Arc<str>,
    used: Instant,
}

/// All tokens.
#[derive(Debug, Default)]
pub struct TokenCache {
    users: HashMap<TokenDigest, CachedToken>,
}

impl TokenCache {
    /// Adds a token.
    pub fn insert(&mut self, digest: TokenDigest, user: &str, now: Instant) {
        if self.users.len() >= MAX_TOKENS {
            self.remove_oldest();
        }
        let user = Arc::from(user);
        self.users.insert(digest, CachedToken { user, used: now });
    }

    /// Removes the least recently used tenth of the tokens, so that not every new token causes a search.
    fn remove_oldest(&mut self) {
        let mut used: Vec<_> = self.users.values().map(|token| token.used).collect();
        let tenth = used.len() / 10;
        let (_, limit, _) = used.select_nth_unstable(tenth);
        let limit = *limit;
        self.users.retain(|_, token| token.used > limit);
    }

    /// Returns the user of a token that was used within `ttl`, and records the use.
    pub fn user(&mut self, digest: &TokenDigest, ttl: Duration, now: Instant) -> Option<Arc<str>> {
        let token = self.users.get_mut(digest)?;
        if now.duration_since(token.used) > ttl {
            self.users.remove(digest);
            return None;
        }
        token.used = now;
        Some(token.user.clone())
    }

    /// Removes tokens that were not used within `ttl`.
    pub fn remove_expired(&mut self, ttl: Duration, now: Instant) {
        self.users.retain(|_, token| now.duration_since(token.used) <= ttl);
    }

    /// Removes the tokens that end with a change: of users that are deleted or have another password, or all if permissions are not
    /// checked any more. `before` is the state before the change.
    pub fn revoke(&mut self, before: &Auth, change: &AuthChange) {
        if !change.enabled {
            return self.clear();
        }
        for change in &change.users {
            let before = before.user(&change.name).ok();
            let is_same = match (before, &change.user) {
                (Some(before), Some(after)) => before.password == after.password,
                _ => false,
            };
            if !is_same {
                self.users.retain(|_, token| *token.user != *change.name);
            }
        }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.users.clear();
    }
}
