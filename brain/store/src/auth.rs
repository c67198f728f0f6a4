//! Users, roles and tokens as all parts of a member share them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use mvcc::auth::{Auth, AuthChange, TokenCache, TokenDigest};
use mvcc::record::Token;

/// The newest users and roles that are published, and the tokens that this member knows.
#[derive(Debug, Default)]
pub struct SharedAuth {
    /// Permissions are checked: the only part that requests look at while they are not.
    enabled: AtomicBool,
    auth: ArcSwap<Auth>,
    tokens: Mutex<TokenCache>,
}

impl SharedAuth {
    /// Shares the users and roles that are stored.
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        Self {
            enabled: AtomicBool::new(auth.is_enabled()),
            auth: ArcSwap::from_pointee(auth),
            tokens: Mutex::default(),
        }
    }

    /// Returns true if permissions are checked.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        // The flag guards no data: a caller that sees it set loads the users.
        self.enabled.load(Ordering::Relaxed)
    }

    /// The newest users and roles.
    #[must_use]
    pub fn load(&self) -> Arc<Auth> {
        self.auth.load_full()
    }

    /// The tokens. Held for moments only.
    pub fn tokens(&self) -> MutexGuard<'_, TokenCache> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a committed change. Only the replica calls it.
    pub fn apply(&self, change: &AuthChange) {
        let before = self.load();
        let mut after = Auth::clone(&before);
        after.apply(change);
        self.tokens().revoke(&before, change);
        self.store(Arc::new(after));
    }

    /// Adds a committed token, if its user still may have one. Only the replica calls it.
    pub fn add_token(&self, token: &Token) {
        let auth = self.load();
        let is_known = auth.is_enabled() && auth.user(&token.user).is_ok();
        if let (true, Ok(digest)) = (is_known, TokenDigest::try_from(token.digest.as_ref())) {
            self.tokens().insert(digest, &token.user, Instant::now());
        }
    }

    /// Takes over the users and roles of `other`. No token is known any more: the changes that may have ended some were not seen.
    pub fn replace(&self, other: &Self) {
        self.tokens().clear();
        self.store(other.load());
    }

    fn store(&self, auth: Arc<Auth>) {
        let enabled = auth.is_enabled();
        self.auth.store(auth);
        self.enabled.store(enabled, Ordering::Release);
    }
}
