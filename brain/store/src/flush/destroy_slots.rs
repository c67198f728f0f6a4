//! Destroys slots of the log that neither rows nor history need any more.

use tokio::time::Instant;

use super::{Flusher, MaybeTransient as _, retry};
use engine::log::Slot;
use etcd_types::types::Revision;
use runtime::kill_points;

/// The log after the compacted revision is given up once it has more bytes than this, none of them of keys.
pub(super) const MAX_UNNEEDED_LOG_BYTES: i64 = 256 << 10;

impl Flusher {
    /// Gives up the log up to its last record in rows, once everything is compacted: without key writes there is no later revision to
    /// compact, but leases continue to write. A watch from exactly the compacted revision is then refused as compacted.
    pub(super) async fn drop_idle_log(&mut self) -> anyhow::Result<()> {
        let manifest = &mut self.manifest;
        let is_compacted = manifest.compacted == manifest.revision && manifest.deleted_up_to == manifest.revision;
        // The last record in rows stays: by it rows and log are known to fit.
        let last = manifest.log_last.min(manifest.applied_slot);
        if !is_compacted
            || last <= manifest.deleted_slot
            || manifest.sizes.logged - manifest.sizes.dropped <= MAX_UNNEEDED_LOG_BYTES
        {
            return Ok(());
        }
        manifest.deleted_slot = last;
        manifest.sizes.dropped = manifest.sizes.logged;
        manifest.sizes.unversioned_dropped = manifest.sizes.unversioned;
        let deleted_up_to = manifest.deleted_up_to;
        let batch = self.batch();
        self.apply(batch).await?;
        self.destroy(deleted_up_to).await
    }

    /// Gives up slots that neither rows nor history need any more.
    pub(super) async fn destroy(&mut self, deleted_up_to: Revision) -> anyhow::Result<()> {
        retry!(&self.stop, self.rows.sync())?;
        kill_points::reach("rows-synced");
        // The slot that holds the compacted revision stays: a watch may begin at it.
        let watermark = Slot(self.manifest.deleted_slot.min(self.manifest.applied_slot));
        retry!(&self.stop, self.log.raise_watermark(watermark))?;
        kill_points::reach("watermark-raised");
        self.state.forget_below(watermark);
        self.destroy_slots().await?;
        kill_points::reach("slots-destroyed");
        self.state.set_deleted_up_to(deleted_up_to);
        self.destroyed = self.manifest.sizes.dropped;
        self.destroyed_at = Instant::now();
        self.show(None).await
    }

    /// Destroys some of the slots below the watermark, and records whether there are more.
    pub(super) async fn destroy_slots(&mut self) -> anyhow::Result<()> {
        self.has_undestroyed = match self.log.destroy_below_watermark().await {
            // A flush does not wait for a server that is gone: a later compaction destroys these slots.
            Err(error) if error.is_transient() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not delete compacted log slots; will retry"
                );
                false
            }
            outcome => outcome?,
        };
        Ok(())
    }
}
