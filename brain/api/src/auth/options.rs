//! The options of authentication, as flags give them.

use std::path::PathBuf;
use std::time::Duration;

/// Authentication of users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthOptions {
    /// The kind of tokens.
    pub token: TokenOptions,
    /// Cost of hashed passwords, 4 to 31.
    pub bcrypt_cost: u32,
    /// The common name of a client's certificate is its user if it sends no token.
    pub client_cert_auth: bool,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self {
            token: TokenOptions::Simple {
                ttl: Duration::from_secs(300),
            },
            bcrypt_cost: 10,
            client_cert_auth: false,
        }
    }
}

/// The kind of tokens that users are given for their passwords.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenOptions {
    /// None: passwords are of no use.
    None,
    /// Random ones that the members keep.
    Simple {
        /// The time after which an unused token expires.
        ttl: Duration,
    },
    /// JSON Web Tokens.
    Jwt(JwtOptions),
}

/// Keys of JSON Web Tokens. The files are only named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtOptions {
    /// The way in which they are signed; always given.
    pub method: Option<SignMethod>,
    /// PEM file of the public key.
    pub public_key: Option<PathBuf>,
    /// PEM file of the private key, or the secret of an HMAC.
    pub private_key: Option<PathBuf>,
    /// The time after which a token expires.
    pub ttl: Duration,
}

/// The way in which JSON Web Tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum SignMethod {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl SignMethod {
    /// All methods by name.
    pub const ALL: &[(&str, SignMethod)] = &[
        ("HS256", SignMethod::Hs256),
        ("HS384", SignMethod::Hs384),
        ("HS512", SignMethod::Hs512),
        ("RS256", SignMethod::Rs256),
        ("RS384", SignMethod::Rs384),
        ("RS512", SignMethod::Rs512),
        ("PS256", SignMethod::Ps256),
        ("PS384", SignMethod::Ps384),
        ("PS512", SignMethod::Ps512),
        ("ES256", SignMethod::Es256),
        ("ES384", SignMethod::Es384),
        ("ES512", SignMethod::Es512),
        ("EdDSA", SignMethod::EdDsa),
    ];

    /// Returns the method of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(own, _)| *own == name)
            .map(|(_, method)| *method)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, own)| *own == self)
            .map_or("", |(name, _)| name)
    }
}
