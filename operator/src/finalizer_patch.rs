//! Adds the operator's finalizers to resources, and removes them.

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use plan::names::FINALIZER_MANAGER;
use serde_json::json;

use crate::cache::received::ObjectStub;
use crate::pass::{PassError, api};

/// Adds the finalizer without changing those of others.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn add<K>(objects: &Api<ObjectStub>, object: &K, finalizer: &str) -> Result<(), PassError>
where
    K: Resource<DynamicType = ()>,
{
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": object.name_any(), "uid": object.uid(), "finalizers": [finalizer]},
    });
    let params = PatchParams::apply(FINALIZER_MANAGER).force();
    written(objects.patch(&object.name_any(), &params, &Patch::Apply(body)).await)
}

/// Removes the finalizer, whatever manager set it: an apply would keep one that another manager owns. The list is replaced only if the
/// object has not changed since it was read, so the finalizers of others stay.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn remove<K>(objects: &Api<ObjectStub>, object: &K, finalizer: &str) -> Result<(), PassError>
where
    K: Resource<DynamicType = ()>,
{
    let others: Vec<&String> = object.finalizers().iter().filter(|name| *name != finalizer).collect();
    let body = json!({"metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": others,
    }});
    let params = PatchParams {
        field_manager: Some(FINALIZER_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    written(objects.patch(&object.name_any(), &params, &Patch::Merge(body)).await)
}

/// An object that was deleted or changed in between is no error: the next pass sees it.
fn written(answer: kube::Result<ObjectStub>) -> Result<(), PassError> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(api("writing the finalizer")(error)),
    }
}
