//! Identifies clients, and checks what they may do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::credentials::Credentials;
use super::hashing::{HashingLimit, PasswordOrigin};
use super::jwt::Jwt;
use super::simple;
use crate::auth::{AuthOptions, TokenOptions};
use cluster::forward::{LeaderRouter, Role};
use engine::log::Slot;
use etcd_types::errors::Error;
use etcd_types::types::{Caller, Identity};
use mvcc::auth::{Access, Auth};
use mvcc::op::Span;
use store::auth::SharedAuth;
use store::state::StoreState;

/// The kind of tokens.
#[derive(Debug)]
pub(super) enum TokenKind {
    None,
    Simple { ttl: Duration },
    Jwt(Box<Jwt>),
}

/// Identifies clients: the same for all services of a member.
#[derive(Debug)]
pub struct Authenticator {
    pub(super) kind: TokenKind,
    client_cert_auth: bool,
    bcrypt_cost: u32,
    /// Passwords are hashed on half of the processors.
    hashing: HashingLimit,
}

impl Authenticator {
    /// Reads the keys that the options name.
    ///
    /// # Errors
    /// A key cannot be read, or does not fit.
    pub fn new(options: &AuthOptions) -> anyhow::Result<Self> {
        let kind = match &options.token {
            TokenOptions::None => TokenKind::None,
            TokenOptions::Simple { ttl } => TokenKind::Simple { ttl: *ttl },
            TokenOptions::Jwt(options) => {
                TokenKind::Jwt(Box::new(Jwt::new(options).context("--auth-token is not valid")?))
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            kind,
            client_cert_auth: options.client_cert_auth,
            bcrypt_cost: options.bcrypt_cost,
            hashing: HashingLimit::new((processors / 2).max(1)),
        })
    }

    /// Returns the bcrypt hash of a password.
    ///
    /// # Errors
    /// [`Error::PasswordTooLong`]; [`Error::TooManyRequests`]; [`Error::Stopped`] if the process ends.
    pub(super) async fn hash(&self, password: String) -> Result<String, Error> {
        let cost = self.bcrypt_cost;
        check_password(&password)?;
        let hashed = self
            .busy(PasswordOrigin::default(), move || bcrypt::hash(password, cost))
            .await?;
        hashed.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot hash a password");
            Error::Unhealthy
        })
    }

    /// Returns true if a password has this hash.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`]; [`Error::Stopped`] if the process ends.
    pub(super) async fn verify(&self, origin: PasswordOrigin, password: String, hash: String) -> Result<bool, Error> {
        self.busy(origin, move || bcrypt::verify(password, &hash).unwrap_or(false))
            .await
    }

    /// Computes in a thread of its own, when it is the turn of `origin`.
    async fn busy<T: Send + 'static>(
        &self,
        origin: PasswordOrigin,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let turn = self.hashing.take(origin).await?;
        let computing = tokio::task::spawn_blocking(move || {
            // It is not stopped when the client leaves.
            let _turn = turn;
            compute()
        });
        computing.await.map_err(|_| Error::Stopped)
    }
}

/// Checks the length of a password that will be hashed. bcrypt uses only the first 72 bytes: Go's implementation refuses longer passwords
/// when it hashes, and ignores the rest when it compares.
pub(super) fn check_password(password: &str) -> Result<(), Error> {
    if password.len() > 72 {
        Err(Error::PasswordTooLong)
    } else {
        Ok(())
    }
}

/// Waits until this member has applied all records before a slot; false if it does not, or has already.
type WaitApplied = dyn Fn(Slot) -> BoxFuture<'static, bool> + Send + Sync;

/// The users and roles of a store, and how its clients are identified. Cheap to clone.
#[derive(Clone)]
pub struct Guard {
    auth: Arc<SharedAuth>,
    authenticator: Arc<Authenticator>,
    wait_applied: Arc<WaitApplied>,
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

    /// Identifies a client by its token, or else by its certificate.
    ///
    /// # Errors
    /// [`Error::InvalidAuthToken`].
    pub fn identify(&self, credentials: &Credentials) -> Result<Caller, Error> {
        if !self.is_enabled() {
            return Ok(Caller::Anonymous);
        }
        let identity = match credentials.token() {
            Some(token) => Some(self.identify_by_token(token).ok_or(Error::InvalidAuthToken)?),
            None if self.authenticator.client_cert_auth => credentials.common_name().map(|name| Identity {
                name,
                revision: self.load().revision(),
            }),
            None => None,
        };
        Ok(identity.map_or(Caller::Anonymous, |identity| Caller::User(Arc::new(identity))))
    }

    /// The same, but if this member has not applied the record of the token yet, waits for it.
    ///
    /// # Errors
    /// As [`Guard::identify`].
    pub async fn identify_soon(&self, credentials: &Credentials) -> Result<Caller, Error> {
        match (self.identify(credentials), credentials.slot()) {
            (Err(Error::InvalidAuthToken), Some(slot)) if (self.wait_applied)(slot).await => self.identify(credentials),
            (identified, _) => identified,
        }
    }

    fn identify_by_token(&self, token: &str) -> Option<Identity> {
        match &self.authenticator.kind {
            TokenKind::None => None,
            TokenKind::Jwt(jwt) => jwt.verify(token),
            TokenKind::Simple { ttl } => {
                // First: a token that ends with a later change is of an old revision then.
                let revision = self.load().revision();
                let user = self
                    .auth
                    .tokens()
                    .user(&simple::digest_of(token)?, *ttl, Instant::now())?;
                let name = user.as_ref().to_owned();
                Some(Identity { name, revision })
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use engine::log::DynLog;
    use engine::log::MemLog;
    use engine::rows::DynRows;
    use engine::rows::mem::MemRows;
    use mvcc::auth::{AuthChange, User, UserChange};
    use mvcc::record::Token;
    use store::replica::Replica;
    use tokio::sync::watch;
    use tonic::Request;

    fn enabled() -> AuthChange {
        AuthChange {
            revision: 7,
            enabled: true,
            users: vec![UserChange {
                name: "u".to_owned(),
                user: Some(User::default()),
            }],
            roles: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn member_that_is_behind_waits_for_the_record_of_a_token() {
        let (log, rows): (DynLog, DynRows) = (Arc::new(MemLog::new()), Arc::new(MemRows::new()));
        let replica = Replica::load(&log, &rows).await.unwrap();
        let state = replica.state().clone();
        let authenticator = Arc::new(Authenticator::new(&AuthOptions::default()).unwrap());
        let roles = watch::Sender::new(Role::Nobody);
        let guard = Guard::new(&state, &LeaderRouter::new(roles.subscribe()), authenticator);
        let next = Slot(state.committed().0 + 1);
        let mut request = Request::new(());
        let token = simple::token("letters", next).parse().unwrap();
        request.metadata_mut().insert("token", token);
        let credentials = Credentials::of(&request);
        assert_eq!(guard.identify_soon(&credentials).await, Ok(Caller::Anonymous));
        state.auth().apply(&enabled());
        // In vain, if the record does not come.
        assert_eq!(guard.identify_soon(&credentials).await, Err(Error::InvalidAuthToken));
        let comes = async {
            tokio::task::yield_now().await;
            state.auth().add_token(&Token {
                user: "u".to_owned(),
                digest: simple::digest("letters").to_vec().into(),
            });
            state.set_applied(next);
        };
        let (identified, ()) = tokio::join!(guard.identify_soon(&credentials), comes);
        let user = Identity {
            name: "u".to_owned(),
            revision: 7,
        };
        assert_eq!(identified, Ok(Caller::User(Arc::new(user))));
        // A leader has applied all that there is.
        roles.send_replace(Role::Leading(cluster::forward::LeaderLease::unbounded()));
        request.metadata_mut().insert("token", "other.99".parse().unwrap());
        let began = Instant::now();
        let liar = guard.identify_soon(&Credentials::of(&request)).await;
        assert_eq!((liar, began.elapsed()), (Err(Error::InvalidAuthToken), Duration::ZERO));
    }
}
