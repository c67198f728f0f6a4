//! The header of responses.

use etcd_types::pb::etcdserverpb as pb;

/// A response with etcd's header.
pub trait HasHeader {
    /// Returns the header.
    fn header_mut(&mut self) -> &mut Option<pb::ResponseHeader>;
}

macro_rules! has_header {
    ($($response:ident),+ $(,)?) => {
        $(impl HasHeader for pb::$response {
            fn header_mut(&mut self) -> &mut Option<pb::ResponseHeader> {
                &mut self.header
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
