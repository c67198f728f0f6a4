//! Signatures that are verified: those of ring, and what Go takes beside them: P-521, and RSA of 1024 to 2047 bits.
//!
//! ring is the one provider of this program. aws-lc-rs has P-521 as well, but brings a second C library that needs cmake, and no RSA below
//! 2048 bits in TLS 1.3. The crates of RustCrypto are used for these two kinds of keys alone.

use std::sync::LazyLock;

use p521::ecdsa::signature::hazmat::PrehashVerifier as _;
use p521::ecdsa::{Signature as P521Signature, VerifyingKey as P521Key};
use rsa::PublicKey as RsaKey;
use rsa::pkcs1::DecodeRsaPublicKey as _;
use rsa::traits::PublicKeyParts as _;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::ring::default_provider;
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};
use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// The sizes of RSA keys, in bits, that ring does not verify and Go does.
const SHORT_RSA_BITS: std::ops::Range<u32> = 1024..2048;

/// The longest public key of [`SHORT_RSA_BITS`], in bytes of PKCS#1. A longer one is not even parsed, which takes long.
const MAX_SHORT_RSA_KEY_BYTES: usize = 2048 / 8 + 24;

/// The public key of a certificate.
#[derive(Debug, Clone, Copy)]
pub struct PublicKey<'a> {
    /// The contents of its AlgorithmIdentifier.
    pub algorithm: &'a [u8],
    /// The contents of its subjectPublicKey.
    pub bytes: &'a [u8],
}

impl PublicKey<'_> {
    /// Returns the cost of verifying a signature of this key. One that ring verifies costs 1.
    pub(super) fn cost(self) -> usize {
        match self.algorithm == alg_id::ECDSA_P521.as_ref() {
            true => 10,
            false => 1,
        }
    }
}

/// The reason why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadSignature {
    /// No algorithm fits both the key and the signature.
    Unsupported,
    /// It was made by another key, or over something else.
    Invalid,
}

#[derive(Debug, Clone, Copy)]
enum HashAlgorithm {
    Sha256,
    Sha384,
    Sha512,
}

impl HashAlgorithm {
    fn of(self, message: &[u8]) -> Vec<u8> {
        match self {
            HashAlgorithm::Sha256 => Sha256::digest(message).to_vec(),
            HashAlgorithm::Sha384 => Sha384::digest(message).to_vec(),
            HashAlgorithm::Sha512 => Sha512::digest(message).to_vec(),
        }
    }
}

/// ECDSA with a key of P-521.
#[derive(Debug)]
struct P521Verification(HashAlgorithm);

impl SignatureVerificationAlgorithm for P521Verification {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = P521Key::from_sec1_bytes(key).map_err(|_| InvalidSignature)?;
        let signature = P521Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        let verified = key.verify_prehash(&self.0.of(message), &signature);
        verified.map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        match self.0 {
            HashAlgorithm::Sha256 => alg_id::ECDSA_SHA256,
            HashAlgorithm::Sha384 => alg_id::ECDSA_SHA384,
            HashAlgorithm::Sha512 => alg_id::ECDSA_SHA512,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum RsaPadding {
    Pkcs1,
    Pss,
}

/// RSA with a key of [`SHORT_RSA_BITS`].
#[derive(Debug)]
struct ShortRsa(RsaPadding, HashAlgorithm);

impl SignatureVerificationAlgorithm for ShortRsa {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        if key.len() > MAX_SHORT_RSA_KEY_BYTES {
            return Err(InvalidSignature);
        }
        let key = RsaKey::from_pkcs1_der(key).map_err(|_| InvalidSignature)?;
        if !SHORT_RSA_BITS.contains(&key.n().bit_width_vartime()) {
            return Err(InvalidSignature);
        }
        let hashed = self.1.of(message);
        let verified = match (self.0, self.1) {
            (RsaPadding::Pkcs1, HashAlgorithm::Sha256) => {
                key.verify(rsa::Pkcs1v15Sign::new::<Sha256>(), &hashed, signature)
            }
            (RsaPadding::Pkcs1, HashAlgorithm::Sha384) => {
                key.verify(rsa::Pkcs1v15Sign::new::<Sha384>(), &hashed, signature)
            }
            (RsaPadding::Pkcs1, HashAlgorithm::Sha512) => {
                key.verify(rsa::Pkcs1v15Sign::new::<Sha512>(), &hashed, signature)
            }
            (RsaPadding::Pss, HashAlgorithm::Sha256) => key.verify(rsa::Pss::<Sha256>::new(), &hashed, signature),
            (RsaPadding::Pss, HashAlgorithm::Sha384) => key.verify(rsa::Pss::<Sha384>::new(), &hashed, signature),
            (RsaPadding::Pss, HashAlgorithm::Sha512) => key.verify(rsa::Pss::<Sha512>::new(), &hashed, signature),
        };
        verified.map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::RSA_ENCRYPTION
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        match (self.0, self.1) {
            (RsaPadding::Pkcs1, HashAlgorithm::Sha256) => alg_id::RSA_PKCS1_SHA256,
            (RsaPadding::Pkcs1, HashAlgorithm::Sha384) => alg_id::RSA_PKCS1_SHA384,
            (RsaPadding::Pkcs1, HashAlgorithm::Sha512) => alg_id::RSA_PKCS1_SHA512,
            (RsaPadding::Pss, HashAlgorithm::Sha256) => alg_id::RSA_PSS_SHA256,
            (RsaPadding::Pss, HashAlgorithm::Sha384) => alg_id::RSA_PSS_SHA384,
            (RsaPadding::Pss, HashAlgorithm::Sha512) => alg_id::RSA_PSS_SHA512,
        }
    }
}

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

static RING_ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> =
    LazyLock::new(|| default_provider().signature_verification_algorithms);

/// The algorithms that ring lacks, by the signature scheme of TLS in which they are used.
static MORE_ALGORITHMS: [(SignatureScheme, Algorithm); 9] = [
    (
        SignatureScheme::ECDSA_NISTP521_SHA512,
        &P521Verification(HashAlgorithm::Sha512),
    ),
    (
        SignatureScheme::ECDSA_NISTP384_SHA384,
        &P521Verification(HashAlgorithm::Sha384),
    ),
    (
        SignatureScheme::ECDSA_NISTP256_SHA256,
        &P521Verification(HashAlgorithm::Sha256),
    ),
    (
        SignatureScheme::RSA_PSS_SHA512,
        &ShortRsa(RsaPadding::Pss, HashAlgorithm::Sha512),
    ),
    (
        SignatureScheme::RSA_PSS_SHA384,
        &ShortRsa(RsaPadding::Pss, HashAlgorithm::Sha384),
    ),
    (
        SignatureScheme::RSA_PSS_SHA256,
        &ShortRsa(RsaPadding::Pss, HashAlgorithm::Sha256),
    ),
    (
        SignatureScheme::RSA_PKCS1_SHA512,
        &ShortRsa(RsaPadding::Pkcs1, HashAlgorithm::Sha512),
    ),
    (
        SignatureScheme::RSA_PKCS1_SHA384,
        &ShortRsa(RsaPadding::Pkcs1, HashAlgorithm::Sha384),
    ),
    (
        SignatureScheme::RSA_PKCS1_SHA256,
        &ShortRsa(RsaPadding::Pkcs1, HashAlgorithm::Sha256),
    ),
];

/// Returns the schemes in which the other side may sign, in our order of preference.
pub(super) fn schemes() -> Vec<SignatureScheme> {
    let mut schemes = RING_ALGORITHMS.supported_schemes();
    schemes.push(SignatureScheme::ECDSA_NISTP521_SHA512);
    schemes
}

/// Verifies the signature of a certificate, a list or a token, whose AlgorithmIdentifier has the contents `algorithm`.
pub fn verify(key: PublicKey<'_>, algorithm: &[u8], message: &[u8], signature: &[u8]) -> Result<(), BadSignature> {
    let more = MORE_ALGORITHMS.iter().map(|(_, algorithm)| *algorithm);
    let all = RING_ALGORITHMS.all;
    let fitting = all
        .iter()
        .copied()
        .chain(more)
        .filter(|known| known.signature_alg_id().as_ref() == algorithm);
    verify_by_one(fitting, key, message, signature)
}

/// Verifies by the first algorithm that takes the key. The same key may be taken by two: one for long ones, one for short ones.
fn verify_by_one(
    algorithms: impl Iterator<Item = Algorithm>,
    key: PublicKey<'_>,
    message: &[u8],
    signature: &[u8],
) -> Result<(), BadSignature> {
    let mut outcome = Err(BadSignature::Unsupported);
    for algorithm in algorithms.filter(|known| known.public_key_alg_id().as_ref() == key.algorithm) {
        match algorithm.verify_signature(key.bytes, message, signature) {
            Ok(()) => return Ok(()),
            Err(InvalidSignature) => outcome = Err(BadSignature::Invalid),
        }
    }
    outcome
}

/// Verifies the signature with which the other side of a handshake proves that it has its key. In TLS 1.3 a scheme names the curve, too.
pub(super) fn verify_handshake(
    key: PublicKey<'_>,
    message: &[u8],
    signed: &DigitallySignedStruct,
    is_tls13: bool,
) -> Result<(), Error> {
    let is_legacy = matches!(
        signed.scheme,
        SignatureScheme::RSA_PKCS1_SHA256 | SignatureScheme::RSA_PKCS1_SHA384 | SignatureScheme::RSA_PKCS1_SHA512
    );
    if !schemes().contains(&signed.scheme) || is_tls13 && is_legacy {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let of_ring = RING_ALGORITHMS.mapping;
    let of_ring = of_ring.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    let more = MORE_ALGORITHMS.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    let algorithms = of_ring
        .flat_map(|(_, algorithms)| algorithms.iter().copied())
        .chain(more.map(|(_, algorithm)| *algorithm))
        .filter(|algorithm| {
            !is_tls13 || curve(signed.scheme).is_none_or(|curve| algorithm.public_key_alg_id() == curve)
        });
    let verified = verify_by_one(algorithms, key, message, signed.signature());
    verified.map_err(|_| CertificateError::BadSignature.into())
}

/// Returns the curve that a scheme names in TLS 1.3.
fn curve(scheme: SignatureScheme) -> Option<AlgorithmIdentifier> {
    match scheme {
        SignatureScheme::ECDSA_NISTP256_SHA256 => Some(alg_id::ECDSA_P256),
        SignatureScheme::ECDSA_NISTP384_SHA384 => Some(alg_id::ECDSA_P384),
        SignatureScheme::ECDSA_NISTP521_SHA512 => Some(alg_id::ECDSA_P521),
        _ => None,
    }
}
