//! The service `etcdserverpb.Auth`: users, roles and permissions, and how clients are identified.
//!
//! Changes are evaluated by the leader's sequencer, in the order of all writes; every member applies them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use self::guard::{TokenKind, check_password};
use self::hashing::Origin;
use super::context::{ApiContext, caller_of};
use super::header::HasHeader;
use cluster::forward::caller;
use engine::rows::Rows;
use etcd_types::errors::Error;
use etcd_types::pb::authpb;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::{Caller, Identity};
use mvcc::auth::{Auth as Users, AuthRequest, Permission, ROOT_ROLE};
use pb::auth_client::AuthClient;
use pb::auth_server::Auth;
use store::sequencer::command::Request as Command;

pub use credentials::Credentials;
pub use guard::{Authenticator, Guard};
pub use options::{AuthOptions, JwtOptions, SignMethod, TokenOptions};

mod credentials;
mod guard;
mod hashing;
mod jwt;
mod options;
mod simple;

/// The service over a store.
pub struct AuthService<R: Rows>(pub ApiContext<R>);

type Answer<T> = Result<Response<T>, Status>;

/// Attempts to give a client a token while users and roles change.
const ATTEMPTS: usize = 8;

impl<R: Rows> AuthService<R> {
    /// Executes a change on the leader. `change` makes it of the request.
    async fn change<Q, A, F, T>(
        &self,
        request: Request<Q>,
        change: impl Fn(Q) -> F + Sync,
        remote: impl Fn(AuthClient<Channel>, Request<Q>) -> T,
    ) -> Answer<A>
    where
        Q: Message + Clone,
        A: HasHeader + Default,
        F: Future<Output = Result<AuthRequest, Error>>,
        T: Future<Output = Answer<A>>,
    {
        let local = |request| self.change_here(request, &change);
        let remote = |leader, request| remote(AuthClient::new(leader), request);
        self.0.forward(request, local, remote).await
    }

    async fn change_here<Q, A, F>(&self, request: Request<Q>, change: &(impl Fn(Q) -> F + Sync)) -> Answer<A>
    where
        Q: Message,
        A: HasHeader + Default,
        F: Future<Output = Result<AuthRequest, Error>>,
    {
        let caller = caller_of(&request);
        // A password is hashed for those only who may change it.
        if let Err(error) = self.0.guard.load().check_admin(&caller) {
            return Err(self.0.refuse(error.into()).await);
        }
        let request = request.into_inner();
        let size = self.0.limits.check_size(request.encoded_len())?;
        let change = Command::Auth(change(request).await?, self.0.limits.value_bytes);
        let revision = self.0.propose(caller, change, size).await?.revision;
        let mut answer = A::default();
        *answer.header_mut() = Some(self.0.header(revision));
        Ok(Response::new(answer))
    }

    /// Checks names that become keys of rows.
    fn check_name(&self, name: &str) -> Result<(), Error> {
        if name.len() > self.0.limits.key_bytes {
            Err(Error::RequestTooLarge)
        } else {
            Ok(())
        }
    }

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

    /// Checks a password; returns the user as of the auth revision at which it was right.
    async fn check_password(&self, request: &pb::AuthenticateRequest, from: &Origin) -> Result<Identity, Error> {
        let users = self.0.guard.load();
        if !users.is_enabled() {
            return Err(Error::AuthNotEnabled);
        }
        let user = users.user(&request.name).map_err(|_| Error::AuthFailed)?;
        if user.no_password {
            return Err(Error::NoPasswordUser);
        }
        let hash = String::from_utf8_lossy(&user.password).into_owned();
        let is_right = self
            .0
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

    /// Gives a client a token, as the leader.
    async fn authenticate_here(&self, request: Request<pb::AuthenticateRequest>) -> Answer<pb::AuthenticateResponse> {
        let from = Origin::new(caller::address(request.metadata()), &request.get_ref().name);
        let request = request.into_inner();
        for _ in 0..ATTEMPTS {
            let identity = match self.check_password(&request, &from).await {
                Ok(identity) => identity,
                Err(error) => return Err(self.0.refuse(error).await),
            };
            let (revision, token) = match &self.0.guard.authenticator().kind {
                TokenKind::None => return Err(Error::AuthFailed.into()),
                TokenKind::Jwt(jwt) => {
                    let view = self.0.linearizable().await?;
                    if self.0.guard.load().revision() != identity.revision {
                        continue;
                    }
                    (view.revision, jwt.sign(&identity)?)
                }
                TokenKind::Simple { .. } => {
                    self.0.guard.remove_expired();
                    let letters = simple::random();
                    let command = Command::Token {
                        user: identity.name,
                        digest: simple::digest(&letters),
                        revision: identity.revision,
                    };
                    match self.0.propose(Caller::Anonymous, command, request.encoded_len()).await {
                        Ok(answer) => (answer.revision, simple::token(&letters, self.0.state.committed())),
                        Err(status) if Error::from_text(status.message()) == Some(Error::AuthOldRevision) => continue,
                        Err(status) => return Err(status),
                    }
                }
            };
            return Ok(Response::new(pb::AuthenticateResponse {
                header: Some(self.0.header(revision)),
                token,
            }));
        }
        Err(Error::AuthOldRevision.into())
    }
}

#[tonic::async_trait]
impl<R: Rows> Auth for AuthService<R> {
    async fn auth_enable(&self, request: Request<pb::AuthEnableRequest>) -> Answer<pb::AuthEnableResponse> {
        let change = |_| async { Ok(AuthRequest::Enable) };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.auth_enable(request).await };
        self.change(request, change, remote).await
    }

    async fn auth_disable(&self, request: Request<pb::AuthDisableRequest>) -> Answer<pb::AuthDisableResponse> {
        let change = |_| async { Ok(AuthRequest::Disable) };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.auth_disable(request).await };
        self.change(request, change, remote).await
    }

    async fn auth_status(&self, request: Request<pb::AuthStatusRequest>) -> Answer<pb::AuthStatusResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        Ok(Response::new(pb::AuthStatusResponse {
            header,
            enabled: users.is_enabled(),
            auth_revision: users.revision(),
        }))
    }

    async fn authenticate(&self, mut request: Request<pb::AuthenticateRequest>) -> Answer<pb::AuthenticateResponse> {
        if !self.0.router.is_forwarded() {
            let address = request.remote_addr().map(|address| address.ip());
            caller::set_address(request.metadata_mut(), address);
        }
        let local = |request| self.authenticate_here(request);
        let remote = |leader, request| async move { AuthClient::new(leader).authenticate(request).await };
        self.0.forward_unidentified(request, local, remote).await
    }

    async fn user_add(&self, request: Request<pb::AuthUserAddRequest>) -> Answer<pb::AuthUserAddResponse> {
        // etcd hashes the password before it checks who sends the request.
        if !request.get_ref().options.is_some_and(|options| options.no_password) {
            check_password(&request.get_ref().password)?;
        }
        let change = |request: pb::AuthUserAddRequest| async move {
            self.check_name(&request.name)?;
            let password = if request.options.is_some_and(|options| options.no_password) {
                None
            } else {
                Some(self.0.guard.authenticator().hash(request.password).await?.into())
            };
            Ok(AuthRequest::AddUser(request.name, password))
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.user_add(request).await };
        self.change(request, change, remote).await
    }

    async fn user_get(&self, request: Request<pb::AuthUserGetRequest>) -> Answer<pb::AuthUserGetResponse> {
        let name = &request.get_ref().name;
        let (users, header) = self
            .read(&request, |users, caller| users.check_get_user(caller, name))
            .await?;
        let roles = users.user(name)?.roles.clone();
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(&self, request: Request<pb::AuthUserListRequest>) -> Answer<pb::AuthUserListResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        let users = users.users().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(&self, request: Request<pb::AuthUserDeleteRequest>) -> Answer<pb::AuthUserDeleteResponse> {
        let change = |request: pb::AuthUserDeleteRequest| async move { Ok(AuthRequest::DeleteUser(request.name)) };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.user_delete(request).await };
        self.change(request, change, remote).await
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Answer<pb::AuthUserChangePasswordResponse> {
        check_password(&request.get_ref().password)?;
        let change = |request: pb::AuthUserChangePasswordRequest| async move {
            let hash = if request.password.is_empty() {
                STANDARD.decode(&request.hashed_password).ok().map(Into::into)
            } else {
                Some(self.0.guard.authenticator().hash(request.password).await?.into())
            };
            Ok(AuthRequest::ChangePassword(request.name, hash))
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.user_change_password(request).await };
        self.change(request, change, remote).await
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Answer<pb::AuthUserGrantRoleResponse> {
        let change = |request: pb::AuthUserGrantRoleRequest| async move {
            Ok(AuthRequest::GrantRole {
                user: request.user,
                role: request.role,
            })
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.user_grant_role(request).await };
        self.change(request, change, remote).await
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Answer<pb::AuthUserRevokeRoleResponse> {
        let change = |request: pb::AuthUserRevokeRoleRequest| async move {
            Ok(AuthRequest::RevokeRole {
                user: request.name,
                role: request.role,
            })
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.user_revoke_role(request).await };
        self.change(request, change, remote).await
    }

    async fn role_add(&self, request: Request<pb::AuthRoleAddRequest>) -> Answer<pb::AuthRoleAddResponse> {
        let change = |request: pb::AuthRoleAddRequest| async move {
            self.check_name(&request.name)?;
            Ok(AuthRequest::AddRole(request.name))
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.role_add(request).await };
        self.change(request, change, remote).await
    }

    async fn role_get(&self, request: Request<pb::AuthRoleGetRequest>) -> Answer<pb::AuthRoleGetResponse> {
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

    async fn role_list(&self, request: Request<pb::AuthRoleListRequest>) -> Answer<pb::AuthRoleListResponse> {
        let (users, header) = self.read(&request, Users::check_admin).await?;
        let roles = users.roles().map(str::to_owned).collect();
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(&self, request: Request<pb::AuthRoleDeleteRequest>) -> Answer<pb::AuthRoleDeleteResponse> {
        let change = |request: pb::AuthRoleDeleteRequest| async move { Ok(AuthRequest::DeleteRole(request.role)) };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.role_delete(request).await };
        self.change(request, change, remote).await
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Answer<pb::AuthRoleGrantPermissionResponse> {
        let change = |request: pb::AuthRoleGrantPermissionRequest| async move {
            let permission = request.perm.map(|given| Permission {
                kind: given.perm_type,
                // Copied: a decoded value is a slice of the receive buffer.
                key: given.key.to_vec().into(),
                range_end: given.range_end.to_vec().into(),
            });
            Ok(AuthRequest::GrantPermission(request.name, permission))
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.role_grant_permission(request).await };
        self.change(request, change, remote).await
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Answer<pb::AuthRoleRevokePermissionResponse> {
        let change = |request: pb::AuthRoleRevokePermissionRequest| async move {
            Ok(AuthRequest::RevokePermission {
                role: request.role,
                key: request.key,
                range_end: request.range_end,
            })
        };
        let remote = |mut leader: AuthClient<_>, request| async move { leader.role_revoke_permission(request).await };
        self.change(request, change, remote).await
    }
}

fn to_wire(permission: &Permission) -> authpb::Permission {
    authpb::Permission {
        perm_type: permission.kind,
        key: permission.key.clone(),
        range_end: permission.range_end.clone(),
    }
}
