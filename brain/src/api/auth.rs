//! The service `etcdserverpb.Auth` of a store without users: it answers as etcd does before the first user is added.
//!
//! Users and roles cannot be added: certificates decide which clients may connect.

use tonic::{Request, Response, Status};

use super::context::ApiContext;
use crate::errors::Error;
use crate::pb::etcdserverpb as pb;
use crate::rows::Rows;
use pb::auth_server::Auth;

/// The service over a store.
pub struct AuthService<R: Rows>(pub ApiContext<R>);

/// The auth revision: etcd counts changes of users and roles, starting at 1.
const REVISION: u64 = 1;

type Answer<T> = Result<Response<T>, Status>;

impl<R: Rows> AuthService<R> {
    fn header(&self) -> Result<Option<pb::ResponseHeader>, Status> {
        Ok(Some(self.0.header(self.0.view()?.revision)))
    }
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!(
        "etcdserver: {what} cannot be added: who may connect is decided by certificates (--client-cert-auth)"
    ))
}

#[tonic::async_trait]
impl<R: Rows> Auth for AuthService<R> {
    async fn auth_enable(&self, _: Request<pb::AuthEnableRequest>) -> Answer<pb::AuthEnableResponse> {
        Err(Error::RootUserNotExist.into())
    }

    async fn auth_disable(&self, _: Request<pb::AuthDisableRequest>) -> Answer<pb::AuthDisableResponse> {
        let header = self.header()?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(&self, _: Request<pb::AuthStatusRequest>) -> Answer<pb::AuthStatusResponse> {
        Ok(Response::new(pb::AuthStatusResponse {
            header: self.header()?,
            enabled: false,
            auth_revision: REVISION,
        }))
    }

    async fn authenticate(&self, _: Request<pb::AuthenticateRequest>) -> Answer<pb::AuthenticateResponse> {
        Err(Error::AuthNotEnabled.into())
    }

    async fn user_add(&self, request: Request<pb::AuthUserAddRequest>) -> Answer<pb::AuthUserAddResponse> {
        match request.get_ref().name.as_str() {
            "" => Err(Error::UserEmpty.into()),
            _ => Err(unimplemented("users")),
        }
    }

    async fn user_get(&self, _: Request<pb::AuthUserGetRequest>) -> Answer<pb::AuthUserGetResponse> {
        Err(Error::UserNotFound.into())
    }

    async fn user_list(&self, _: Request<pb::AuthUserListRequest>) -> Answer<pb::AuthUserListResponse> {
        Ok(Response::new(pb::AuthUserListResponse {
            header: self.header()?,
            users: Vec::new(),
        }))
    }

    async fn user_delete(&self, _: Request<pb::AuthUserDeleteRequest>) -> Answer<pb::AuthUserDeleteResponse> {
        Err(Error::UserNotFound.into())
    }

    async fn user_change_password(
        &self,
        _: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Answer<pb::AuthUserChangePasswordResponse> {
        Err(Error::UserNotFound.into())
    }

    async fn user_grant_role(&self, _: Request<pb::AuthUserGrantRoleRequest>) -> Answer<pb::AuthUserGrantRoleResponse> {
        Err(Error::UserNotFound.into())
    }

    async fn user_revoke_role(
        &self,
        _: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Answer<pb::AuthUserRevokeRoleResponse> {
        Err(Error::UserNotFound.into())
    }

    async fn role_add(&self, request: Request<pb::AuthRoleAddRequest>) -> Answer<pb::AuthRoleAddResponse> {
        match request.get_ref().name.as_str() {
            "" => Err(Error::RoleEmpty.into()),
            _ => Err(unimplemented("roles")),
        }
    }

    async fn role_get(&self, _: Request<pb::AuthRoleGetRequest>) -> Answer<pb::AuthRoleGetResponse> {
        Err(Error::RoleNotFound.into())
    }

    async fn role_list(&self, _: Request<pb::AuthRoleListRequest>) -> Answer<pb::AuthRoleListResponse> {
        Ok(Response::new(pb::AuthRoleListResponse {
            header: self.header()?,
            roles: Vec::new(),
        }))
    }

    async fn role_delete(&self, _: Request<pb::AuthRoleDeleteRequest>) -> Answer<pb::AuthRoleDeleteResponse> {
        Err(Error::RoleNotFound.into())
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Answer<pb::AuthRoleGrantPermissionResponse> {
        let Some(permission) = &request.get_ref().perm else {
            return Err(Error::PermissionNotGiven.into());
        };
        let (key, end) = (permission.key.as_ref(), permission.range_end.as_ref());
        let is_range = !key.is_empty() && (end.is_empty() || end == [0] || key < end);
        Err(if is_range {
            Error::RoleNotFound.into()
        } else {
            Error::InvalidAuthMgmt.into()
        })
    }

    async fn role_revoke_permission(
        &self,
        _: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Answer<pb::AuthRoleRevokePermissionResponse> {
        Err(Error::RoleNotFound.into())
    }
}
