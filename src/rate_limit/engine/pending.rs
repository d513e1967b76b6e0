//! Counts what is under way in the background, so that a shutdown can wait for it.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(super) struct Pending(Arc<watch::Sender<usize>>);

/// Something that is under way.
#[derive(Debug)]
pub(super) struct Begun(Arc<watch::Sender<usize>>);

impl Pending {
    pub(super) fn begin(&self) -> Begun {
        self.0.send_modify(|n| *n += 1);
        Begun(Arc::clone(&self.0))
    }

    /// Resolves when nothing is under way.
    pub(super) async fn none(&self) {
        // The sender is ours, so it does not fail.
        let _ = self.0.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}
