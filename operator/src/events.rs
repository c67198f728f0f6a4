//! Events for people: what the operator did, shown by `kubectl describe`.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{self, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tracing::debug;

use crate::names::MANAGER;

/// The API server refuses longer notes.
const NOTE: usize = 1000;

/// Something worth telling.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) reason: &'static str,
    pub(crate) note: String,
    action: &'static str,
    warning: bool,
    about: Option<ObjectReference>,
}

impl Event {
    pub(crate) fn normal(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            reason,
            note,
            action,
            warning: false,
            about: None,
        }
    }

    pub(crate) fn warning(reason: &'static str, action: &'static str, note: String) -> Self {
        Self {
            warning: true,
            ..Self::normal(reason, action, note)
        }
    }

    /// Names the other object that the event is about.
    pub(crate) fn about(mut self, object: ObjectReference) -> Self {
        self.about = Some(object);
        self
    }
}

/// Publishes events. One that cannot be published is only logged: nothing depends on it.
#[derive(Clone)]
pub(crate) struct Events {
    recorder: Recorder,
}

impl Events {
    /// `instance` tells replicas of the operator apart.
    pub(crate) fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter {
            controller: format!("kubebrain.io/{MANAGER}"),
            instance: Some(instance),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    pub(crate) async fn publish(&self, cluster: &KubeBrainCluster, event: Event) {
        let mut secondary = event.about;
        if let Some(object) = &mut secondary {
            object.namespace.clone_from(&cluster.metadata.namespace);
        }
        let event = events::Event {
            type_: if event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: event.reason.to_owned(),
            note: Some(event.note.chars().take(NOTE).collect()),
            action: event.action.to_owned(),
            secondary,
        };
        if let Err(error) = self.recorder.publish(&event, &cluster.object_ref(&())).await {
            debug!(%error, reason = event.reason, "an event was not published");
        }
    }
}
