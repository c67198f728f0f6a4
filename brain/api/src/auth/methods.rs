//! How clients are identified, by the options: the same for all services of a member.

use std::time::Duration;

use anyhow::Context as _;

use super::hashing_limit::HashingLimit;
use super::jwt::Jwt;
use super::{AuthOptions, TokenOptions};

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
    pub(super) client_cert_auth: bool,
    pub(super) bcrypt_cost: u32,
    /// Passwords are hashed on half of the processors.
    pub(super) hashing: HashingLimit,
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
}
