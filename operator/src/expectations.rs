//! Writes of this process that its watch stores may not show yet.
//!
//! If a pass planned from a store that lags its own writes, it would repeat them or replace a second pod. So every answer to a write is
//! recorded here, and a cluster is planned again only after the stores have caught up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};
use kube::core::ObjectMeta;
use serde::Deserialize;
use tokio::time::Instant;

/// Entries that were not read in this time are dropped: their cluster no longer exists.
const ENTRY_TTL: Duration = Duration::from_secs(600);

/// Identifies an object by its path below the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectPath {
    /// Group of the API; empty for the core.
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Writes that the stores may not show yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PendingWrites {
    /// The object was written; this is its version after the write.
    Wrote { version: String },
    /// The object was deleted or is being deleted.
    Deleted { uid: Option<String> },
    /// The API server refused a write because of the existing object, which must be read once.
    Contested,
}

/// Answers to writes. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expectations {
    entries: Arc<Mutex<HashMap<ObjectPath, ExpectedWrite>>>,
}

#[derive(Debug)]
struct ExpectedWrite {
    pending: PendingWrites,
    since: Instant,
}

/// The fields of an answer that are needed: an object, or a `Status`.
#[derive(Deserialize)]
struct WriteAnswer {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ObjectMeta,
    details: Option<StatusDetails>,
}

#[derive(Deserialize)]
struct StatusDetails {
    name: Option<String>,
    uid: Option<String>,
}

impl Expectations {
    /// Records the answer to a write at `path`.
    pub(crate) fn record(&self, method: &Method, path: &str, code: StatusCode, body: &[u8]) {
        let Ok(answer) = serde_json::from_slice::<WriteAnswer>(body) else {
            return;
        };
        let details = answer.details.as_ref();
        let named = answer
            .metadata
            .name
            .clone()
            .or(details.and_then(|details| details.name.clone()));
        let Some(place) = ObjectPath::parse(path, named) else {
            return;
        };
        let pending = if code == StatusCode::CONFLICT {
            PendingWrites::Contested
        } else if !code.is_success() {
            return;
        } else if method == Method::DELETE {
            let uid = answer.metadata.uid.or(details.and_then(|details| details.uid.clone()));
            PendingWrites::Deleted { uid }
        } else if let (Some(version), false) = (answer.metadata.resource_version, answer.kind == "Status") {
            PendingWrites::Wrote { version }
        } else {
            return;
        };
        let since = Instant::now();
        let mut entries = self.lock();
        entries.retain(|_, entry| entry.since.elapsed() < ENTRY_TTL);
        entries.insert(place, ExpectedWrite { pending, since });
    }

    /// Returns pending writes at places that satisfy `ours`, with their age.
    pub(crate) fn pending(&self, ours: impl Fn(&ObjectPath) -> bool) -> Vec<(ObjectPath, PendingWrites, Duration)> {
        let entries = self.lock();
        let found = entries.iter().filter(|(place, _)| ours(place));
        found
            .map(|(place, entry)| (place.clone(), entry.pending.clone(), entry.since.elapsed()))
            .collect()
    }

    /// Forgets `pending` at `place`, unless another write was recorded there since.
    pub(crate) fn settle(&self, place: &ObjectPath, pending: &PendingWrites) {
        let mut entries = self.lock();
        if entries.get(place).is_some_and(|entry| entry.pending == *pending) {
            entries.remove(place);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectPath, ExpectedWrite>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectPath {
    /// Parses `/api/v1/namespaces/…` and `/apis/<group>/<version>/namespaces/…`, with or without a subresource. A create has the name only
    /// in its answer. Returns `None` for objects without a namespace, and for Events, which are not read again.
    fn parse(path: &str, named: Option<String>) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => String::new(),
            "apis" => parts.next()?.to_owned(),
            _ => return None,
        };
        let _version = parts.next()?;
        if parts.next()? != "namespaces" {
            return None;
        }
        let namespace = parts.next()?.to_owned();
        let plural = parts.next().filter(|plural| *plural != "events")?.to_owned();
        let name = parts.next().map(str::to_owned).or(named)?;
        Some(Self {
            group,
            plural,
            namespace,
            name,
        })
    }
}

impl PendingWrites {
    /// Returns true if a store that shows `live` at this place has caught up.
    pub(crate) fn is_visible(&self, live: Option<&ObjectMeta>) -> bool {
        match self {
            Self::Wrote { version } => live
                .and_then(|live| live.resource_version.as_deref())
                .is_some_and(|live| live == version || is_newer(live, version)),
            Self::Deleted { uid } => live.is_none_or(|live| live.uid != *uid || live.deletion_timestamp.is_some()),
            Self::Contested => false,
        }
    }
}

/// Compares versions of objects of one resource as numbers.
pub(crate) fn is_newer(one: &str, other: &str) -> bool {
    matches!((one.parse::<u128>(), other.parse::<u128>()), (Ok(one), Ok(other)) if one > other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PATH: &str = "/apis/apps/v1/namespaces/brains/statefulsets";

    fn record(method: Method, path: &str, code: u16, body: &Value) -> Vec<(ObjectPath, PendingWrites)> {
        let expectations = Expectations::default();
        let code = StatusCode::from_u16(code).unwrap();
        expectations.record(&method, path, code, body.to_string().as_bytes());
        let all = expectations.pending(|_| true);
        all.into_iter().map(|(place, pending, _)| (place, pending)).collect()
    }

    fn place(group: &str, plural: &str) -> ObjectPath {
        ObjectPath {
            group: group.to_owned(),
            plural: plural.to_owned(),
            namespace: "brains".to_owned(),
            name: "dev".to_owned(),
        }
    }

    fn wrote(version: &str) -> PendingWrites {
        PendingWrites::Wrote {
            version: version.to_owned(),
        }
    }

    #[test]
    fn answers_to_writes_are_recorded_by_place() {
        let object = json!({"kind": "StatefulSet", "metadata": {"name": "dev", "uid": "u", "resourceVersion": "7"}});
        let set = || place("apps", "statefulsets");
        assert_eq!(record(Method::POST, PATH, 201, &object), [(set(), wrote("7"))]);
        assert_eq!(
            record(Method::PATCH, &format!("{PATH}/dev/status"), 200, &object),
            [(set(), wrote("7"))]
        );
        let core = "/api/v1/namespaces/brains/pods/dev";
        assert_eq!(
            record(Method::PATCH, core, 200, &object),
            [(place("", "pods"), wrote("7"))]
        );
        let deleted = PendingWrites::Deleted {
            uid: Some("u".to_owned()),
        };
        assert_eq!(
            record(Method::DELETE, core, 200, &object),
            [(place("", "pods"), deleted.clone())]
        );
        let status = json!({"kind": "Status", "metadata": {}, "details": {"name": "dev", "uid": "u"}});
        assert_eq!(
            record(Method::DELETE, core, 200, &status),
            [(place("", "pods"), deleted)]
        );
        assert_eq!(
            record(Method::POST, PATH, 409, &status),
            [(set(), PendingWrites::Contested)]
        );
    }

    #[test]
    fn refused_writes_and_events_are_not_recorded() {
        let status = json!({"kind": "Status", "metadata": {}, "details": {"name": "dev"}});
        assert_eq!(record(Method::POST, PATH, 403, &status), []);
        assert_eq!(record(Method::POST, PATH, 201, &json!([])), []);
        let event = json!({"kind": "Event", "metadata": {"name": "x", "resourceVersion": "1"}});
        assert_eq!(
            record(
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/brains/events",
                201,
                &event
            ),
            []
        );
        assert_eq!(record(Method::PATCH, "/api/v1/nodes/dev", 200, &event), []);
    }

    #[test]
    fn store_catches_up_with_the_version_or_a_newer_one() {
        let meta = |version: &str, uid: &str| ObjectMeta {
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        for (live, visible) in [("9", false), ("10", true), ("11", true), ("x", false)] {
            assert_eq!(wrote("10").is_visible(Some(&meta(live, "u"))), visible, "{live}");
        }
        assert!(wrote("x").is_visible(Some(&meta("x", "u"))));
        assert!(!wrote("10").is_visible(None));
        let deleted = PendingWrites::Deleted {
            uid: Some("u".to_owned()),
        };
        assert!(deleted.is_visible(None));
        assert!(!deleted.is_visible(Some(&meta("1", "u"))));
        assert!(deleted.is_visible(Some(&meta("1", "another"))));
        assert!(!PendingWrites::Contested.is_visible(None));
    }

    #[test]
    fn entry_recorded_meanwhile_is_kept() {
        let expectations = Expectations::default();
        let write = |version: &str| {
            let body = json!({"metadata": {"name": "dev", "resourceVersion": version}}).to_string();
            expectations.record(&Method::POST, PATH, StatusCode::CREATED, body.as_bytes());
        };
        write("1");
        let (set, old, _) = expectations.pending(|_| true).remove(0);
        write("2");
        expectations.settle(&set, &old);
        assert_eq!(expectations.pending(|_| true)[0].1, wrote("2"));
        expectations.settle(&set, &wrote("2"));
        assert_eq!(expectations.pending(|_| true), []);
    }
}
