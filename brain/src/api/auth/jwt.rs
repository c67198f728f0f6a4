//! JSON Web Tokens with etcd's claims: `username`, `revision` and `exp`.
//!
//! The signatures are made by the library that TLS uses, too.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

use crate::errors::Error;
use crate::flags::{JwtOptions, SignMethod};
use crate::types::Identity;

/// The keys and the lifetime of tokens.
#[derive(Debug)]
pub(super) struct Jwt {
    method: SignMethod,
    /// `None`: tokens can only be verified.
    signer: Option<Signer>,
    verifier: Verifier,
    ttl: Duration,
    random: SystemRandom,
}

#[derive(Debug)]
enum Signer {
    Hmac(hmac::Key),
    Rsa(Box<RsaKeyPair>),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

#[derive(Debug)]
enum Verifier {
    Hmac(hmac::Key),
    Public(UnparsedPublicKey<Vec<u8>>),
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
            "the secret of --auth-token jwt has {len} bytes, and {name} asks for {least} or more: who guesses it can make a token of any user"
        )
    })
}

impl Jwt {
    /// Reads the keys.
    pub(super) fn new(options: &JwtOptions) -> anyhow::Result<Self> {
        let method = options.method.context("auth: invalid auth signature method")?;
        let random = SystemRandom::new();
        let private = options.private_key.as_deref().map(read).transpose()?;
        if let Some(warning) = private.as_deref().and_then(|secret| weakness(method, secret)) {
            tracing::warn!("{warning}");
        }
        let signer = private.map(|pem| Signer::new(method, &pem, &random)).transpose()?;
        if let Some(Signer::Hmac(key)) = &signer {
            let verifier = Verifier::Hmac(key.clone());
            return Ok(Self {
                method,
                signer,
                verifier,
                ttl: options.ttl,
                random,
            });
        }
        let given = options
            .public_key
            .as_deref()
            .map(|path| public_key(&read(path)?))
            .transpose()?;
        let own = signer.as_ref().and_then(Signer::public_key);
        if let (Some(given), Some(own)) = (&given, &own) {
            ensure!(given == own, "auth: public and private keys don't match");
        }
        let key = own.or(given).context("auth: missing key data")?;
        let verifier = Verifier::Public(UnparsedPublicKey::new(verification(method)?, key));
        Ok(Self {
            method,
            signer,
            verifier,
            ttl: options.ttl,
            random,
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
        let signature = signer.sign(self.method, message.as_bytes(), &self.random);
        let signature = signature.map_err(|error| {
            tracing::error!(%error, "a token cannot be signed");
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
        match &self.verifier {
            Verifier::Hmac(key) => hmac::verify(key, message.as_bytes(), &signature).ok()?,
            Verifier::Public(key) => key.verify(message.as_bytes(), &signature).ok()?,
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

impl Signer {
    fn new(method: SignMethod, pem: &[u8], random: &SystemRandom) -> anyhow::Result<Self> {
        use SignMethod::{EdDsa, Es256, Es384, Hs256, Hs384, Hs512, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
        let hash = match method {
            Hs256 => Some(hmac::HMAC_SHA256),
            Hs384 => Some(hmac::HMAC_SHA384),
            Hs512 => Some(hmac::HMAC_SHA512),
            _ => None,
        };
        if let Some(hash) = hash {
            ensure!(!pem.is_empty(), "auth: missing key data");
            return Ok(Signer::Hmac(hmac::Key::new(hash, pem)));
        }
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| anyhow!("read the private key: {error}"))?;
        let signer = match (method, &key) {
            (Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512, PrivateKeyDer::Pkcs8(key)) => {
                RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map(|key| Signer::Rsa(Box::new(key)))
            }
            (Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512, PrivateKeyDer::Pkcs1(key)) => {
                RsaKeyPair::from_der(key.secret_pkcs1_der()).map(|key| Signer::Rsa(Box::new(key)))
            }
            (Es256 | Es384, PrivateKeyDer::Pkcs8(key)) => {
                EcdsaKeyPair::from_pkcs8(signing(method)?, key.secret_pkcs8_der(), random).map(Signer::Ecdsa)
            }
            (Es256 | Es384, PrivateKeyDer::Sec1(key)) => {
                let wrapped = pkcs8_of(method, key.secret_sec1_der());
                EcdsaKeyPair::from_pkcs8(signing(method)?, &wrapped, random).map(Signer::Ecdsa)
            }
            (EdDsa, PrivateKeyDer::Pkcs8(key)) => {
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).map(Signer::Ed25519)
            }
            _ => bail!("the private key is not one for {}", method.name()),
        };
        signer.map_err(|error| anyhow!("the private key is not one for {}: {error}", method.name()))
    }

    fn public_key(&self) -> Option<Vec<u8>> {
        match self {
            Signer::Hmac(_) => None,
            Signer::Rsa(key) => Some(key.public_key().as_ref().to_vec()),
            Signer::Ecdsa(key) => Some(key.public_key().as_ref().to_vec()),
            Signer::Ed25519(key) => Some(key.public_key().as_ref().to_vec()),
        }
    }

    fn sign(&self, method: SignMethod, message: &[u8], random: &SystemRandom) -> anyhow::Result<Vec<u8>> {
        let failed = |_| anyhow!("the key does not sign");
        match self {
            Signer::Hmac(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            Signer::Rsa(key) => {
                let padding: &dyn signature::RsaEncoding = match method {
                    SignMethod::Rs256 => &signature::RSA_PKCS1_SHA256,
                    SignMethod::Rs384 => &signature::RSA_PKCS1_SHA384,
                    SignMethod::Rs512 => &signature::RSA_PKCS1_SHA512,
                    SignMethod::Ps256 => &signature::RSA_PSS_SHA256,
                    SignMethod::Ps384 => &signature::RSA_PSS_SHA384,
                    _ => &signature::RSA_PSS_SHA512,
                };
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(padding, random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Signer::Ecdsa(key) => Ok(key.sign(random, message).map_err(failed)?.as_ref().to_vec()),
            Signer::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
        }
    }
}

fn signing(method: SignMethod) -> anyhow::Result<&'static signature::EcdsaSigningAlgorithm> {
    match method {
        SignMethod::Es256 => Ok(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        SignMethod::Es384 => Ok(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        _ => bail!("{} has no elliptic curve", method.name()),
    }
}

fn verification(method: SignMethod) -> anyhow::Result<&'static dyn signature::VerificationAlgorithm> {
    Ok(match method {
        SignMethod::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        SignMethod::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        SignMethod::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        SignMethod::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        SignMethod::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        SignMethod::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        SignMethod::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
        SignMethod::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        SignMethod::EdDsa => &signature::ED25519,
        SignMethod::Hs256 | SignMethod::Hs384 | SignMethod::Hs512 => bail!("auth: missing key data"),
    })
}

/// Returns the PKCS #8 form of an elliptic curve's key in SEC1 form, which openssl writes by default.
fn pkcs8_of(method: SignMethod, sec1: &[u8]) -> Vec<u8> {
    // AlgorithmIdentifier: id-ecPublicKey, and secp384r1 or prime256v1.
    const P384: &[u8] = b"\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22";
    const P256: &[u8] = b"\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
    const VERSION: &[u8] = b"\x02\x01\x00";
    let curve = if method == SignMethod::Es384 { P384 } else { P256 };
    der(0x30, &[VERSION, curve, &der(0x04, sec1)].concat())
}

/// Returns a DER element.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let short: Vec<u8> = length.iter().copied().skip_while(|byte| *byte == 0).collect();
    let mut element = vec![tag];
    if content.len() >= 0x80 {
        element.push(0x80 | u8::try_from(short.len()).unwrap_or(0));
    }
    element.extend(if short.is_empty() { vec![0] } else { short });
    element.extend(content);
    element
}

/// Returns the key of a PEM file of a public key or of a certificate.
fn public_key(pem: &[u8]) -> anyhow::Result<Vec<u8>> {
    let info = match SubjectPublicKeyInfoDer::from_pem_slice(pem) {
        Ok(info) => info.as_ref().to_vec(),
        Err(_) => {
            let certificate = CertificateDer::from_pem_slice(pem);
            let certificate = certificate.map_err(|error| anyhow!("read the public key: {error}"))?;
            let (_, certificate) = X509Certificate::from_der(&certificate).context("read the certificate")?;
            certificate.public_key().raw.to_vec()
        }
    };
    let (_, info) = SubjectPublicKeyInfo::from_der(&info).context("read the public key")?;
    Ok(info.subject_public_key.data.to_vec())
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
