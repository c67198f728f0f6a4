//! Metrics of `kubebrain import`. They have a registry of their own, as those of an archive have.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_types::types::Revision;
use prometheus::{IntGauge, Registry};
use tokio::time::Instant;

use super::Registrar;
use super::process_registry::ProcessRegistry;

/// The handles.
pub struct ImportMetrics {
    registry: ProcessRegistry,
    revision: IntGauge,
    source_revision: IntGauge,
    following: IntGauge,
    /// When the source that is followed last answered; `None` while it is not followed.
    answered: Mutex<Option<Instant>>,
}

/// A source that has not answered for this long is not followed. It is asked every 15 seconds.
const MAX_SILENCE: Duration = Duration::from_secs(60);

impl Default for ImportMetrics {
    fn default() -> Self {
        let r = Registrar::new(Registry::new());
        Self {
            registry: ProcessRegistry::with_process(&r),
            ..Self::register(&r)
        }
    }
}

impl ImportMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            registry: ProcessRegistry::without_process(r),
            revision: r.gauge(
                "kubebrain_import_revision",
                "The revision of the copy; 0 before the first snapshot of the source is restored.",
            ),
            source_revision: r.gauge(
                "kubebrain_import_source_revision",
                "The newest known revision of the source, which is asked for every 15 seconds.",
            ),
            following: r.gauge(
                "kubebrain_import_following",
                "1 while the copy follows its source: it had reached it, and is not far behind.",
            ),
            answered: Mutex::new(None),
        }
    }

    /// The copy is at this revision, so the source has reached it.
    pub fn set_revision(&self, revision: Revision) {
        self.revision.set(revision);
        self.set_source_revision(revision);
    }

    /// The source has reached this revision.
    pub fn set_source_revision(&self, revision: Revision) {
        self.source_revision.set(self.source_revision.get().max(revision));
    }

    /// Notes if the copy has reached its source.
    pub fn set_following(&self, is_following: bool) {
        self.following.set(is_following.into());
    }

    /// The source has answered just now, and is asked again within seconds.
    pub fn set_answered(&self) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The source is not asked regularly any more, because the copy is finished.
    pub fn set_finishing(&self) {
        self.set_following(true);
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns why the copy is not ready to be finished, if it is not.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        let (own, newest) = (self.revision.get(), self.source_revision.get());
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = answered.map_or(Duration::ZERO, |answered| answered.elapsed());
        if silence > MAX_SILENCE {
            return Some(format!("the source has not answered for {} s", silence.as_secs()));
        }
        match (self.following.get(), own) {
            (1, _) => None,
            (_, 0) => Some("the source is being copied".to_owned()),
            _ => Some(format!("the copy is at revision {own}, and its source at {newest}")),
        }
    }

    /// Renders all of them in the text format of Prometheus. Fails if the encoder does.
    pub fn render(&self) -> anyhow::Result<Vec<u8>> {
        self.registry.render()
    }
}

impl std::fmt::Debug for ImportMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_never_behind_its_copy() {
        let metrics = ImportMetrics::default();
        assert_eq!(metrics.not_ready().unwrap(), "the source is being copied");
        metrics.set_source_revision(7);
        metrics.set_revision(5);
        let why = metrics.not_ready().unwrap();
        assert_eq!(why, "the copy is at revision 5, and its source at 7");
        metrics.set_revision(9);
        metrics.set_following(true);
        assert_eq!(metrics.not_ready(), None);
        metrics.set_answered();
        assert_eq!(metrics.not_ready(), None);
        *metrics.answered.lock().unwrap() = Instant::now().checked_sub(Duration::from_secs(90));
        assert_eq!(metrics.not_ready().unwrap(), "the source has not answered for 90 s");
        metrics.set_finishing();
        assert_eq!(metrics.not_ready(), None);
        let page = String::from_utf8(metrics.render().unwrap()).unwrap();
        for line in [
            "kubebrain_import_revision 9",
            "kubebrain_import_source_revision 9",
            "kubebrain_import_following 1",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in {page}");
        }
    }
}
