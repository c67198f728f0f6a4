//! Waits for a state of many objects that a watch shows, and says how far they are.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use programs::progress::Progress;
use tokio::time::{Instant, interval_at, sleep_until};

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// How far objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) count: u64,
    pub(super) of: u64,
    pub(super) is_done: bool,
}

impl Reached {
    /// Of objects that count, and are done when there are as many as `of`.
    pub(super) fn count<T>(objects: impl Iterator<Item = T>, of: u64) -> Self {
        let count = objects.count() as u64;
        Self {
            count,
            of,
            is_done: count >= of,
        }
    }
}

/// Where progress is reported, and how long a wait may take.
#[derive(Clone, Copy)]
pub(super) struct Follower<'a> {
    pub(super) progress: &'a Progress,
    /// The store, in lines of progress.
    pub(super) store: &'static str,
    pub(super) timeout: Duration,
}

impl Follower<'_> {
    /// Waits until what `view` shows of all objects is done.
    ///
    /// # Errors
    ///
    /// It is not in time: then with how far it is, and the last error of the watch.
    pub(super) async fn until<K, V>(
        &self,
        what: &str,
        api: Api<K>,
        config: watcher::Config,
        view: impl Fn(&K) -> V,
        reached: impl Fn(&BTreeMap<String, V>) -> Reached,
    ) -> anyhow::Result<()>
    where
        K: Resource + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
    {
        let (began, store) = (Instant::now(), self.store);
        let deadline = began + self.timeout;
        let mut ticks = interval_at(began + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut known = KnownObjects::default();
        let mut last_error = None;
        loop {
            tokio::select! {
                event = events.next() => match event.context("a watch ended")? {
                    Ok(event) => known.apply(event, &view),
                    Err(error) => last_error = Some(error),
                },
                _ = ticks.tick() => {
                    let Reached { count, of, .. } = reached(&known.objects);
                    let seconds = began.elapsed().as_secs();
                    self.progress.say(format_args!("  … {store}: {what}: {count} of {of} after {seconds} s"));
                }
                () = sleep_until(deadline) => {
                    let Reached { count, of, .. } = reached(&known.objects);
                    let error = last_error.map_or_else(String::new, |error| format!("; last error of the watch: {error}"));
                    bail!("{store}: {what}: only {count} of {of} after {:?}{error}", self.timeout);
                }
            }
            if known.is_complete && reached(&known.objects).is_done {
                return Ok(());
            }
        }
    }
}

/// Objects by namespace and name.
#[derive(Debug)]
struct KnownObjects<V> {
    objects: BTreeMap<String, V>,
    /// False while they are being listed.
    is_complete: bool,
}

impl<V> Default for KnownObjects<V> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            is_complete: false,
        }
    }
}

impl<V> KnownObjects<V> {
    fn apply<K: Resource>(&mut self, event: Event<K>, view: impl Fn(&K) -> V) {
        match event {
            Event::Init => *self = Self::default(),
            Event::InitDone => self.is_complete = true,
            Event::InitApply(object) | Event::Apply(object) => {
                self.objects.insert(key(&object), view(&object));
            }
            Event::Delete(object) => {
                self.objects.remove(&key(&object));
            }
        }
    }
}

fn key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}})).unwrap()
    }

    #[test]
    fn objects_are_complete_when_they_are_listed() {
        let mut known = KnownObjects::default();
        let mut then = |event, names: &[&str], is_complete| {
            known.apply(event, |_: &ConfigMap| ());
            assert_eq!(known.objects.keys().map(String::as_str).collect::<Vec<_>>(), names);
            assert_eq!(known.is_complete, is_complete);
        };
        then(Event::Init, &[], false);
        then(Event::InitApply(object("a", "x")), &["a/x"], false);
        then(Event::InitApply(object("b", "x")), &["a/x", "b/x"], false);
        then(Event::InitDone, &["a/x", "b/x"], true);
        then(Event::Apply(object("b", "y")), &["a/x", "b/x", "b/y"], true);
        then(Event::Delete(object("a", "x")), &["b/x", "b/y"], true);
        // listed once more: what is not in the list is gone
        then(Event::Init, &[], false);
        then(Event::InitApply(object("b", "y")), &["b/y"], false);
        then(Event::InitDone, &["b/y"], true);
    }
}
