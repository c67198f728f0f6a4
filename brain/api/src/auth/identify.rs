//! Identifies the sender of a request, by a token or by the common name of a client certificate.

use std::sync::Arc;

use tokio::time::Instant;

use super::credentials::Credentials;
use super::guard::Guard;
use super::methods::TokenKind;
use super::simple;
use etcd_types::errors::Error;
use etcd_types::types::{Caller, Identity};

impl Guard {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{AuthOptions, Authenticator};
    use cluster::forward::{LeaderLease, LeaderRouter, Role};
    use engine::log::{DynLog, MemLog, Slot};
    use engine::rows::DynRows;
    use engine::rows::mem::MemRows;
    use mvcc::auth::{AuthChange, User, UserChange};
    use mvcc::record::Token;
    use std::time::Duration;
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
        roles.send_replace(Role::Leading(LeaderLease::unbounded()));
        request.metadata_mut().insert("token", "other.99".parse().unwrap());
        let began = Instant::now();
        let liar = guard.identify_soon(&Credentials::of(&request)).await;
        assert_eq!((liar, began.elapsed()), (Err(Error::InvalidAuthToken), Duration::ZERO));
    }
}
