//! The service `etcdserverpb.Auth`: users, roles and permissions, and how clients are identified.
//!
//! Changes are evaluated by the leader's sequencer, in the order of all writes; every member applies them.

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::hashing_limit::PasswordOrigin;
use self::methods::TokenKind;
use self::password::check_password;
use super::context::ApiContext;
use super::leader_request::LeaderRequest;
use cluster::forward::caller;
use etcd_types::errors::Error;
use etcd_types::pb::authpb;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::{Caller, Identity};
use mvcc::auth::{Auth as Users, Permission, ROOT_ROLE};
use pb::auth_server::Auth;
use store::sequencer::command::Command;

pub use credentials::Credentials;
pub use guard::Guard;
pub use methods::Authenticator;
pub use options::{AuthOptions, JwtOptions, SignMethod, TokenOptions};

mod change;
mod credentials;
mod guard;
mod hashing_limit;
mod identify;
mod jwt;
mod methods;
mod options;
mod password;
mod simple;

/// The service over a store.
pub struct AuthService(pub ApiContext);

type AuthReply<T> = Result<Response<T>, Status>;

/// Attempts to give a client a token while users and roles change.
const AUTHENTICATE_ATTEMPTS: usize = 8;

impl AuthService {
    /// Returns users and roles that contain every change that was acknowledged before, if `check` permits the caller to read them,
    /// and the header for the answer.
    async fn read<T>(
        &self,
        request: &Request<T>,
        check: impl FnOnce(&Users, &Caller) -> Result<(), Error>,
    ) -> Result<(std::sync::Arc<Users>, Option<pb::ResponseHeader>), Status> {
        let view = self.0.linearizable().await?;
        let caller = self.0.caller(request).await?;
        let users = self.0.guard.load();
        check(&users, &caller)?;
        Ok((users, Some(self.0.header(view.revision))))
    }
}

/// Gives a client a token.
impl LeaderRequest for pb::AuthenticateRequest {
    type Answer = pb::AuthenticateResponse;
    const PATH: &'static str = "/etcdserverpb.Auth/Authenticate";
    const IS_IDENTIFIED: bool = false;

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::AuthenticateResponse, Status> {
        let from = PasswordOrigin::new(caller::address(request.metadata()), &request.get_ref().name);
        let request = request.get_ref();
        for _ in 0..AUTHENTICATE_ATTEMPTS {
            let identity = match identity(store, request, &from).await {
                Ok(identity) => identity,
                Err(error) => return Err(store.refuse(error).await),
            };
            let (revision, token) = match &store.guard.authenticator().kind {
                TokenKind::None => return Err(Error::AuthFailed.into()),
                TokenKind::Jwt(jwt) => {
                    let view = store.linearizable().await?;
                    if store.guard.load().revision() != identity.revision {
                        continue;
                    }
                    (view.revision, jwt.sign(&identity)?)
                }
                TokenKind::Simple { .. } => {
                    store.guard.remove_expired();
                    let letters = simple::random();
                    let command = Command::Token {
                        user: identity.name,
                        digest: simple::digest(&letters),
                        revision: identity.revision,
                    };
                    match store.propose(Caller::Anonymous, command, request.encoded_len()).await {
                        Ok(answer) => (answer.revision, simple::token(&letters, store.state.committed())),
                        Err(status) if Error::from_text(status.message()) == Some(Error::AuthOldRevision) => continue,
                        Err(status) => return Err(status),
                    }
                }
            };
            return Ok(pb::AuthenticateResponse {
                header: Some(store.header(revision)),
                token,
            });
        }
        Err(Error::AuthOldRevision.into())
    }
}

/// Checks a password; returns the user as of the auth revision at which it was right.
async fn identity(
    store: &ApiContext,
    request: &pb::AuthenticateRequest,
    from: &PasswordOrigin,
) -> Result<Identity, Error> {
    let users = store.guard.load();
    if !users.is_enabled() {
        return Err(Error::AuthNotEnabled);
    }
    let user = users.user(&request.name).map_err(|_| Error::AuthFailed)?;
    if user.no_password {
        return Err(Error::NoPasswordUser);
    }
    let hash = String::from_utf8_lossy(&user.password).into_owned();
    let is_right = store
        .guard
        .authenticator()
        .verify(from.clone(), request.password.clone(), hash)
        .await?;
    if !is_right {
        tracing::info!(user = request.name, "wrong password");
        return Err(Error::AuthFailed);
    }
    Ok(Identity {
        name: request.name.clone(),
        revision: users.revision(),
    })
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(&self, request: Request<pb::AuthEnableRequest>) -> AuthReply<pb::AuthEnableResponse> {
        self.0.forward(request).await
    }

    async fn auth_disable(&self, request: Request<pb::AuthDisableRequest>) -> AuthReply<pb::AuthDisableResponse> {
        self.0.forward(request).await
    }

    async fn auth_status(&self, request: Request<pb::AuthStatusRequest>) -> AuthReply<pb::AuthStatusResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        Ok(Response::new(pb::AuthStatusResponse {
            header,
            enabled: users.is_enabled(),
            auth_revision: users.revision(),
        }))
    }

    async fn authenticate(&self, mut request: Request<pb::AuthenticateRequest>) -> AuthReply<pb::AuthenticateResponse> {
        let address = request.remote_addr().map(|address| address.ip());
        caller::set_address(request.metadata_mut(), address);
        self.0.forward(request).await
    }

    async fn user_add(&self, request: Request<pb::AuthUserAddRequest>) -> AuthReply<pb::AuthUserAddResponse> {
        // etcd hashes the password before it checks who sends the request.
        if !request.get_ref().options.is_some_and(|options| options.no_password) {
            check_password(&request.get_ref().password)?;
        }
        self.0.forward(request).await
    }

    async fn user_get(&self, request: Request<pb::AuthUserGetRequest>) -> AuthReply<pb::AuthUserGetResponse> {
        let name = &request.get_ref().name;
        let (users, header) = self
            .read(&request, |users, caller| users.check_get_user(caller, name))
            .await?;
        let roles = users.user(name)?.roles.clone();
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(&self, request: Request<pb::AuthUserListRequest>) -> AuthReply<pb::AuthUserListResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        let users = users.users().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(&self, request: Request<pb::AuthUserDeleteRequest>) -> AuthReply<pb::AuthUserDeleteResponse> {
        self.0.forward(request).await
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> AuthReply<pb::AuthUserChangePasswordResponse> {
        check_password(&request.get_ref().password)?;
        self.0.forward(request).await
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> AuthReply<pb::AuthUserGrantRoleResponse> {
        self.0.forward(request).await
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> AuthReply<pb::AuthUserRevokeRoleResponse> {
        self.0.forward(request).await
    }

    async fn role_add(&self, request: Request<pb::AuthRoleAddRequest>) -> AuthReply<pb::AuthRoleAddResponse> {
        self.0.forward(request).await
    }

    async fn role_get(&self, request: Request<pb::AuthRoleGetRequest>) -> AuthReply<pb::AuthRoleGetResponse> {
        let name = &request.get_ref().role;
        let (users, header) = self
            .read(&request, |users, caller| users.check_get_role(caller, name))
            .await?;
        let role = users.role(name)?;
        let perm = if name == ROOT_ROLE {
            vec![to_wire(&Permission::everything())]
        } else {
            role.permissions.iter().map(to_wire).collect()
        };
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(&self, request: Request<pb::AuthRoleListRequest>) -> AuthReply<pb::AuthRoleListResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        let roles = users.roles().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(&self, request: Request<pb::AuthRoleDeleteRequest>) -> AuthReply<pb::AuthRoleDeleteResponse> {
        self.0.forward(request).await
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> AuthReply<pb::AuthRoleGrantPermissionResponse> {
        self.0.forward(request).await
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> AuthReply<pb::AuthRoleRevokePermissionResponse> {
        self.0.forward(request).await
    }
}

fn to_wire(permission: &Permission) -> authpb::Permission {
    authpb::Permission {
        perm_type: permission.kind,
        key: permission.key.clone(),
        range_end: permission.range_end.clone(),
    }
}
