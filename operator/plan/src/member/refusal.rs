//! A brain's own reason for not serving: a stable code for programs and a line for users.
//!
//! The brain answers with it while it waits for its storage, and leaves it as its termination message.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde::Deserialize;

use super::clean;

/// Maximum length of a code, in bytes.
const MAX_CODE_BYTES: usize = 64;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 512;

/// Reason why a brain does not serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrainRefusal {
    /// The brain's code, such as `PrefixTaken`.
    pub code: String,
    pub message: String,
}

#[derive(Deserialize)]
struct WireRefusal {
    code: String,
    message: String,
}

impl From<WireRefusal> for BrainRefusal {
    fn from(wire: WireRefusal) -> Self {
        Self {
            code: clean(&wire.code, MAX_CODE_BYTES),
            message: clean(&wire.message, MAX_MESSAGE_BYTES),
        }
    }
}

impl BrainRefusal {
    /// Parses the body of an answer; `None` for an older brain.
    pub fn parse(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct RefusalBody {
            refusal: WireRefusal,
        }
        let body: RefusalBody = serde_json::from_slice(body).ok()?;
        Some(body.refusal.into())
    }

    /// Returns the reason why a pod's brain ended. An older brain left only lines of its log; then the last line is taken, without a code.
    pub fn of_end(pod: &Pod) -> Option<Self> {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        containers.iter().find_map(|container| {
            let states = [&container.state, &container.last_state];
            let mut ends = states
                .into_iter()
                .filter_map(|state| state.as_ref()?.terminated.as_ref());
            ends.find_map(Self::of_container)
        })
    }

    /// The same for one container.
    pub fn of_container(ended: &ContainerStateTerminated) -> Option<Self> {
        let message = ended.message.as_ref()?;
        if let Ok(wire) = serde_json::from_str::<WireRefusal>(message) {
            return Some(wire.into());
        }
        let line = message
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("kubebrain: "))?;
        Some(Self {
            code: String::new(),
            message: clean(line, MAX_MESSAGE_BYTES),
        })
    }
}
