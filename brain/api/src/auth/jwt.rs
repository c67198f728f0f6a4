//! JSON Web Tokens with etcd's claims: `username`, `revision` and `exp`.
//!
//! Keys are those that TLS takes, too.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use crate::auth::{JwtOptions, SignMethod};
use etcd_types::errors::Error;
use etcd_types::types::Identity;
use sign::Signer;
use verifying_key::{PublicKey, Verifier};

mod sign;
mod verifying_key;

/// The keys and the lifetime of tokens.
#[derive(Debug)]
pub(super) struct Jwt {
    method: SignMethod,
    /// `None`: tokens can only be verified.
    signer: Option<Signer>,
    verifier: Verifier,
    ttl: Duration,
}

/// Returns a warning if the secret of an HMAC has less bytes than RFC 7518 asks for: tokens can be forged by guessing it.
fn weakness(method: SignMethod, secret: &[u8]) -> Option<String> {
    let least = match method {
        SignMethod::Hs256 => 32,
        SignMethod::Hs384 => 48,
        SignMethod::Hs512 => 64,
        _ => return None,
    };
    (secret.len() < least).then(|| {
        let (name, len) = (method.name(), secret.len());
        format!(
            "the secret of --auth-token jwt has {len} bytes, but {name} needs {least} or more: a guessed secret allows tokens of any user"
        )
    })
}

impl Jwt {
    /// Reads the keys. Fails if tokens could not be signed, or none could be verified.
    pub(super) fn new(options: &JwtOptions) -> anyhow::Result<Self> {
        let method = options.method.context("auth: invalid auth signature method")?;
        let private = options.private_key.as_deref().map(read).transpose()?;
        if let Some(warning) = private.as_deref().and_then(|secret| weakness(method, secret)) {
            tracing::warn!("{warning}");
        }
        let signer = private.map(|file| Signer::new(method, &file)).transpose()?;
        let verifier = match &signer {
            Some(Signer::Hmac(key)) => Verifier::Hmac(key.clone()),
            _ => {
                let given = options.public_key.as_deref().map(|path| PublicKey::read(&read(path)?));
                let given = given.transpose()?;
                let own = signer.as_ref().map(Signer::public_key).transpose()?.flatten();
                if let (Some(given), Some(own)) = (&given, &own) {
                    ensure!(given == own, "auth: public and private keys don't match");
                }
                Verifier::new(method, own.or(given).context("auth: missing key data")?)?
            }
        };
        if let Some(signer) = &signer {
            let signature = signer.sign(b"").context("the private key does not sign")?;
            ensure!(
                verifier.verifies(b"", &signature),
                "the public key does not verify what the private one signs"
            );
        }
        Ok(Self {
            method,
            signer,
            verifier,
            ttl: options.ttl,
        })
    }

    /// Returns a token of a user. Fails with [`Error::TokenVerifyOnly`] if there is no private key.
    pub(super) fn sign(&self, identity: &Identity) -> Result<String, Error> {
        let signer = self.signer.as_ref().ok_or(Error::TokenVerifyOnly)?;
        let expires = (now() + self.ttl).as_secs();
        let header = json!({"alg": self.method.name(), "typ": "JWT"});
        let claims = json!({"exp": expires, "revision": identity.revision, "username": identity.name});
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&header), encode(&claims));
        let signature = signer.sign(message.as_bytes()).map_err(|error| {
            tracing::error!(%error, "cannot sign a token");
            Error::Unhealthy
        })?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Returns the user of a token; `None` if it is not signed by this key, has expired, or lacks a claim.
    pub(super) fn verify(&self, token: &str) -> Option<Identity> {
        let (message, signature) = token.rsplit_once('.')?;
        let (header, claims) = message.split_once('.')?;
        let decode = |part| serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(part).ok()?).ok();
        // The method is the server's choice, never the token's.
        if decode(header)?.get("alg")? != self.method.name() {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !self.verifier.verifies(message.as_bytes(), &signature) {
            return None;
        }
        let claims = decode(claims)?;
        let now = now().as_secs_f64();
        let time = |claim| match claims.get(claim) {
            None => Some(None),
            Some(time) => time.as_f64().map(Some),
        };
        let (expires, begins) = (time("exp")?, time("nbf")?);
        if expires.is_some_and(|expires| now >= expires) || begins.is_some_and(|begins| now < begins) {
            return None;
        }
        let revision = claims.get("revision")?.as_f64()?;
        Some(Identity {
            name: claims.get("username")?.as_str()?.to_owned(),
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a cast saturates"
            )]
            revision: revision as u64,
        })
    }
}

/// Returns the key of an HMAC with this secret; `None` if the method has none.
fn hmac_key(method: SignMethod, secret: &[u8]) -> Option<hmac::Key> {
    let hash = match method {
        SignMethod::Hs256 => hmac::HMAC_SHA256,
        SignMethod::Hs384 => hmac::HMAC_SHA384,
        SignMethod::Hs512 => hmac::HMAC_SHA512,
        _ => return None,
    };
    Some(hmac::Key::new(hash, secret))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
