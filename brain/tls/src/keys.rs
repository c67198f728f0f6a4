//! Private keys, in every form that Go reads: PKCS#1, PKCS#8 and SEC1, whatever the label of the PEM block says.

use std::ops::RangeInclusive;
use std::sync::Arc;

use p521::ecdsa::signature::Signer as _;
use p521::pkcs8::DecodePrivateKey as _;
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::pkcs1::EncodeRsaPublicKey as _;
use rsa::signature::{RandomizedSigner, SignatureEncoding};
use rsa::traits::PublicKeyParts as _;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::{Signer, SigningKey, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer, alg_id};
use sha2::{Sha256, Sha384, Sha512};

/// The sizes of RSA keys in bits; ring signs with those of 2048 to 4096 bits alone.
const RSA_KEY_BITS: RangeInclusive<u32> = 1024..=8192;

/// Returns the key in a DER document; `None` if it is of no kind with which TLS can be spoken here.
pub fn signing_key(der: &[u8]) -> Option<Arc<dyn SigningKey>> {
    let forms = [
        PrivateKeyDer::Pkcs8(der.into()),
        PrivateKeyDer::Pkcs1(der.into()),
        PrivateKeyDer::Sec1(der.into()),
    ];
    let of_ring = forms.iter().find_map(|form| any_supported_type(form).ok());
    of_ring.or_else(|| p521(der)).or_else(|| rsa(der))
}

/// A key of the curve P-521.
#[derive(Debug)]
struct P521Key {
    key: p521::ecdsa::SigningKey,
    public: Vec<u8>,
}

fn p521(der: &[u8]) -> Option<Arc<dyn SigningKey>> {
    let key = p521::SecretKey::from_pkcs8_der(der).ok();
    let key = key.or_else(|| p521::SecretKey::from_sec1_der(der).ok())?;
    let key = p521::ecdsa::SigningKey::from(key);
    let public = key.verifying_key().to_sec1_point(false).as_bytes().to_vec();
    Some(Arc::new(P521Key { key, public }))
}

impl SigningKey for P521Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = SignatureScheme::ECDSA_NISTP521_SHA512;
        offered.contains(&scheme).then(|| {
            let key = self.key.clone();
            Box::new(KeySigner {
                scheme,
                key: PrivateKey::P521(Box::new(key)),
            }) as Box<dyn Signer>
        })
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(public_key_to_spki(&alg_id::ECDSA_P521, &self.public))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

/// An RSA key that is too short or too long for ring.
#[derive(Debug)]
struct RsaKey {
    key: Arc<rsa::PrivateKey>,
    public: Vec<u8>,
}

fn rsa(der: &[u8]) -> Option<Arc<dyn SigningKey>> {
    let key = rsa::PrivateKey::from_pkcs8_der(der).ok();
    let key = key.or_else(|| rsa::PrivateKey::from_pkcs1_der(der).ok())?;
    if !RSA_KEY_BITS.contains(&key.n().bit_width_vartime()) {
        return None;
    }
    let public = key.as_public_key().to_pkcs1_der().ok()?.as_bytes().to_vec();
    Some(Arc::new(RsaKey {
        key: Arc::new(key),
        public,
    }))
}

impl SigningKey for RsaKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        // A signature of PSS with SHA-512 does not fit into 1024 bits: it is the last choice.
        const SCHEMES: [SignatureScheme; 6] = [
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PSS_SHA512,
        ];
        let scheme = SCHEMES.into_iter().find(|scheme| offered.contains(scheme))?;
        let key = PrivateKey::Rsa(Arc::clone(&self.key));
        Some(Box::new(KeySigner { scheme, key }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(public_key_to_spki(&alg_id::RSA_ENCRYPTION, &self.public))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

enum PrivateKey {
    P521(Box<p521::ecdsa::SigningKey>),
    Rsa(Arc<rsa::PrivateKey>),
}

struct KeySigner {
    scheme: SignatureScheme,
    key: PrivateKey,
}

impl std::fmt::Debug for KeySigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySigner")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

impl Signer for KeySigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |error| Error::General(format!("signing failed: {error}"));
        match &self.key {
            PrivateKey::P521(key) => {
                let signature: p521::ecdsa::DerSignature = key.try_sign(message).map_err(failed)?;
                Ok(signature.as_bytes().to_vec())
            }
            PrivateKey::Rsa(key) => {
                let key = rsa::PrivateKey::clone(key);
                let signature = match self.scheme {
                    SignatureScheme::RSA_PSS_SHA256 => blinded(&rsa::pss::SigningKey::<Sha256>::new(key), message),
                    SignatureScheme::RSA_PSS_SHA384 => blinded(&rsa::pss::SigningKey::<Sha384>::new(key), message),
                    SignatureScheme::RSA_PSS_SHA512 => blinded(&rsa::pss::SigningKey::<Sha512>::new(key), message),
                    SignatureScheme::RSA_PKCS1_SHA256 => {
                        blinded(&rsa::pkcs1v15::SigningKey::<Sha256>::new(key), message)
                    }
                    SignatureScheme::RSA_PKCS1_SHA384 => {
                        blinded(&rsa::pkcs1v15::SigningKey::<Sha384>::new(key), message)
                    }
                    _ => blinded(&rsa::pkcs1v15::SigningKey::<Sha512>::new(key), message),
                };
                signature.map_err(failed)
            }
        }
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// Signs with the private key's powers blinded: otherwise the time that the crate takes reveals the key (RUSTSEC-2023-0071).
fn blinded<S: SignatureEncoding>(
    key: &impl RandomizedSigner<S>,
    message: &[u8],
) -> Result<Vec<u8>, rsa::signature::Error> {
    Ok(key.try_sign_with_rng(&mut rand::rng(), message)?.to_vec())
}
