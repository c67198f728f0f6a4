//! Checks what clients may do.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::time::Instant;

use super::AuthOptions;
use super::credentials::Credentials;
use super::methods::{Authenticator, TokenKind};
use cluster::forward::{LeaderRouter, Role};
use engine::log::Slot;
use etcd_types::errors::Error;
use etcd_types::types::Caller;
use mvcc::auth::{Access, Auth};
use mvcc::op::Span;
use store::auth::SharedAuth;
use store::state::StoreState;

/// Waits until this member has applied all records before a slot; false if it does not, or has already.
type WaitApplied = dyn Fn(Slot) -> BoxFuture<'static, bool> + Send + Sync;

/// The users and roles of a store, and how its clients are identified. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    pub(super) auth: Arc<SharedAuth>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) wait_applied: Arc<WaitApplied>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("authenticator", &self.authenticator)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Guards the store of a member.
    #[must_use]
    pub fn new(state: &Arc<StoreState>, router: &LeaderRouter, authenticator: Arc<Authenticator>) -> Self {
        let (applied, router) = (state.clone(), router.clone());
        let timeout = router.request_timeout();
        let wait_applied = move |slot| -> BoxFuture<'static, bool> {
            let applied = applied.clone();
            // A leader has applied all that anybody knows of.
            let may_come = slot > applied.committed() && !matches!(router.role(), Role::Leading(_));
            Box::pin(async move { may_come && tokio::time::timeout(timeout, applied.wait_applied(slot)).await.is_ok() })
        };
        Self {
            auth: state.auth().clone(),
            authenticator,
            wait_applied: Arc::new(wait_applied),
        }
    }

    /// Guards users that are on no other member, by etcd's default options.
    ///
    /// # Errors
    /// Never: there is no key to read.
    pub fn simple(auth: Arc<SharedAuth>) -> anyhow::Result<Self> {
        Ok(Self {
            auth,
            authenticator: Arc::new(Authenticator::new(&AuthOptions::default())?),
            wait_applied: Arc::new(|_| Box::pin(std::future::ready(false))),
        })
    }

    /// Returns the same with another authenticator.
    #[must_use]
    pub fn with(self, authenticator: Arc<Authenticator>) -> Self {
        Self { authenticator, ..self }
    }

    pub(super) fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// Returns true if permissions are checked.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.auth.is_enabled()
    }

    /// The newest users and roles.
    #[must_use]
    pub fn load(&self) -> Arc<Auth> {
        self.auth.load()
    }

    /// Forgets tokens that have expired.
    pub(super) fn remove_expired(&self) {
        if let TokenKind::Simple { ttl } = self.authenticator.kind {
            self.auth.tokens().remove_expired(ttl, Instant::now());
        }
    }

    /// Identifies a client and checks it against the newest users and roles.
    ///
    /// # Errors
    /// As [`Guard::identify`] and `check`.
    pub fn check(
        &self,
        credentials: &Credentials,
        check: impl FnOnce(&Auth, &Caller) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.is_enabled() {
            return Ok(());
        }
        let caller = self.identify(credentials)?;
        check(&self.load(), &caller)
    }

    /// Checks that a client may read or watch keys.
    ///
    /// # Errors
    /// As [`Guard::check`].
    pub fn check_read(&self, credentials: &Credentials, span: &Span) -> Result<(), Error> {
        self.check(credentials, |auth, caller| auth.check(caller, Access::Read, span))
    }
}
