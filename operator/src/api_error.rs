//! Classes of failed requests to the API server, and their messages.

use kube::core::Status;

use crate::leadership::NotLeading;

/// Maximum length of an API server's text in a message, in characters. Admission webhooks may return texts of any length.
const MAX_TEXT_CHARS: usize = 512;

/// Start of the API server's message about an applied object with an unknown field, or a field of the wrong type. The API server answers
/// with code 500.
const UNTYPED_PATCH_MESSAGE: &str = "failed to create typed patch object";

/// How a reconcile reacts to a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FailureClass {
    /// Another writer was faster: retry at once and report nothing.
    Conflict,
    /// No answer, or an error that may not recur: retry, and report it if it persists.
    Transient,
    /// The operator lacks the right, or admission or a quota refuses: report it and retry.
    Denied,
    /// The object itself is invalid: a retry does not help.
    Invalid,
    /// The namespace is being deleted: nothing can be created in it, and the cluster is deleted with it. Report nothing.
    NamespaceTerminating,
    /// Another replica leads: this process exits.
    Fenced,
}

impl FailureClass {
    pub(crate) const ALL: [Self; 6] = [
        Self::Conflict,
        Self::Transient,
        Self::Denied,
        Self::Invalid,
        Self::NamespaceTerminating,
        Self::Fenced,
    ];

    pub(crate) fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                409 => Self::Conflict,
                400 | 422 => Self::Invalid,
                403 if is_namespace_terminating(status) => Self::NamespaceTerminating,
                401 | 403 => Self::Denied,
                500 if status.message.starts_with(UNTYPED_PATCH_MESSAGE) => Self::Invalid,
                _ => Self::Transient,
            },
            kube::Error::Service(error) if error.is::<NotLeading>() => Self::Fenced,
            _ => Self::Transient,
        }
    }

    /// Returns true if this error is reported after `failures` in a row.
    pub(crate) fn is_told(self, failures: u32) -> bool {
        match self {
            Self::Conflict => failures >= 10,
            Self::Transient => failures >= 3,
            Self::Denied | Self::Invalid => true,
            Self::NamespaceTerminating | Self::Fenced => false,
        }
    }
}

/// Returns true if the API server refused an object because its namespace, with everything in it, is being deleted.
fn is_namespace_terminating(status: &Status) -> bool {
    let details = status.details.iter();
    details
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns the error for users. The text stays the same across retries, so it has no resource versions, and it fits into a message.
pub(crate) fn message(error: &kube::Error) -> String {
    let text = match error {
        kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists" => {
            return "another client changed it at the same time".to_owned();
        }
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    };
    let cleaned = text.chars().filter(|c| !c.is_control());
    cleaned.take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure(message, reason).with_code(code)))
    }

    #[test]
    fn codes_have_classes() {
        for (code, class) in [
            (409, FailureClass::Conflict),
            (422, FailureClass::Invalid),
            (400, FailureClass::Invalid),
            (403, FailureClass::Denied),
            (401, FailureClass::Denied),
            (404, FailureClass::Transient),
            (429, FailureClass::Transient),
            (500, FailureClass::Transient),
            (503, FailureClass::Transient),
        ] {
            assert_eq!(FailureClass::of(&answered(code, "", "")), class, "{code}");
        }
        let ending = serde_json::json!({
            "code": 403,
            "reason": "Forbidden",
            "message": "services \"a\" is forbidden: unable to create new content in namespace b because it is being terminated",
            "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace", "message": ""}]},
        });
        let ending = kube::Error::Api(Box::new(serde_json::from_value(ending).unwrap()));
        assert_eq!(FailureClass::of(&ending), FailureClass::NamespaceTerminating);
        let untyped = "failed to create typed patch object (brains/dev; apps/v1, Kind=StatefulSet): .spec.template.spec.x: field not declared in schema";
        assert_eq!(FailureClass::of(&answered(500, "", untyped)), FailureClass::Invalid);
        assert_eq!(
            FailureClass::of(&kube::Error::Service(NotLeading.into())),
            FailureClass::Fenced
        );
        let broken = std::io::Error::other("broken");
        assert_eq!(
            FailureClass::of(&kube::Error::Service(broken.into())),
            FailureClass::Transient
        );
    }

    #[test]
    fn messages_are_stable_and_short() {
        let precondition =
            "Precondition failed: ResourceVersion in precondition: 17, ResourceVersion in object meta: 18";
        assert_eq!(
            message(&answered(409, "Conflict", precondition)),
            "another client changed it at the same time"
        );
        assert_eq!(
            message(&answered(409, "AlreadyExists", "services \"a\" already exists")),
            "services \"a\" already exists"
        );
        let long = message(&answered(403, "Forbidden", &"no\n".repeat(1000)));
        assert_eq!((long.len(), long.contains('\n')), (MAX_TEXT_CHARS, false));
    }

    #[test]
    fn hiccups_are_told_when_they_go_on() {
        assert!(!FailureClass::Transient.is_told(2) && FailureClass::Transient.is_told(3));
        assert!(!FailureClass::Conflict.is_told(9) && FailureClass::Conflict.is_told(10));
        assert!(
            FailureClass::Denied.is_told(1) && FailureClass::Invalid.is_told(1) && !FailureClass::Fenced.is_told(100)
        );
        assert!(!FailureClass::NamespaceTerminating.is_told(100));
    }
}
