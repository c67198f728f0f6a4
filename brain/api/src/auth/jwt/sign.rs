//! Keys that sign tokens.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use ring::hmac;
use rustls::SignatureScheme;
use rustls::sign::SigningKey;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use x509_parser::der_parser::der::parse_der_sequence;

use super::hmac_key;
use super::verifying_key::PublicKey;
use crate::auth::SignMethod;
use tls::signing_key;

/// A private key, or the secret of an HMAC.
#[derive(Debug)]
pub(super) enum Signer {
    Hmac(hmac::Key),
    /// A key that signs as in TLS.
    Private(Arc<dyn SigningKey>, SignatureScheme),
}

impl Signer {
    /// Reads a key of a method from a PEM file; the secret of an HMAC is the whole file.
    pub(super) fn new(method: SignMethod, file: &[u8]) -> anyhow::Result<Self> {
        if let Some(key) = hmac_key(method, file) {
            ensure!(!file.is_empty(), "auth: missing key data");
            return Ok(Signer::Hmac(key));
        }
        let key = PrivateKeyDer::from_pem_slice(file).map_err(|error| anyhow!("read the private key: {error}"))?;
        let wrong = || format!("the private key is not one for {}", method.name());
        let scheme = scheme(method).with_context(wrong)?;
        let key = signing_key(key.secret_der()).filter(|key| key.choose_scheme(&[scheme]).is_some());
        Ok(Signer::Private(key.with_context(wrong)?, scheme))
    }

    /// Returns the public key; an HMAC has none.
    pub(super) fn public_key(&self) -> anyhow::Result<Option<PublicKey>> {
        let Signer::Private(key, _) = self else { return Ok(None) };
        let info = key.public_key().context("the private key has no public one")?;
        PublicKey::parse(&info).map(Some)
    }

    pub(super) fn sign(&self, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (key, scheme) = match self {
            Signer::Hmac(key) => return Ok(hmac::sign(key, message).as_ref().to_vec()),
            Signer::Private(key, scheme) => (key, *scheme),
        };
        let signer = key.choose_scheme(&[scheme]).context("the key does not sign")?;
        let signature = signer.sign(message)?;
        match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => side_by_side(&signature, 32),
            SignatureScheme::ECDSA_NISTP384_SHA384 => side_by_side(&signature, 48),
            SignatureScheme::ECDSA_NISTP521_SHA512 => side_by_side(&signature, 66),
            _ => Ok(signature),
        }
    }
}

/// Returns the name that TLS has for the method; `None` for an HMAC.
fn scheme(method: SignMethod) -> Option<SignatureScheme> {
    Some(match method {
        SignMethod::Hs256 | SignMethod::Hs384 | SignMethod::Hs512 => return None,
        SignMethod::Rs256 => SignatureScheme::RSA_PKCS1_SHA256,
        SignMethod::Rs384 => SignatureScheme::RSA_PKCS1_SHA384,
        SignMethod::Rs512 => SignatureScheme::RSA_PKCS1_SHA512,
        SignMethod::Ps256 => SignatureScheme::RSA_PSS_SHA256,
        SignMethod::Ps384 => SignatureScheme::RSA_PSS_SHA384,
        SignMethod::Ps512 => SignatureScheme::RSA_PSS_SHA512,
        SignMethod::Es256 => SignatureScheme::ECDSA_NISTP256_SHA256,
        SignMethod::Es384 => SignatureScheme::ECDSA_NISTP384_SHA384,
        SignMethod::Es512 => SignatureScheme::ECDSA_NISTP521_SHA512,
        SignMethod::EdDsa => SignatureScheme::ED25519,
    })
}

/// Returns the two numbers of an ECDSA signature in DER as RFC 7518, section 3.4, has them: both with `len` bytes.
fn side_by_side(der: &[u8], len: usize) -> anyhow::Result<Vec<u8>> {
    let (_, numbers) = parse_der_sequence(der).context("read the signature")?;
    let mut signature = Vec::with_capacity(2 * len);
    for number in numbers.as_sequence()? {
        let digits = number.as_slice()?;
        // DER has a zero byte before a number whose first bit is set.
        let begin = digits.iter().position(|byte| *byte != 0).unwrap_or(digits.len());
        let padding = len
            .checked_sub(digits.len() - begin)
            .context("the signature is too long")?;
        signature.extend(std::iter::repeat_n(0, padding));
        signature.extend(&digits[begin..]);
    }
    Ok(signature)
}
