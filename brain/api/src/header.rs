//! The header of responses.

use etcd_types::pb::etcdserverpb as pb;

/// A response with etcd's header, or several responses.
pub trait HasHeaders {
    /// Returns the headers.
    fn headers_mut(&mut self) -> impl Iterator<Item = &mut pb::ResponseHeader>;
}

macro_rules! has_header {
    ($($response:ident),+ $(,)?) => {
        $(impl HasHeaders for pb::$response {
            fn headers_mut(&mut self) -> impl Iterator<Item = &mut pb::ResponseHeader> {
                self.header.iter_mut()
            }
        })+
    };
}

has_header!(
    PutResponse,
    DeleteRangeResponse,
    TxnResponse,
    CompactionResponse,
    AlarmResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseTimeToLiveResponse,
    LeaseLeasesResponse,
    AuthEnableResponse,
    AuthDisableResponse,
    AuthenticateResponse,
    AuthUserAddResponse,
    AuthUserDeleteResponse,
    AuthUserChangePasswordResponse,
    AuthUserGrantRoleResponse,
    AuthUserRevokeRoleResponse,
    AuthRoleAddResponse,
    AuthRoleDeleteResponse,
    AuthRoleGrantPermissionResponse,
    AuthRoleRevokePermissionResponse,
);
