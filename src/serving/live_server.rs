//! `LiveServer`: counts the servers of this process.

use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE_SERVERS: AtomicUsize = AtomicUsize::new(0);

/// A server that counts until this value is dropped.
#[derive(Debug)]
pub(super) struct LiveServer(());

impl LiveServer {
    pub(super) fn new() -> Self {
        LIVE_SERVERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Returns true if this process has no other server.
    pub(super) fn is_only_one() -> bool {
        LIVE_SERVERS.load(Ordering::Relaxed) == 1
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        LIVE_SERVERS.fetch_sub(1, Ordering::Relaxed);
    }
}
