//! Proofs by which members show each other that they belong to one cluster, with or without TLS.
//!
//! # Protocol
//!
//! A cluster has a random secret, which its first member stores beside the rows of members; every member reads it there. Before
//! HTTP begins on a connection, each side sends a nonce and proves with an HMAC-SHA256 over both nonces, both member ids and the
//! cluster id that it knows the secret. Nonces are never reused, so data captured on one connection is useless on another; the two
//! directions have different labels, so neither side's proof serves as the other's. The dialling side names the member that it
//! expects, and disconnects if another one answers.
//!
//! # Protection
//!
//! A client that can reach the peer port but not the storage gets no request read: at most 80 bytes of it are read. It receives the
//! id of the member, a nonce and an HMAC over both sides' nonces and ids, which reveals nothing of the secret.
//!
//! # Limits
//!
//! Any client that can read the key prefix in TiKV can act as a member. Without TLS, an attacker on the path between two members can read
//! their traffic, and can take over a connection once it is proved: only `--peer-cert-file` and the related flags protect from that. With
//! TLS the proof is exchanged inside the TLS connection, and both must be valid.

use std::io;
use std::time::Duration;

use ring::hmac;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::members::Members;
use net::serve::{Admission, AdmissionFuture, PeerId};
use tls::Io;

/// The length of the secret in bytes.
pub const SECRET_BYTES: usize = 32;

/// The length of a nonce, and of a proof, in bytes.
const NONCE_BYTES: usize = 32;

/// The first bytes on a connection of a member: the name of the protocol and its version.
const PROTOCOL_MAGIC: [u8; 8] = *b"kbpeer\0\x01";

/// The reason for which a proof is refused.
pub(super) const UNPROVED_REASON: &str = "it does not know the secret of this cluster";

/// The last message of the accepting side.
const WELCOME: u8 = 1;

/// The time for which the rows are searched for a member that proves itself but is not known yet.
const UNKNOWN_MEMBER_TIMEOUT: Duration = Duration::from_millis(700);

/// The secret by which a member proves itself.
#[derive(Clone)]
pub struct PeerSecret {
    key: hmac::Key,
    cluster: u64,
    member: u64,
}

/// The side that a proof belongs to.
#[derive(Debug, Clone, Copy)]
enum HandshakeSide {
    Accepts,
    Dials,
}

/// One connection, identified by the ids and nonces of both sides.
struct Handshake {
    dials: u64,
    accepts: u64,
    nonces: [[u8; NONCE_BYTES]; 2],
}

impl std::fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerSecret(..)") // the secret must not get into logs
    }
}

impl PeerSecret {
    /// Creates the proof of this member, with the secret of its cluster.
    #[must_use]
    pub fn new(secret: &[u8; SECRET_BYTES], cluster: u64, member: u64) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self { key, cluster, member }
    }

    /// Proves this member on a connection that it dialled to reach the member `peer`, and verifies the proof of that member. Fails
    /// if the connection broke, another member answered, or one side refused the other.
    pub async fn dial<T: Io>(&self, io: &mut T, peer: u64) -> io::Result<()> {
        let mine: [u8; NONCE_BYTES] = rand::random();
        let mut hello = Vec::with_capacity(PROTOCOL_MAGIC.len() + 8 + NONCE_BYTES);
        hello.extend_from_slice(&PROTOCOL_MAGIC);
        hello.extend_from_slice(&self.member.to_be_bytes());
        hello.extend_from_slice(&mine);
        io.write_all(&hello).await?;
        io.flush().await?;
        let (accepts, theirs): (u64, [u8; NONCE_BYTES]) = (io.read_u64().await?, read(io).await?);
        let proof: [u8; NONCE_BYTES] = read(io).await?;
        if accepts != peer {
            return Err(refused(format!(
                "member {accepts:x} answered at the address of {peer:x}"
            )));
        }
        let connection = Handshake {
            dials: self.member,
            accepts,
            nonces: [mine, theirs],
        };
        self.verify(HandshakeSide::Accepts, &connection, &proof)?;
        io.write_all(self.sign(HandshakeSide::Dials, &connection).as_ref())
            .await?;
        io.flush().await?;
        let welcome = io
            .read_u8()
            .await
            .map_err(|_| refused("the member rejects this one".to_owned()))?;
        if welcome != WELCOME {
            return Err(refused("the member speaks another protocol".to_owned()));
        }
        Ok(())
    }

    /// Verifies which member dialled, and that it is among `members`, and proves this member.
    async fn accept(&self, io: &mut dyn Io, members: &Members) -> io::Result<PeerId> {
        if read::<{ PROTOCOL_MAGIC.len() }>(io).await? != PROTOCOL_MAGIC {
            return Err(refused("it does not start as a member does".to_owned()));
        }
        let (dials, theirs): (u64, [u8; NONCE_BYTES]) = (io.read_u64().await?, read(io).await?);
        let mine: [u8; NONCE_BYTES] = rand::random();
        let connection = Handshake {
            dials,
            accepts: self.member,
            nonces: [theirs, mine],
        };
        let mut answer = Vec::with_capacity(8 + 2 * NONCE_BYTES);
        answer.extend_from_slice(&self.member.to_be_bytes());
        answer.extend_from_slice(&mine);
        answer.extend_from_slice(self.sign(HandshakeSide::Accepts, &connection).as_ref());
        io.write_all(&answer).await?;
        io.flush().await?;
        let proof: [u8; NONCE_BYTES] = read(io).await?;
        self.verify(HandshakeSide::Dials, &connection, &proof)?;
        if !members.has(dials, UNKNOWN_MEMBER_TIMEOUT).await {
            return Err(refused(format!("member {dials:x} has no row")));
        }
        io.write_u8(WELCOME).await?;
        io.flush().await?;
        Ok(PeerId(dials))
    }

    fn sign(&self, side: HandshakeSide, connection: &Handshake) -> hmac::Tag {
        hmac::sign(&self.key, &self.message(side, connection))
    }

    fn verify(&self, side: HandshakeSide, connection: &Handshake, proof: &[u8]) -> io::Result<()> {
        let verified = hmac::verify(&self.key, &self.message(side, connection), proof);
        verified.map_err(|_| refused(UNPROVED_REASON.to_owned()))
    }

    /// Returns the bytes to sign; every part has a fixed length.
    fn message(&self, side: HandshakeSide, connection: &Handshake) -> Vec<u8> {
        let label: &[u8; 8] = match side {
            HandshakeSide::Accepts => b"accepts:",
            HandshakeSide::Dials => b"dials:::",
        };
        let mut message = [PROTOCOL_MAGIC, *label].concat();
        for id in [self.cluster, connection.dials, connection.accepts] {
            message.extend_from_slice(&id.to_be_bytes());
        }
        message.extend_from_slice(connection.nonces.as_flattened());
        message
    }
}

/// Admits members only.
#[derive(Debug)]
pub struct MembersOnly {
    /// The proof of the member that accepts.
    pub proof: PeerSecret,
    /// The members that are admitted.
    pub members: Members,
}

impl Admission for MembersOnly {
    fn admit<'a>(&'a self, io: &'a mut dyn Io) -> AdmissionFuture<'a> {
        Box::pin(self.proof.accept(io, &self.members))
    }
}

async fn read<const N: usize>(io: &mut (impl Io + ?Sized)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    io.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests;
