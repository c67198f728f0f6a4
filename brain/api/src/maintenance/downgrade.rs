//! Versions that a downgrade may have as its target.

use etcd_types::errors::Error;
use etcd_types::version;

/// Major and minor version.
type Version = (i64, i64);

/// Returns the version that a text names. The patch level may be missing.
pub(super) fn parse(text: &str) -> Result<Version, Error> {
    semantic(text)
        .or_else(|| semantic(&format!("{text}.0")))
        .ok_or(Error::WrongDowngradeVersionFormat)
}

/// Checks that the cluster may be downgraded to a version, as etcd does: only to the minor version before.
pub(super) fn check_target(target: Version) -> Result<(), Error> {
    let (major, minor) = parse(version::CLUSTER)?;
    if target == (major, minor - 1) {
        Ok(())
    } else {
        Err(Error::InvalidDowngradeTargetVersion)
    }
}

/// Returns the cluster version without its patch level, as etcd names it in answers.
pub(super) fn cluster() -> String {
    version::CLUSTER.trim_end_matches(".0").to_owned()
}

/// Leading zeros, and a pre-release or metadata that are empty, are allowed as in etcd.
fn semantic(text: &str) -> Option<Version> {
    let (text, metadata) = text.split_once('+').unwrap_or((text, ""));
    let (numbers, pre_release) = text.split_once('-').unwrap_or((text, ""));
    if !is_identifier(metadata) || !is_identifier(pre_release) {
        return None;
    }
    let numbers: Option<Vec<i64>> = numbers.split('.').map(|number| number.parse().ok()).collect();
    match numbers?.as_slice() {
        [major, minor, _patch] => Some((*major, *minor)),
        _ => None,
    }
}

fn is_identifier(text: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    text.is_empty() || text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_minor_version_before_is_a_target() {
        for text in [
            "3.5",
            "3.5.0",
            "3.5.9",
            "03.5.0",
            "3.05",
            "3.5.0-rc.1",
            "3.5.0+abc",
            "3.5.0-",
            "3.5.0+",
            "3.5.0-01",
        ] {
            assert_eq!(parse(text).and_then(check_target), Ok(()), "{text}");
        }
        for text in ["3.4", "3.4.0", "3.6", "3.6.0", "3.7.0", "2.5.0", "4.5.0"] {
            let checked = check_target(parse(text).unwrap());
            assert_eq!(checked, Err(Error::InvalidDowngradeTargetVersion), "{text}");
        }
        for text in [
            "",
            "garbage",
            "3",
            "3.5.0.0",
            "v3.5.0",
            "3.5.99999999999999999999",
            " 3.5",
            "3.5-rc",
            "-3.5",
            "+3.5.0",
            "3.+5.0",
            "3..5",
            "3.5.",
            ".5",
            "3.5.x",
            "3.5.0-a..b",
        ] {
            assert_eq!(parse(text), Err(Error::WrongDowngradeVersionFormat), "{text}");
        }
    }

    #[test]
    fn answers_name_the_cluster_version_without_its_patch_level() {
        assert_eq!(cluster(), "3.6");
    }
}
