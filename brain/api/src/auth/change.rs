//! Changes of users and roles, as the leader makes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message;
use tonic::{Request, Status};

use crate::context::{ApiContext, caller_of};
use crate::leader_request::LeaderRequest;
use crate::request::own;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use mvcc::auth::{AuthRequest, Permission};
use store::sequencer::command::Command;

/// Executes a change, which is made of the request when its caller has been permitted. Returns the header for the answer.
async fn change<Q: Message>(
    store: &ApiContext,
    request: &Request<Q>,
    change: impl Future<Output = Result<AuthRequest, Error>>,
) -> Result<Option<pb::ResponseHeader>, Status> {
    let caller = caller_of(request);
    // A password is hashed for those only who may change it.
    if let Err(error) = store.guard.load().check_admin(&caller) {
        return Err(store.refuse(error).await);
    }
    let size = store.limits.check_size(request.get_ref().encoded_len())?;
    let change = Command::Auth(change.await?, store.limits.value_bytes);
    let revision = store.propose(caller, change, size).await?.revision;
    Ok(Some(store.header(revision)))
}

/// Checks a name that becomes the key of a row.
fn check_name(store: &ApiContext, name: &str) -> Result<(), Error> {
    if name.len() > store.limits.key_bytes {
        Err(Error::RequestTooLarge)
    } else {
        Ok(())
    }
}

/// Returns the hash of a password.
async fn hash(store: &ApiContext, password: &str) -> Result<Bytes, Error> {
    let hash = store.guard.authenticator().hash(password.to_owned()).await?;
    Ok(hash.into())
}

impl LeaderRequest for pb::AuthEnableRequest {
    type Answer = pb::AuthEnableResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/AuthEnable";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let header = change(store, request, async { Ok(AuthRequest::Enable) }).await?;
        Ok(pb::AuthEnableResponse { header })
    }
}

impl LeaderRequest for pb::AuthDisableRequest {
    type Answer = pb::AuthDisableResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/AuthDisable";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let header = change(store, request, async { Ok(AuthRequest::Disable) }).await?;
        Ok(pb::AuthDisableResponse { header })
    }
}

impl LeaderRequest for pb::AuthUserAddRequest {
    type Answer = pb::AuthUserAddResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/UserAdd";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let add = async {
            check_name(store, &message.name)?;
            let password = if message.options.is_some_and(|options| options.no_password) {
                None
            } else {
                Some(hash(store, &message.password).await?)
            };
            Ok(AuthRequest::AddUser(message.name.clone(), password))
        };
        let header = change(store, request, add).await?;
        Ok(pb::AuthUserAddResponse { header })
    }
}

impl LeaderRequest for pb::AuthUserDeleteRequest {
    type Answer = pb::AuthUserDeleteResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/UserDelete";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let delete = async { Ok(AuthRequest::DeleteUser(message.name.clone())) };
        let header = change(store, request, delete).await?;
        Ok(pb::AuthUserDeleteResponse { header })
    }
}

impl LeaderRequest for pb::AuthUserChangePasswordRequest {
    type Answer = pb::AuthUserChangePasswordResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/UserChangePassword";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let set = async {
            let password = if message.password.is_empty() {
                STANDARD.decode(&message.hashed_password).ok().map(Into::into)
            } else {
                Some(hash(store, &message.password).await?)
            };
            Ok(AuthRequest::ChangePassword(message.name.clone(), password))
        };
        let header = change(store, request, set).await?;
        Ok(pb::AuthUserChangePasswordResponse { header })
    }
}

impl LeaderRequest for pb::AuthUserGrantRoleRequest {
    type Answer = pb::AuthUserGrantRoleResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/UserGrantRole";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let grant = async {
            Ok(AuthRequest::GrantRole {
                user: message.user.clone(),
                role: message.role.clone(),
            })
        };
        let header = change(store, request, grant).await?;
        Ok(pb::AuthUserGrantRoleResponse { header })
    }
}

impl LeaderRequest for pb::AuthUserRevokeRoleRequest {
    type Answer = pb::AuthUserRevokeRoleResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/UserRevokeRole";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let revoke = async {
            Ok(AuthRequest::RevokeRole {
                user: message.name.clone(),
                role: message.role.clone(),
            })
        };
        let header = change(store, request, revoke).await?;
        Ok(pb::AuthUserRevokeRoleResponse { header })
    }
}

impl LeaderRequest for pb::AuthRoleAddRequest {
    type Answer = pb::AuthRoleAddResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/RoleAdd";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let add = async {
            check_name(store, &message.name)?;
            Ok(AuthRequest::AddRole(message.name.clone()))
        };
        let header = change(store, request, add).await?;
        Ok(pb::AuthRoleAddResponse { header })
    }
}

impl LeaderRequest for pb::AuthRoleDeleteRequest {
    type Answer = pb::AuthRoleDeleteResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/RoleDelete";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let delete = async { Ok(AuthRequest::DeleteRole(message.role.clone())) };
        let header = change(store, request, delete).await?;
        Ok(pb::AuthRoleDeleteResponse { header })
    }
}

impl LeaderRequest for pb::AuthRoleGrantPermissionRequest {
    type Answer = pb::AuthRoleGrantPermissionResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/RoleGrantPermission";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let grant = async {
            let permission = message.perm.as_ref().map(|given| Permission {
                kind: given.perm_type,
                key: own(&given.key),
                range_end: own(&given.range_end),
            });
            Ok(AuthRequest::GrantPermission(message.name.clone(), permission))
        };
        let header = change(store, request, grant).await?;
        Ok(pb::AuthRoleGrantPermissionResponse { header })
    }
}

impl LeaderRequest for pb::AuthRoleRevokePermissionRequest {
    type Answer = pb::AuthRoleRevokePermissionResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/RoleRevokePermission";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<Self::Answer, Status> {
        let message = request.get_ref();
        let revoke = async {
            Ok(AuthRequest::RevokePermission {
                role: message.role.clone(),
                key: message.key.clone(),
                range_end: message.range_end.clone(),
            })
        };
        let header = change(store, request, revoke).await?;
        Ok(pb::AuthRoleRevokePermissionResponse { header })
    }
}
