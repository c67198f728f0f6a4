//! The result of the program, as its pod leaves it.

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use crate::member::clean;

/// Maximum length of a text of the program, in bytes.
const MAX_TEXT_BYTES: usize = 128;
/// Number of hexadecimal digits of the id of a store.
const ID_DIGITS: usize = 16;

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapResult {
    /// True if there was a store already, and nothing was changed.
    pub(crate) existed: bool,
    /// True if an earlier attempt of this cluster's Job made it.
    #[serde(default)]
    pub(crate) same_request: bool,
    pub(crate) cluster_id: String,
    /// The backup that was restored.
    pub(crate) name: Option<String>,
    pub(crate) revision: Option<i64>,
    /// The revision of the etcd, if the copy lacks the newest ones.
    pub(crate) source_revision: Option<i64>,
}

impl BootstrapResult {
    /// Returns the result that a pod which has succeeded left. The image of a pod is untrusted, so texts are bounded.
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        let ended = containers
            .iter()
            .find_map(|container| container.state.as_ref()?.terminated.as_ref());
        let message = ended.filter(|ended| ended.exit_code == 0)?.message.as_ref()?;
        let result: Self = serde_json::from_str(message).ok()?;
        Some(Self {
            cluster_id: clean(&result.cluster_id, MAX_TEXT_BYTES),
            name: result.name.map(|name| clean(&name, MAX_TEXT_BYTES)),
            ..result
        })
    }

    /// Returns true if the store was not made for this cluster: a rehearsal or an earlier cluster of the same name left it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.existed && !self.same_request
    }

    /// Returns the id of the store as members report it, if the program left one.
    pub(crate) fn store_id(&self) -> Option<&str> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = self.cluster_id.len() == ID_DIGITS && self.cluster_id.bytes().all(is_digit);
        is_id.then_some(self.cluster_id.as_str())
    }
}
