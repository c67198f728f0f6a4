//! Advisories about versions of brains, and the condition of a cluster that runs one of them.
//!
//! They are written in the format of OSV (<https://ossf.github.io/osv-schema/>), which scanners and databases of advisories use. Other
//! packages that an advisory is about do not matter here.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use semver::{BuildMetadata, Version};

mod osv;
#[cfg(test)]
mod tests;

use crate::status::{ConditionStatus, ConditionUpdate};
use osv::Record;

/// The condition about the versions of the members.
pub const CONDITION: &str = "VersionAffected";

/// The package that an advisory names if it is about brains.
pub const PACKAGE: &str = "kubebrain";

/// The most advisories that the condition names.
const MAX_NAMED: usize = 5;
/// The most characters of a summary in the condition.
const MAX_SUMMARY_CHARS: usize = 200;

/// An advisory about brains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    /// Its id, such as `GHSA-…` or `CVE-…`.
    pub id: String,
    /// One line that says what is wrong; empty if it has none.
    pub summary: String,
    affected: Vec<AffectedVersions>,
}

/// Versions that an advisory is about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AffectedVersions {
    /// Ranges of them.
    ranges: Vec<Vec<RangeEvent>>,
    /// Single ones.
    versions: Vec<Version>,
}

/// The version at which a range begins or ends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RangeEvent {
    /// The first affected one; `None` is before all versions.
    Introduced(Option<Version>),
    /// The first one that is not affected any more.
    Fixed(Version),
    /// The last affected one, if no fixed one is known.
    LastAffected(Version),
    /// The range says nothing about this version and later ones, if no other limit is later; `None` is after all versions.
    Limit(Option<Version>),
}

impl Advisory {
    /// Returns the advisories about brains in a file with one record of OSV, or with a list of them, or for each record that is none what is
    /// wrong with it. Withdrawn ones are left out.
    ///
    /// # Errors
    /// The file has something else.
    pub fn parse(text: &str) -> Result<Vec<Result<Self, String>>, String> {
        let is_list = text.trim_start().starts_with('[');
        let records = match is_list {
            true => serde_json::from_str::<Vec<serde_json::Value>>(text),
            false => serde_json::from_str(text).map(|record| vec![record]),
        };
        let records = records.map_err(|error| error.to_string())?;
        let about_brains = records.into_iter().map(|record| {
            let id = record["id"].as_str().map_or_else(String::new, |id| format!("{id}: "));
            let record: Record = serde_json::from_value(record).map_err(|error| format!("{id}{error}"))?;
            record.about_brains().map_err(|error| format!("{id}{error}"))
        });
        Ok(about_brains.filter_map(Result::transpose).collect())
    }

    /// Returns true if it is about this version.
    #[must_use]
    pub fn affects(&self, version: &Version) -> bool {
        self.affected.iter().any(|affected| {
            affected.versions.contains(version) || affected.ranges.iter().any(|range| is_within(range, version))
        })
    }

    /// Returns the oldest version after this one in which it is fixed.
    #[must_use]
    pub fn fixed_after(&self, version: &Version) -> Option<&Version> {
        let events = self
            .affected
            .iter()
            .flat_map(|affected| affected.ranges.iter().flatten());
        let fixed = events.filter_map(|event| match event {
            RangeEvent::Fixed(fixed) => Some(fixed),
            RangeEvent::Introduced(_) | RangeEvent::LastAffected(_) | RangeEvent::Limit(_) => None,
        });
        fixed.filter(|fixed| *fixed > version && !self.affects(fixed)).min()
    }
}

/// Reads a version. Metadata of its build have no part in its precedence.
fn version(text: &str) -> Result<Version, semver::Error> {
    let version = Version::parse(text.strip_prefix('v').unwrap_or(text))?;
    Ok(Version {
        build: BuildMetadata::EMPTY,
        ..version
    })
}

/// The order of the events of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventOrder {
    Fixed,
    Introduced,
    LastAffected,
}

/// Returns true if a version is in a range: the last event at or before it began the range. A version at which a range ends and begins again is
/// in it, and one that is the first and the last affected one is in it alone.
fn is_within(range: &[RangeEvent], version: &Version) -> bool {
    let is_before = |event: &RangeEvent| match event {
        RangeEvent::Limit(limit) => Some(limit.as_ref().is_none_or(|limit| version < limit)),
        _ => None,
    };
    let limits: Vec<bool> = range.iter().filter_map(is_before).collect();
    if !limits.is_empty() && !limits.contains(&true) {
        return false;
    }
    let mut events: Vec<_> = range
        .iter()
        .filter_map(|event| match event {
            RangeEvent::Introduced(first) => {
                let has_begun = first.as_ref().is_none_or(|first| first <= version);
                has_begun.then_some((first.as_ref(), EventOrder::Introduced))
            }
            RangeEvent::Fixed(fixed) => (fixed <= version).then_some((Some(fixed), EventOrder::Fixed)),
            RangeEvent::Limit(_) => None,
            RangeEvent::LastAffected(last) => (last < version).then_some((Some(last), EventOrder::LastAffected)),
        })
        .collect();
    events.sort();
    events.last().is_some_and(|(_, event)| *event == EventOrder::Introduced)
}

/// The advisories that the operator knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownAdvisories {
    /// Those about brains.
    pub advisories: Vec<Advisory>,
    /// The number of files that were read; 0 if there are no advisories to judge by.
    pub files: usize,
    /// Why files, or records in them, could not be read, by name.
    pub unreadable: Vec<String>,
}

/// The versions of the members of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberVersions {
    /// Those that members report.
    pub reported: BTreeSet<String>,
    /// True if there are members that do not answer.
    pub is_partial: bool,
}

/// Returns the condition; `None` as long as there are no advisories.
pub fn condition(before: &[Condition], known: &KnownAdvisories, members: &MemberVersions) -> Option<ConditionUpdate> {
    if known.files == 0 && known.unreadable.is_empty() {
        return None;
    }
    let former = before.iter().find(|condition| condition.type_ == CONDITION);
    if members.reported.is_empty() {
        return former.map(|former| ConditionUpdate::kept(CONDITION, former));
    }
    let say = |status, reason, message: String| Some(ConditionUpdate::new(CONDITION, status, reason, message));
    let versions = members.reported.iter().filter_map(|text| version(text).ok());
    let versions: Vec<Version> = versions.collect();
    let mut ids = BTreeSet::new();
    let mut named = Vec::new();
    for advisory in &known.advisories {
        let affected = versions.iter().filter(|version| advisory.affects(version));
        // Two files may have the same record.
        if let Some(version) = affected.min()
            && ids.insert(&advisory.id)
        {
            named.push(sentence(advisory, version));
        }
    }
    if !named.is_empty() {
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        let more = if more > 0 {
            format!("; and {more} more")
        } else {
            String::new()
        };
        return say(ConditionStatus::True, "KnownAdvisories", named.join("; ") + &more);
    }
    let may_hold = |former: &&Condition| match former.reason.as_str() {
        "KnownAdvisories" => known.advisories.iter().any(|advisory| names(&former.message, advisory)),
        reason => reason == "UnknownVersion",
    };
    if let Some(former) = former.filter(may_hold).filter(|_| members.is_partial) {
        return Some(ConditionUpdate::kept(CONDITION, former));
    }
    // A brain is untrusted, and may report anything.
    if let Some(unknown) = members.reported.iter().find(|text| version(text).is_err()) {
        let unknown: String = unknown.chars().take(MAX_SUMMARY_CHARS).collect();
        let message = format!("a member reports {unknown:?}, which is no version");
        return say(ConditionStatus::Unknown, "UnknownVersion", message);
    }
    if !known.unreadable.is_empty() {
        let named = known.unreadable.iter().take(MAX_NAMED);
        let unreadable: Vec<String> = named.map(|why| why.chars().take(MAX_SUMMARY_CHARS).collect()).collect();
        let message = format!("the operator cannot read all advisories: {}", unreadable.join("; "));
        return say(ConditionStatus::Unknown, "InvalidAdvisories", message);
    }
    let message = "no advisory is about the version of a member".to_owned();
    say(ConditionStatus::False, "AsExpected", message)
}

/// Returns true if a message of the condition has the sentence of an advisory.
fn names(message: &str, advisory: &Advisory) -> bool {
    let begin = format!("{} affects ", advisory.id);
    message.split("; ").any(|sentence| sentence.starts_with(&begin))
}

fn sentence(advisory: &Advisory, version: &Version) -> String {
    let fixed = match advisory.fixed_after(version) {
        Some(fixed) => format!("fixed in {fixed}"),
        None => "no version fixes it".to_owned(),
    };
    let summary: String = advisory.summary.chars().take(MAX_SUMMARY_CHARS).collect();
    let about = if summary.is_empty() {
        String::new()
    } else {
        format!(": {summary}")
    };
    format!("{} affects {version} ({fixed}){about}", advisory.id)
}
