//! gRPC in and out: etcd's services over the modules below. Protobuf types stop here.

pub mod status;
pub mod watch;
