//! Keys that verify tokens.

use std::ops::RangeInclusive;

use anyhow::{Context as _, anyhow, ensure};
use p521::ecdsa::signature::Verifier as _;
use p521::ecdsa::{Signature as P521Signature, VerifyingKey as P521Key};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, UnparsedPublicKey, VerificationAlgorithm,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{AlgorithmIdentifier, CertificateDer, SubjectPublicKeyInfoDer, alg_id};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey as Parsed;

use crate::auth::SignMethod;
use tls::{algorithms, key_algorithm};

/// The sizes in bits of RSA keys whose signatures are verified. Go verifies none of shorter ones either.
const RSA_BITS: RangeInclusive<usize> = 1024..=8192;

/// A public key, or the secret of an HMAC.
#[derive(Debug)]
pub(super) enum Verifier {
    Hmac(hmac::Key),
    Rsa(PublicKey, AlgorithmIdentifier),
    /// TLS has signatures of elliptic curves in DER, a token the two numbers side by side.
    Curve(UnparsedPublicKey<Vec<u8>>),
    P521(Box<P521Key>),
}

impl Verifier {
    /// Fails if the key is of another kind than the method's, or of a size that is not supported: it would verify no token.
    pub(super) fn new(method: SignMethod, key: PublicKey) -> anyhow::Result<Self> {
        let wrong = || format!("the public key is not one for {}", method.name());
        let is_of = |algorithm: AlgorithmIdentifier| {
            ensure!(key.algorithm == algorithm.as_ref(), wrong());
            Ok(())
        };
        let rsa = |signature| {
            is_of(alg_id::RSA_ENCRYPTION)?;
            let bits = key.rsa_bits.with_context(wrong)?;
            let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
            ensure!(
                RSA_BITS.contains(&bits),
                "the public key has {bits} bits: keys of {least} to {most} bits are supported"
            );
            Ok(Verifier::Rsa(key.clone(), signature))
        };
        let curve = |algorithm, verification: &'static dyn VerificationAlgorithm| {
            is_of(algorithm)?;
            Ok(Verifier::Curve(UnparsedPublicKey::new(verification, key.bytes.clone())))
        };
        match method {
            SignMethod::Rs256 => rsa(alg_id::RSA_PKCS1_SHA256),
            SignMethod::Rs384 => rsa(alg_id::RSA_PKCS1_SHA384),
            SignMethod::Rs512 => rsa(alg_id::RSA_PKCS1_SHA512),
            SignMethod::Ps256 => rsa(alg_id::RSA_PSS_SHA256),
            SignMethod::Ps384 => rsa(alg_id::RSA_PSS_SHA384),
            SignMethod::Ps512 => rsa(alg_id::RSA_PSS_SHA512),
            SignMethod::Es256 => curve(alg_id::ECDSA_P256, &ECDSA_P256_SHA256_FIXED),
            SignMethod::Es384 => curve(alg_id::ECDSA_P384, &ECDSA_P384_SHA384_FIXED),
            SignMethod::EdDsa => curve(alg_id::ED25519, &ED25519),
            SignMethod::Es512 => {
                is_of(alg_id::ECDSA_P521)?;
                let point = P521Key::from_sec1_bytes(&key.bytes);
                let point = point.map_err(|error| anyhow!("{}: {error}", wrong()))?;
                Ok(Verifier::P521(Box::new(point)))
            }
            SignMethod::Hs256 | SignMethod::Hs384 | SignMethod::Hs512 => Err(anyhow!("auth: missing key data")),
        }
    }

    /// Returns true if `signature` is that of `message`.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Verifier::Hmac(key) => hmac::verify(key, message, signature).is_ok(),
            Verifier::Rsa(key, algorithm) => {
                let key = algorithms::PublicKey {
                    algorithm: &key.algorithm,
                    bytes: &key.bytes,
                };
                algorithms::verify(key, algorithm.as_ref(), message, signature).is_ok()
            }
            Verifier::Curve(key) => key.verify(message, signature).is_ok(),
            Verifier::P521(key) => {
                let signature = P521Signature::from_slice(signature);
                signature.is_ok_and(|signature| key.verify(message, &signature).is_ok())
            }
        }
    }
}

/// A public key as it is in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    /// The contents of its AlgorithmIdentifier.
    algorithm: Vec<u8>,
    bytes: Vec<u8>,
    rsa_bits: Option<usize>,
}

impl PublicKey {
    /// Reads the PEM file of a public key or of a certificate.
    pub(super) fn read(pem: &[u8]) -> anyhow::Result<Self> {
        if let Ok(info) = SubjectPublicKeyInfoDer::from_pem_slice(pem) {
            return Self::parse(&info);
        }
        let certificate = CertificateDer::from_pem_slice(pem);
        let certificate = certificate.map_err(|error| anyhow!("read the public key: {error}"))?;
        let (_, certificate) = X509Certificate::from_der(&certificate).context("read the certificate")?;
        Self::parse(certificate.public_key().raw)
    }

    /// Reads a SubjectPublicKeyInfo in DER.
    pub(super) fn parse(der: &[u8]) -> anyhow::Result<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).context("read the public key")?;
        let algorithm = key_algorithm(der).map_err(|error| anyhow!("read the public key: {error}"))?;
        let rsa_bits = match info.parsed() {
            Ok(Parsed::RSA(key)) => Some(key.key_size()),
            _ => None,
        };
        Ok(Self {
            algorithm: algorithm.to_vec(),
            bytes: info.subject_public_key.data.to_vec(),
            rsa_bits,
        })
    }
}
