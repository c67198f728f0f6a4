//! Pins a store to the TiKV cluster that holds it: a register has the cluster's id.

use bytes::Bytes;

use super::{CLUSTER_REGISTER, ConnectError, Tikv, TikvRegister};
use engine::cas_register::{Cas, CasRegister as _};

impl Tikv {
    /// Stores the cluster's id in the store, or compares it with the stored one. Fails as [`Tikv::check_pin`].
    pub async fn pin(&self) -> Result<(), ConnectError> {
        while !self.check_pin().await? {
            let id = Bytes::copy_from_slice(&self.cluster_id().to_be_bytes());
            match self.pinned().compare_and_set(None, Some(id)).await {
                Cas::Swapped | Cas::Mismatch => {} // read it
                Cas::Unknown(error) => return Err(ConnectError::Unreachable(error)),
            }
        }
        Ok(())
    }

    /// Returns true if the store exists and belongs to this TiKV cluster. Fails with [`ConnectError::OtherCluster`] if it belongs
    /// to another one, or if the register cannot be read.
    pub async fn check_pin(&self) -> Result<bool, ConnectError> {
        let Some(bytes) = self.pinned().get().await.map_err(ConnectError::Unreachable)? else {
            return Ok(false);
        };
        let found = self.cluster_id();
        match bytes.as_ref().try_into().map(u64::from_be_bytes) {
            Ok(pinned) if pinned == found => Ok(true),
            Ok(pinned) => Err(ConnectError::OtherCluster { pinned, found }),
            Err(_) => Err(ConnectError::Corrupt(CLUSTER_REGISTER)),
        }
    }

    fn pinned(&self) -> TikvRegister {
        self.register(CLUSTER_REGISTER)
    }
}
