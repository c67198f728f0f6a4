//! The reason why a member does not serve, derived from the error that ended it.

use crate::data_dir::DataDirError;
use cluster::membership;
use cluster::membership::EnterError;
use cluster::prefix_owner::OwnerError;
use cluster::self_hosted_lease::SelfHosted;
use engine::log::LogError;
use engine::rows::RowsError;
use engine_local::files::FileLogOpenError;
use engine_tikv::ConnectError;
use net::refusal::{Code, Refusal};
use store::replica::StoreOpenError;
use store::retry;

/// Returns the reason for an error.
pub(crate) fn of(error: &anyhow::Error) -> Refusal {
    let known = error.chain().find_map(code);
    let passing = retry::is_transient(error).then_some(Code::StorageUnreachable);
    Refusal::new(known.or(passing).unwrap_or(Code::Failed), format!("{error:#}"))
}

/// Returns the code of one error in a chain; `None` if the error alone does not determine it. The outermost error with a code
/// counts.
fn code(cause: &(dyn std::error::Error + 'static)) -> Option<Code> {
    if let Some(error) = cause.downcast_ref() {
        return match error {
            ConnectError::OtherCluster { .. } | ConnectError::UnwantedCluster { .. } => Some(Code::ClusterIDMismatch),
            ConnectError::Corrupt(_) => Some(Code::Corrupt),
            ConnectError::Unreachable(_) => Some(Code::StorageUnreachable),
            ConnectError::Options(_) => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            OwnerError::Taken { .. } | OwnerError::Foreign => Some(Code::PrefixTaken),
            OwnerError::Wiping => Some(Code::PrefixWiping),
            OwnerError::NoStore => Some(Code::StoreMissing),
            OwnerError::Restoring | OwnerError::Occupied => None,
            OwnerError::Unreachable(_) => Some(Code::StorageUnreachable),
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            EnterError::Refused(membership::JoinError::OtherCluster { .. }) => Some(Code::PrefixTaken),
            EnterError::Refused(membership::JoinError::Newer { .. }) => Some(Code::FormatTooNew),
            EnterError::Refused(membership::JoinError::Corrupt(_)) => Some(Code::Corrupt),
            EnterError::Unreachable(_) => Some(Code::StorageUnreachable),
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            StoreOpenError::Newer { .. } => Some(Code::FormatTooNew),
            StoreOpenError::Older { .. } => Some(Code::FormatTooOld),
            StoreOpenError::RowsBehind { .. }
            | StoreOpenError::LogBehind { .. }
            | StoreOpenError::OtherLog
            | StoreOpenError::Record { .. } => Some(Code::Corrupt),
            StoreOpenError::Destroyed | StoreOpenError::Log(_) | StoreOpenError::Rows(_) => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            DataDirError::Newer { .. } => Some(Code::FormatTooNew),
            DataDirError::Older { .. } => Some(Code::FormatTooOld),
            DataDirError::Damaged { .. } | DataDirError::Missing { .. } | DataDirError::OtherLog { .. } => {
                Some(Code::Corrupt)
            }
            DataDirError::NoStore { .. } => Some(Code::StoreMissing),
            DataDirError::OtherStore { .. } | DataDirError::LostStore { .. } => Some(Code::StoreMismatch),
            DataDirError::InUse { .. }
            | DataDirError::Foreign { .. }
            | DataDirError::Restoring { .. }
            | DataDirError::NotEmpty { .. }
            | DataDirError::Io { .. } => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            FileLogOpenError::Damaged { .. }
            | FileLogOpenError::Missing { .. }
            | FileLogOpenError::Foreign { .. }
            | FileLogOpenError::Lost { .. }
            | FileLogOpenError::OtherLog { .. }
            | FileLogOpenError::Behind { .. } => Some(Code::Corrupt),
            _ => None,
        };
    }
    if cause.is::<SelfHosted>() {
        return Some(Code::LeaseStoredHere);
    }
    let is_damage = matches!(cause.downcast_ref(), Some(RowsError::Corrupt(_)))
        || matches!(cause.downcast_ref(), Some(LogError::Corrupt(_)));
    is_damage.then_some(Code::Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_told_by_its_code_whatever_surrounds_it() {
        let code = |error: anyhow::Error| of(&error.context("open the store")).code;
        let unwanted = ConnectError::UnwantedCluster { wanted: 1, found: 2 };
        assert_eq!(code(unwanted.into()), Code::ClusterIDMismatch);
        assert_eq!(code(OwnerError::Foreign.into()), Code::PrefixTaken);
        assert_eq!(code(OwnerError::NoStore.into()), Code::StoreMissing);
        let path = "/d".into();
        assert_eq!(code(DataDirError::NoStore { path }.into()), Code::StoreMissing);
        let members = "b0".to_owned();
        let other = EnterError::Refused(membership::JoinError::OtherCluster { members });
        assert_eq!(code(other.into()), Code::PrefixTaken);
        assert_eq!(code(StoreOpenError::Newer { found: 99 }.into()), Code::FormatTooNew);
        assert_eq!(
            code(StoreOpenError::Rows(RowsError::Corrupt(String::new())).into()),
            Code::Corrupt
        );
        let away = || anyhow::anyhow!("no answer");
        assert_eq!(code(ConnectError::Unreachable(away()).into()), Code::StorageUnreachable);
        assert_eq!(code(RowsError::Unavailable(away()).into()), Code::StorageUnreachable);
        assert_eq!(code(anyhow::anyhow!("no port")), Code::Failed);
        let said = of(&OwnerError::Wiping.into());
        assert_eq!(
            said.message,
            "the key prefix is being wiped: finish that with `kubebrain wipe`"
        );
    }
}
