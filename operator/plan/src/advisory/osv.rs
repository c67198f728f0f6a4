//! Records of OSV, as far as they matter: fields that are not named here are ignored, and optional ones may be null.

use semver::Version;
use serde::Deserialize;

use super::{Advisory, AffectedVersions, PACKAGE, RangeEvent};

#[derive(Deserialize)]
pub(super) struct Record {
    id: String,
    summary: Option<String>,
    withdrawn: Option<String>,
    affected: Option<Vec<Affected>>,
}

#[derive(Deserialize)]
struct Affected {
    package: Option<Package>,
    ranges: Option<Vec<Range>>,
    versions: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

#[derive(Deserialize)]
struct Range {
    #[serde(rename = "type")]
    type_: String,
    events: Option<Vec<Event>>,
}

#[derive(Deserialize)]
struct Event {
    introduced: Option<String>,
    fixed: Option<String>,
    last_affected: Option<String>,
    limit: Option<String>,
}

impl Record {
    /// Returns what it says of brains, if it does.
    pub(super) fn about_brains(self) -> Result<Option<Advisory>, String> {
        if self.withdrawn.is_some() {
            return Ok(None);
        }
        let is_about_brains = |affected: &Affected| affected.package.as_ref().is_some_and(|it| it.name == PACKAGE);
        let (mut affected, mut is_about_versions) = (Vec::new(), false);
        for entry in self.affected.iter().flatten().filter(|entry| is_about_brains(entry)) {
            // Commits say nothing about the version that a member reports.
            let ranges = entry.ranges.iter().flatten().filter(|range| range.type_ != "GIT");
            let ranges = ranges.map(Range::events).collect::<Result<Vec<_>, _>>()?;
            // Other texts, such as names of tags, are the version of no member.
            let versions = entry
                .versions
                .iter()
                .flatten()
                .filter_map(|version| parse(version).ok());
            let versions: Vec<Version> = versions.collect();
            is_about_versions |= !ranges.is_empty() || !versions.is_empty();
            affected.push(AffectedVersions { ranges, versions });
        }
        if !affected.is_empty() && !is_about_versions {
            return Err("it has neither a range of versions nor versions".to_owned());
        }
        let counts = !affected.is_empty();
        Ok(counts.then(|| Advisory {
            id: self.id,
            summary: self
                .summary
                .unwrap_or_default()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" "),
            affected,
        }))
    }
}

impl Range {
    fn events(&self) -> Result<Vec<RangeEvent>, String> {
        let mut events = Vec::new();
        for event in self.events.iter().flatten() {
            match event.introduced.as_deref() {
                Some("0") => events.push(RangeEvent::Introduced(None)),
                Some(version) => events.push(RangeEvent::Introduced(Some(parse(version)?))),
                None => {}
            }
            if let Some(version) = &event.fixed {
                events.push(RangeEvent::Fixed(parse(version)?));
            }
            if let Some(version) = &event.last_affected {
                events.push(RangeEvent::LastAffected(parse(version)?));
            }
            match event.limit.as_deref() {
                Some("*") => events.push(RangeEvent::Limit(None)),
                Some(version) => events.push(RangeEvent::Limit(Some(parse(version)?))),
                None => {}
            }
        }
        Ok(events)
    }
}

/// Reads a version, which tools write with a leading `v`, too.
fn parse(version: &str) -> Result<Version, String> {
    super::version(version).map_err(|error| format!("{version:?} is no version: {error}"))
}
