//! The reason why a member does not serve, derived from the error that ended it.

use crate::data_dir::DataDirError;
use backup_repository::ObjectError;
use cluster::membership;
use cluster::membership::EnterError;
use cluster::prefix_owner::OwnerError;
use cluster::self_hosted_lease::SelfHosted;
use engine::log::LogError;
use engine::rows::RowsError;
use engine_local::log::FileLogOpenError;
use engine_tikv::ConnectError;
use net::refusal::{Refusal, RefusalCode};
use store::replica::StoreOpenError;
use store::retry;

/// Returns the reason for an error.
pub(crate) fn of(error: &anyhow::Error) -> Refusal {
    let known = error.chain().find_map(code);
    let passing = retry::is_transient(error).then_some(RefusalCode::StorageUnreachable);
    Refusal::new(known.or(passing).unwrap_or(RefusalCode::Failed), format!("{error:#}"))
}

/// Returns the code of one error in a chain; `None` if the error alone does not determine it. The outermost error with a code
/// counts.
fn code(cause: &(dyn std::error::Error + 'static)) -> Option<RefusalCode> {
    if let Some(error) = cause.downcast_ref() {
        return match error {
            ConnectError::OtherCluster { .. } | ConnectError::UnwantedCluster { .. } => {
                Some(RefusalCode::ClusterIDMismatch)
            }
            ConnectError::Corrupt(_) => Some(RefusalCode::Corrupt),
            ConnectError::Unreachable(_) => Some(RefusalCode::StorageUnreachable),
            ConnectError::Options(_) => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            OwnerError::Taken { .. } | OwnerError::Foreign => Some(RefusalCode::PrefixTaken),
            OwnerError::Wiping => Some(RefusalCode::PrefixWiping),
            OwnerError::NoStore => Some(RefusalCode::StoreMissing),
            OwnerError::Restoring | OwnerError::Occupied => None,
            OwnerError::Unreachable(_) => Some(RefusalCode::StorageUnreachable),
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            EnterError::Refused(membership::JoinError::OtherCluster { .. }) => Some(RefusalCode::PrefixTaken),
            EnterError::Refused(membership::JoinError::Newer { .. }) => Some(RefusalCode::FormatTooNew),
            EnterError::Refused(membership::JoinError::Corrupt(_)) => Some(RefusalCode::Corrupt),
            EnterError::Unreachable(_) => Some(RefusalCode::StorageUnreachable),
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            StoreOpenError::Newer { .. } => Some(RefusalCode::FormatTooNew),
            StoreOpenError::Older { .. } => Some(RefusalCode::FormatTooOld),
            StoreOpenError::RowsBehind { .. }
            | StoreOpenError::LogBehind { .. }
            | StoreOpenError::OtherLog
            | StoreOpenError::Record { .. } => Some(RefusalCode::Corrupt),
            StoreOpenError::Destroyed | StoreOpenError::Log(_) | StoreOpenError::Rows(_) => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            DataDirError::Newer { .. } => Some(RefusalCode::FormatTooNew),
            DataDirError::Older { .. } => Some(RefusalCode::FormatTooOld),
            DataDirError::Damaged { .. } | DataDirError::Missing { .. } | DataDirError::OtherLog { .. } => {
                Some(RefusalCode::Corrupt)
            }
            DataDirError::NoStore { .. } => Some(RefusalCode::StoreMissing),
            DataDirError::OtherStore { .. } | DataDirError::LostStore { .. } => Some(RefusalCode::StoreMismatch),
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
            | FileLogOpenError::Behind { .. } => Some(RefusalCode::Corrupt),
            _ => None,
        };
    }
    if let Some(error) = cause.downcast_ref() {
        return match error {
            ObjectError::Missing { .. } | ObjectError::Damaged { .. } => Some(RefusalCode::Corrupt),
            ObjectError::Newer { .. } => Some(RefusalCode::FormatTooNew),
            ObjectError::NoKey { .. } | ObjectError::NoDestination { .. } | ObjectError::Store { .. } => None,
        };
    }
    if cause.is::<SelfHosted>() {
        return Some(RefusalCode::LeaseStoredHere);
    }
    let is_damage = matches!(cause.downcast_ref(), Some(RowsError::Corrupt(_)))
        || matches!(cause.downcast_ref(), Some(LogError::Corrupt(_)));
    is_damage.then_some(RefusalCode::Corrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_told_by_its_code_whatever_surrounds_it() {
        let code = |error: anyhow::Error| of(&error.context("open the store")).code;
        let unwanted = ConnectError::UnwantedCluster { wanted: 1, found: 2 };
        assert_eq!(code(unwanted.into()), RefusalCode::ClusterIDMismatch);
        assert_eq!(code(OwnerError::Foreign.into()), RefusalCode::PrefixTaken);
        assert_eq!(code(OwnerError::NoStore.into()), RefusalCode::StoreMissing);
        let path = "/d".into();
        assert_eq!(code(DataDirError::NoStore { path }.into()), RefusalCode::StoreMissing);
        let members = "b0".to_owned();
        let other = EnterError::Refused(membership::JoinError::OtherCluster { members });
        assert_eq!(code(other.into()), RefusalCode::PrefixTaken);
        assert_eq!(
            code(StoreOpenError::Newer { found: 99 }.into()),
            RefusalCode::FormatTooNew
        );
        assert_eq!(
            code(StoreOpenError::Rows(RowsError::Corrupt(String::new())).into()),
            RefusalCode::Corrupt
        );
        let object = || "parts/1".to_owned();
        let what = String::new();
        assert_eq!(
            code(ObjectError::Damaged { object: object(), what }.into()),
            RefusalCode::Corrupt
        );
        assert_eq!(
            code(ObjectError::Missing { object: object() }.into()),
            RefusalCode::Corrupt
        );
        let gone = ObjectError::NoDestination { object: object() };
        assert_eq!(code(gone.into()), RefusalCode::Failed);
        let away = || anyhow::anyhow!("no answer");
        assert_eq!(
            code(ConnectError::Unreachable(away()).into()),
            RefusalCode::StorageUnreachable
        );
        assert_eq!(
            code(RowsError::Unavailable(away()).into()),
            RefusalCode::StorageUnreachable
        );
        assert_eq!(code(anyhow::anyhow!("no port")), RefusalCode::Failed);
        let said = of(&OwnerError::Wiping.into());
        assert_eq!(
            said.message,
            "the key prefix is being wiped: finish that with `kubebrain wipe`"
        );
    }
}
