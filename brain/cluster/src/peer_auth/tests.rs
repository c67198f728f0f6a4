use tokio::io::{DuplexStream, duplex};

use super::*;
use etcd_types::pb::etcdserverpb::Member;

const CLUSTER: u64 = 7;

fn proof(secret: u8, member: u64) -> PeerSecret {
    PeerSecret::new(&[secret; SECRET_BYTES], CLUSTER, member)
}

fn members(ids: &[u64]) -> Members {
    Members::new(ids.iter().map(|id| Member {
        id: *id,
        ..Member::default()
    }))
}

/// The port of member 1, which members 1 and 2 may dial.
fn port(secret: u8) -> MembersOnly {
    MembersOnly {
        proof: proof(secret, 1),
        members: members(&[1, 2]),
    }
}

async fn meet(port: &MembersOnly, dials: &PeerSecret, peer: u64) -> (Result<PeerId, String>, Result<(), String>) {
    let (mut near, mut far) = duplex(1024);
    let accepted = async move { port.admit(&mut far).await };
    let (accepted, dialled) = tokio::join!(accepted, async {
        let dialled = dials.dial(&mut near, peer).await;
        drop(near);
        dialled
    });
    (
        accepted.map_err(|error| error.to_string()),
        dialled.map_err(|error| error.to_string()),
    )
}

#[tokio::test(start_paused = true)]
async fn members_prove_themselves_to_each_other() {
    let (accepted, dialled) = meet(&port(0), &proof(0, 2), 1).await;
    assert_eq!((accepted, dialled), (Ok(PeerId(2)), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn strangers_are_refused() {
    // The dialling side detects it first.
    let (accepted, dialled) = meet(&port(0), &proof(1, 2), 1).await;
    assert!(accepted.is_err());
    assert_eq!(dialled.unwrap_err(), "it does not know the secret of this cluster");
    let (accepted, dialled) = meet(&port(0), &proof(0, 3), 1).await;
    assert_eq!(accepted.unwrap_err(), "member 3 has no row");
    assert_eq!(dialled.unwrap_err(), "the member rejects this one");
    let (accepted, dialled) = meet(&port(0), &proof(0, 2), 4).await;
    assert!(accepted.is_err());
    assert_eq!(dialled.unwrap_err(), "member 1 answered at the address of 4");
    let other = PeerSecret::new(&[0; SECRET_BYTES], CLUSTER + 1, 2);
    assert!(meet(&port(0), &other, 1).await.0.is_err());
}

/// Reads the first message of member 2: magic, id and nonce.
async fn hello(io: &mut DuplexStream) -> [u8; 48] {
    read(io).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_proof_is_worth_nothing_on_another_connection() {
    let port = port(0);
    // Records everything that a member sends on a connection that is admitted.
    let (mut member, mut wire) = duplex(1024);
    let (mut near, mut far) = duplex(1024);
    let spied = async {
        let hello = hello(&mut wire).await;
        near.write_all(&hello).await.unwrap();
        wire.write_all(&read::<72>(&mut near).await.unwrap()).await.unwrap();
        let proof: [u8; NONCE_BYTES] = read(&mut wire).await.unwrap();
        near.write_all(&proof).await.unwrap();
        wire.write_u8(near.read_u8().await.unwrap()).await.unwrap();
        (hello, proof)
    };
    let dials = proof(0, 2);
    let (admitted, dialled, (hello, proof)) = tokio::join!(port.admit(&mut far), dials.dial(&mut member, 1), spied);
    assert_eq!((admitted.unwrap(), dialled.unwrap()), (PeerId(2), ()));
    let (mut near, mut far) = duplex(1024);
    near.write_all(&hello).await.unwrap();
    near.write_all(&proof).await.unwrap();
    let error = port.admit(&mut far).await.unwrap_err();
    assert_eq!(error.to_string(), "it does not know the secret of this cluster");
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_no_proof_of_who_dials() {
    let port = port(0);
    let (mut near, mut far) = duplex(1024);
    let reflected = async {
        // Member 1 receives its own answer.
        let hello = [&PROTOCOL_MAGIC[..], &1_u64.to_be_bytes(), &[0; NONCE_BYTES]].concat();
        near.write_all(&hello).await.unwrap();
        let answer: [u8; 72] = read(&mut near).await.unwrap();
        near.write_all(&answer[40..]).await.unwrap();
    };
    let (admitted, ()) = tokio::join!(port.admit(&mut far), reflected);
    assert!(admitted.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_just_got_its_row_is_looked_for() {
    let port = port(0);
    let late = port.members.clone();
    let dials = proof(0, 3);
    let ((accepted, dialled), ()) = tokio::join!(meet(&port, &dials, 1), async {
        late.asked_for().await;
        late.replace(members(&[1, 2, 3]).list());
    });
    assert_eq!((accepted, dialled), (Ok(PeerId(3)), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn whatever_is_not_of_a_member_is_refused_at_once() {
    let (mut near, mut far) = duplex(1024);
    near.write_all(b"PRI * HTTP/2.0").await.unwrap();
    let error = port(0).admit(&mut far).await.unwrap_err();
    assert_eq!(error.to_string(), "it does not start as a member does");
}
