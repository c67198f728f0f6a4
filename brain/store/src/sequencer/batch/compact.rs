//! A compaction that a client or a period asks for: checked, and recorded. The flusher deletes the versions that it made obsolete.

use super::BatchBuilder;
use etcd_types::errors::Error;
use etcd_types::types::Revision;
use mvcc::record::{Change, Compact};

impl BatchBuilder {
    pub(super) fn compact(&mut self, revision: Revision) -> Result<(), Error> {
        if revision <= self.head.compacted {
            return Err(Error::Compacted);
        }
        if revision > self.head.revision {
            return Err(Error::FutureRev);
        }
        self.head.compacted = revision;
        self.push(Change::Compact(Compact { revision }));
        Ok(())
    }
}
