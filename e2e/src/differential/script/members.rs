//! Rare requests: members, maintenance, alarms. Only those that leave a cluster of one as it is, and no alarm request without an
//! action: that ends etcd itself.

use rand::RngExt as _;

use super::Script;
use crate::differential::request::Request;
use crate::wire::etcdserverpb as pb;

const NOBODY: u64 = 12_345;
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
        match self.rng.random_range(0..36) {
            0..=5 => Request::Status(pb::StatusRequest {}),
            6..=9 => Request::MemberList(pb::MemberListRequest {
                linearizable: self.chance(50),
            }),
            10..=13 => Request::Alarm(pb::AlarmRequest {
                alarm: self.pick(&[0, 1, 2]),
                ..pb::AlarmRequest::default()
            }),
            14..=16 => Request::Hash(pb::HashRequest {}),
            17 => Request::Defragment(pb::DefragmentRequest {}),
            18 => Request::MoveLeader(pb::MoveLeaderRequest {
                target_id: self.pick(&[0, NOBODY]),
            }),
            19 => Request::MemberRemove(pb::MemberRemoveRequest {
                id: self.pick(&[0, NOBODY]),
            }),
            20 => {
                let peer_ur_ls = vec!["http://127.0.0.1:1".to_owned()];
                Request::MemberUpdate(pb::MemberUpdateRequest { id: NOBODY, peer_ur_ls })
            }
            21 => Request::MemberPromote(pb::MemberPromoteRequest {
                id: self.pick(&[0, NOBODY]),
            }),
            22 => {
                let peer_ur_ls = match self.rng.random_range(0..3) {
                    0 => vec![],
                    1 => vec!["nonsense".to_owned()],
                    _ => vec!["http://no-port".to_owned()],
                };
                Request::MemberAdd(pb::MemberAddRequest {
                    peer_ur_ls,
                    is_learner: self.chance(50),
                })
            }
            23..=25 => {
                let version = self.pick(VERSIONS).to_owned();
                let mut action = self.pick(&[0, 0, 1, 2, 7]);
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
                alarm: self.pick(&[1, 2]),
            }),
            30..=32 => Request::AuthStatus(pb::AuthStatusRequest {}),
            _ => Request::Status(pb::StatusRequest {}),
        }
    }

    /// Raises an alarm for a while.
    fn raise(&mut self) -> Request {
        self.settle_all();
        let alarm = pb::AlarmRequest {
            action: 1,
            member_id: 0,
            alarm: self.pick(&[1, 1, 2]),
        };
        self.alarmed = Some((CALM_BEFORE_ALARM_ENDS, alarm));
        Request::Alarm(alarm)
    }
}
