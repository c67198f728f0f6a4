//! Members prove to each other that they belong to one cluster, whether or not they speak TLS.
//!
//! # What it protects from
//!
//! Whoever can reach the peer port but not the storage gets no request read: 80 bytes of theirs are read at most. What they
//! get is the id of the member, a nonce and an HMAC over both sides' nonces and ids, which tells nothing of the secret. A cluster has a random secret, which its first member stores beside the rows of
//! members; every member reads it there. Before HTTP begins on a connection, either side sends a nonce and proves with an
//! HMAC-SHA256 over both nonces, both member ids and the cluster id that it knows the secret. Nonces are never used twice, so
//! what was seen on one connection is worth nothing on another; the two directions have different labels, so neither side's
//! proof serves as the other's. The side that dials names the member that it means, and goes away when another one answers.
//!
//! # What it does not protect from
//!
//! Whoever can read the key prefix in TiKV is a member. Without TLS, whoever is on the path between two members reads what they
//! say, and can take over a connection once it is proved: only `--peer-cert-file` and its kin help against that. With TLS the
//! proof is made inside of it, and both have to hold.

use std::io;
use std::time::Duration;

use ring::hmac;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::cluster::members::Members;
use crate::net::serve::{Admission, Admitted, Io, PeerId};

/// Bytes of the secret.
pub const SECRET: usize = 32;

/// Bytes of a nonce, and of a proof.
const NONCE: usize = 32;

/// The beginning of a connection of a member: the name of the protocol and its version.
const MAGIC: [u8; 8] = *b"kbpeer\0\x01";

/// Why a proof is refused.
pub(super) const UNPROVED: &str = "it does not know the secret of this cluster";

/// The last message of the accepting side.
const WELCOME: u8 = 1;

/// How long a member that proves itself may be looked for in the rows, where it is not known yet.
const LOOK: Duration = Duration::from_millis(700);

/// The secret by which a member of a cluster proves itself.
#[derive(Clone)]
pub struct Proof {
    key: hmac::Key,
    cluster: u64,
    member: u64,
}

/// Which side a proof is of.
#[derive(Debug, Clone, Copy)]
enum Side {
    Accepts,
    Dials,
}

/// One connection: whose it is, and what makes it unlike all others.
struct Connection {
    dials: u64,
    accepts: u64,
    nonces: [[u8; NONCE]; 2],
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Proof(..)") // the secret must not get into logs
    }
}

impl Proof {
    /// Of this member, by the secret of its cluster.
    #[must_use]
    pub fn new(secret: &[u8; SECRET], cluster: u64, member: u64) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Self { key, cluster, member }
    }

    /// Proves this member on a connection that it dialled to reach the member `peer`, and has that one prove itself.
    ///
    /// # Errors
    /// The connection broke, somebody else answered, or one side refused the other.
    pub async fn dial<T: Io>(&self, io: &mut T, peer: u64) -> io::Result<()> {
        let mine: [u8; NONCE] = rand::random();
        let mut hello = Vec::with_capacity(MAGIC.len() + 8 + NONCE);
        hello.extend_from_slice(&MAGIC);
        hello.extend_from_slice(&self.member.to_be_bytes());
        hello.extend_from_slice(&mine);
        io.write_all(&hello).await?;
        io.flush().await?;
        let (accepts, theirs): (u64, [u8; NONCE]) = (io.read_u64().await?, read(io).await?);
        let proof: [u8; NONCE] = read(io).await?;
        if accepts != peer {
            return Err(refused(format!(
                "member {accepts:x} answers where {peer:x} was dialled"
            )));
        }
        let connection = Connection {
            dials: self.member,
            accepts,
            nonces: [mine, theirs],
        };
        self.verify(Side::Accepts, &connection, &proof)?;
        io.write_all(self.sign(Side::Dials, &connection).as_ref()).await?;
        io.flush().await?;
        let welcome = io
            .read_u8()
            .await
            .map_err(|_| refused("the member refuses this one".to_owned()))?;
        if welcome != WELCOME {
            return Err(refused("the member speaks another protocol".to_owned()));
        }
        Ok(())
    }

    /// Has whoever dialled prove which member it is, `known` says whether there is such a one, and proves this one.
    async fn accept(&self, io: &mut dyn Io, members: &Members) -> io::Result<PeerId> {
        if read::<{ MAGIC.len() }>(io).await? != MAGIC {
            return Err(refused("it does not begin as members do".to_owned()));
        }
        let (dials, theirs): (u64, [u8; NONCE]) = (io.read_u64().await?, read(io).await?);
        let mine: [u8; NONCE] = rand::random();
        let connection = Connection {
            dials,
            accepts: self.member,
            nonces: [theirs, mine],
        };
        let mut answer = Vec::with_capacity(8 + 2 * NONCE);
        answer.extend_from_slice(&self.member.to_be_bytes());
        answer.extend_from_slice(&mine);
        answer.extend_from_slice(self.sign(Side::Accepts, &connection).as_ref());
        io.write_all(&answer).await?;
        io.flush().await?;
        let proof: [u8; NONCE] = read(io).await?;
        self.verify(Side::Dials, &connection, &proof)?;
        if !members.has(dials, LOOK).await {
            return Err(refused(format!("member {dials:x} has no row")));
        }
        io.write_u8(WELCOME).await?;
        io.flush().await?;
        Ok(PeerId(dials))
    }

    fn sign(&self, side: Side, connection: &Connection) -> hmac::Tag {
        hmac::sign(&self.key, &self.message(side, connection))
    }

    fn verify(&self, side: Side, connection: &Connection, proof: &[u8]) -> io::Result<()> {
        let verified = hmac::verify(&self.key, &self.message(side, connection), proof);
        verified.map_err(|_| refused(UNPROVED.to_owned()))
    }

    /// The signed bytes; every part has a fixed length.
    fn message(&self, side: Side, connection: &Connection) -> Vec<u8> {
        let label: &[u8; 8] = match side {
            Side::Accepts => b"accepts:",
            Side::Dials => b"dials:::",
        };
        let mut message = [MAGIC, *label].concat();
        for id in [self.cluster, connection.dials, connection.accepts] {
            message.extend_from_slice(&id.to_be_bytes());
        }
        message.extend_from_slice(connection.nonces.as_flattened());
        message
    }
}

/// Lets members in, and nobody else.
#[derive(Debug)]
pub struct MembersOnly {
    /// Of the member that accepts.
    pub proof: Proof,
    /// Those who may come.
    pub members: Members,
}

impl Admission for MembersOnly {
    fn admit<'a>(&'a self, io: &'a mut dyn Io) -> Admitted<'a> {
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
