//! The v3 API: protobuf messages in, protobuf messages out.

pub mod status;
//! gRPC in and out: etcd's services over the modules below. Protobuf types stop here.

pub mod watch;
