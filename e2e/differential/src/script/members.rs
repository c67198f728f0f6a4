//! Rare requests: members, maintenance, alarms. Only those that leave the members as they are, and no alarm request without an action:
//! that ends etcd itself.

use rand::RngExt as _;
use wire::etcdserverpb as pb;

use super::Script;
use crate::request::{OWN_MEMBER, OWN_PEER_URLS, Request};

const NOBODY: u64 = 12_345;
/// Peer URLs that no new member may have.
const PEER_URLS: &[&[&str]] = &[
    &[],
    &["nonsense"],
    &["http://no-port"],
    &[OWN_PEER_URLS],
    &["http://127.0.0.1:1", OWN_PEER_URLS],
];

const CALM_BEFORE_ALARM_ENDS: u32 = 12;

/// Etcd may be downgraded to the minor version before its own.
const ALLOWED: &str = "3.5";
/// Targets of downgrades.
const VERSIONS: &[&str] = &[
    "",
    "nonsense",
    "3.4",
    "3.4.0",
    "3.5",
    "3.5",
    "3.5.0",
    "3.5.9-rc.1",
    "3.5-rc",
    "+3.5.0",
    "3.6.0",
    "3.7",
    "4.0.0",
];

impl Script {
    pub(super) fn rare(&mut self) -> Request {
        match self.random.rng.random_range(0..44) {
            0..=5 => Request::Status(pb::StatusRequest {}),
            6..=9 => Request::MemberList(pb::MemberListRequest {
                linearizable: self.random.chance(50),
            }),
            10..=13 => Request::Alarm(pb::AlarmRequest {
                alarm: self.random.pick(&[0, 1, 2]),
                ..pb::AlarmRequest::default()
            }),
            14..=16 => Request::Hash(pb::HashRequest {}),
            17 => Request::Defragment(pb::DefragmentRequest {}),
            18 => Request::MoveLeader(pb::MoveLeaderRequest {
                target_id: self.random.pick(&[0, NOBODY]),
            }),
            19 => {
                let one = if self.alone { OWN_MEMBER } else { NOBODY };
                Request::MemberRemove(pb::MemberRemoveRequest {
                    id: self.random.pick(&[0, NOBODY, one]),
                })
            }
            20 => {
                let peer_ur_ls = vec!["http://127.0.0.1:1".to_owned()];
                Request::MemberUpdate(pb::MemberUpdateRequest { id: NOBODY, peer_ur_ls })
            }
            21 => Request::MemberPromote(pb::MemberPromoteRequest {
                id: self.random.pick(&[0, NOBODY, OWN_MEMBER]),
            }),
            22 => {
                let peer_ur_ls = self
                    .random
                    .pick(PEER_URLS)
                    .iter()
                    .map(|url| (*url).to_owned())
                    .collect();
                Request::MemberAdd(pb::MemberAddRequest {
                    peer_ur_ls,
                    is_learner: self.random.chance(50),
                })
            }
            23..=25 => {
                let version = self.random.pick(VERSIONS).to_owned();
                let mut action = self.random.pick(&[0, 0, 1, 2, 7]);
                // Etcd would write its data as 3.5 does from then on.
                if action == 1 && version.starts_with(ALLOWED) {
                    action = 0;
                }
                Request::Downgrade(pb::DowngradeRequest { action, version })
            }
            26..=28 if self.alarmed.is_none() => self.raise(),
            29 => Request::Alarm(pb::AlarmRequest {
                action: 2,
                member_id: NOBODY,
                alarm: self.random.pick(&[1, 2]),
            }),
            30..=32 => Request::AuthStatus(pb::AuthStatusRequest {}),
            33..=35 => {
                // It succeeds, and changes nothing.
                let peer_ur_ls = vec![OWN_PEER_URLS.to_owned()];
                Request::MemberUpdate(pb::MemberUpdateRequest {
                    id: OWN_MEMBER,
                    peer_ur_ls,
                })
            }
            36 => Request::Snapshot,
            _ => Request::Status(pb::StatusRequest {}),
        }
    }

    /// Raises an alarm for a while.
    fn raise(&mut self) -> Request {
        self.settle_all();
        let alarm = pb::AlarmRequest {
            action: 1,
            member_id: 0,
            alarm: self.random.pick(&[1, 1, 2]),
        };
        self.alarmed = Some((CALM_BEFORE_ALARM_ENDS, alarm));
        Request::Alarm(alarm)
    }
}
