mod client;
mod cluster;
mod retry;
mod timestamp;

pub(crate) use self::client::PdClient;
pub(crate) use self::client::PdRpcClient;
pub(crate) use self::cluster::Cluster;
pub(crate) use self::cluster::Connection;
pub(crate) use self::retry::RetryClient;
pub(crate) use self::retry::RetryClientTrait;
