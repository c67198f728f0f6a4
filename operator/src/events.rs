//! Publishes Events through the API server.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{self, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use plan::event::ClusterEvent;
use plan::names::MANAGER;
use tracing::debug;

/// Maximum length of a note that the API server accepts.
const MAX_NOTE_CHARS: usize = 1000;

/// Publishes events. If that fails, it is only logged, because nothing depends on an event.
#[derive(Clone)]
pub(crate) struct EventPublisher {
    recorder: Recorder,
}

impl EventPublisher {
    /// `instance` distinguishes replicas of the operator.
    pub(crate) fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter {
            controller: format!("kubebrain.io/{MANAGER}"),
            instance: Some(instance),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// Publishes an event of a resource as an event about its namespace, which is being deleted. The event is in the namespace `default`.
    pub(crate) async fn publish_about_namespace<K>(&self, namespace: &str, object: &K, event: &ClusterEvent)
    where
        K: Resource<DynamicType = ()>,
    {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
            name: Some(namespace.to_owned()),
            ..ObjectReference::default()
        };
        let note = format!("{} {}: {}", K::kind(&()), object.name_any(), event.note);
        let event = events::Event {
            type_: EventType::Warning,
            reason: event.reason.to_owned(),
            note: Some(note.chars().take(MAX_NOTE_CHARS).collect()),
            action: event.action.clone(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &about).await {
            debug!(%error, reason = event.reason, "could not publish an Event");
        }
    }

    pub(crate) async fn publish<K>(&self, object: &K, event: ClusterEvent)
    where
        K: Resource<DynamicType = ()>,
    {
        let mut secondary = event.about;
        if let Some(about) = &mut secondary {
            about.namespace.clone_from(&object.meta().namespace);
        }
        let event = events::Event {
            type_: if event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: event.reason.to_owned(),
            note: Some(event.note.chars().take(MAX_NOTE_CHARS).collect()),
            action: event.action,
            secondary,
        };
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            debug!(%error, reason = event.reason, "could not publish an Event");
        }
    }
}
