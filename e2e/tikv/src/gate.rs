//! A process that can be stopped in its tracks, as by SIGSTOP: requests reach it, answers leave it, only while it is open.

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Gate {
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            open: watch::Sender::new(true),
        }
    }
}

impl Gate {
    pub(crate) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the gate is open.
    pub(crate) async fn pass(&self) {
        if self.is_open() {
            return;
        }
        // The sender lives as long as `self`, so the wait cannot fail.
        if self.open.subscribe().wait_for(|open| *open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
