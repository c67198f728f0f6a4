//! The state of an archive, as a pass over it finds it.

use crds::KubeBrainCluster;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{ArchiveFigures, CONDITION};
use crate::status::{ConditionStatus, ConditionUpdate, whole_seconds};

/// An archive is behind if what is older than this is not stored. The alert `KubeBrainArchiveBehind` has the same limit.
const MAX_LAG_SECONDS: i64 = 120;

/// Reasons of the condition while changes cannot be stored, as far as it is known.
const DESTINATION_FAILED: &str = "DestinationFailed";
const NO_BACKUP: &str = "NoBackup";
const NOT_RUNNING: &str = "NotRunning";
const UNREACHABLE: &str = "Unreachable";

/// The same moment is computed from lags of whole seconds, and differs by up to this many.
const ROUNDING_SECONDS: u64 = 2;

/// The end of the changes that an archive has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchivePosition {
    /// Everything up to this revision.
    pub revision: i64,
    /// Everything up to this time.
    pub until: Timestamp,
}

/// The pod, as a pass found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveState {
    /// It answered.
    Answered(ArchiveFigures),
    /// It answered that something is not stored, and why.
    Failing(ArchiveFigures, String),
    /// It is ready and did not answer, for this reason.
    Silent(String),
    /// No pod is ready, for this reason if there is one.
    Missing(Option<String>),
}

/// Returns true if the condition says by this reason that changes cannot be stored, as far as it is known.
pub fn has_failed(reason: &str) -> bool {
    [DESTINATION_FAILED, NO_BACKUP, NOT_RUNNING, UNREACHABLE].contains(&reason)
}

/// The result of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveReport {
    pub condition: ConditionUpdate,
    pub position: Option<ArchivePosition>,
    /// Seconds from the time of the position to the pass.
    pub lag: Option<i64>,
}

/// Returns the report on an archive that does not run, or not as the spec asks for it.
pub fn waiting(reason: &str, message: impl Into<String>, before: Option<ArchivePosition>) -> ArchiveReport {
    ArchiveReport {
        condition: ConditionUpdate::new(CONDITION, ConditionStatus::False, reason, message),
        position: before,
        lag: None,
    }
}

/// Returns the report on an archive that should run; `before` is its last known position, and `has_failed` says that nothing was stored when
/// its pod last answered.
pub fn observed(
    state: &ArchiveState,
    (before, has_failed): (Option<ArchivePosition>, bool),
    now: Timestamp,
) -> ArchiveReport {
    let now = whole_seconds(now);
    let (position, gaps) = match state {
        ArchiveState::Answered(figures) | ArchiveState::Failing(figures, _) => {
            let found = position(figures, now);
            let is_same = |before: &ArchivePosition| found.is_some_and(|found| found.is_same(before));
            (before.filter(is_same).or(found).or(before), figures.gaps)
        }
        ArchiveState::Silent(_) | ArchiveState::Missing(_) => (before, 0),
    };
    let lag = position.map(|position| now.duration_since(position.until).as_secs().max(0));
    // A pod that failed, and is replaced, has not recovered before it says so.
    let is_silent = !matches!(state, ArchiveState::Answered(_) | ArchiveState::Failing(..));
    let keeps_up = lag.is_some_and(|lag| lag <= MAX_LAG_SECONDS) && !(has_failed && is_silent);
    ArchiveReport {
        condition: judge(state, position, (keeps_up, gaps > 0)),
        position,
        lag,
    }
}

fn judge(
    state: &ArchiveState,
    position: Option<ArchivePosition>,
    (keeps_up, has_gap): (bool, bool),
) -> ConditionUpdate {
    use ConditionStatus::{False, True, Unknown};
    let say = |status, reason: &str, message: String| ConditionUpdate::new(CONDITION, status, reason, message);
    let since = position.map_or_else(
        || "nothing is stored yet".to_owned(),
        |position| format!("changes since {} are not stored", position.until),
    );
    if let ArchiveState::Failing(figures, why) = state {
        return match figures.is_failing {
            true => say(False, DESTINATION_FAILED, format!("{since}: {why}")),
            false => say(
                False,
                NO_BACKUP,
                format!("there is no backup that the archive begins with: {why}"),
            ),
        };
    }
    if keeps_up && has_gap {
        let message = "changes are archived, but some revisions were compacted before and cannot be restored: the log of the pod names them";
        return say(True, "HasGap", message.to_owned());
    }
    if keeps_up {
        let message = format!("all changes older than {MAX_LAG_SECONDS} s are stored");
        return say(True, "Archiving", message);
    }
    match state {
        ArchiveState::Answered(_) if position.is_none() => say(False, "Creating", since),
        ArchiveState::Answered(_) | ArchiveState::Failing(..) => say(
            False,
            "Behind",
            format!("{since}: the log of the pod says if the members fail, or which of both is slow"),
        ),
        ArchiveState::Silent(why) => say(
            Unknown,
            UNREACHABLE,
            format!("the pod does not answer the operator: {why}"),
        ),
        ArchiveState::Missing(None) if position.is_none() => say(False, "Creating", "the pod starts".to_owned()),
        ArchiveState::Missing(None) => say(False, NOT_RUNNING, format!("{since}: no pod is ready")),
        ArchiveState::Missing(Some(why)) => say(False, NOT_RUNNING, format!("{since}: {why}")),
    }
}

fn position(figures: &ArchiveFigures, now: Timestamp) -> Option<ArchivePosition> {
    let until = now.checked_sub(SignedDuration::from_secs(figures.lag?)).ok()?;
    Some(ArchivePosition {
        revision: figures.revision,
        until,
    })
}

impl ArchivePosition {
    fn is_same(&self, other: &Self) -> bool {
        let apart = self.until.as_second().abs_diff(other.until.as_second());
        self.revision == other.revision && apart <= ROUNDING_SECONDS
    }

    /// Returns the position in the status of a cluster.
    pub fn of(cluster: &KubeBrainCluster) -> Option<Self> {
        let backup = cluster.status.as_ref()?.backup.as_ref()?;
        Some(Self {
            revision: backup.archived_revision?,
            until: backup.archived_until.as_ref()?.0,
        })
    }
}
