//! Times in which a process did not run.

use std::time::Duration;

use crate::history::clock;

/// A gap after which a process counts as not having run, and the others with it: they may not have run either, nor the
/// server.
const STALL: u64 = 50 * clock::MS;

/// Tells of each gap, from when to when.
pub(super) async fn watch(tell: impl Fn(u64, u64)) {
    loop {
        let from = clock::now();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = clock::now();
        if now - from > STALL {
            tell(from, now);
        }
    }
}
