//! Waits for events and conditions, with a timeout.

use std::{future::Future, time::Duration};

/// Longest wait of a test for an expected event. No event takes this long: it only ends tests
/// whose expectation was wrong, with a sentence instead of a hang.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two checks of a condition that has no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Awaits a future with a timeout.
///
/// # Panics
///
/// If it takes too long.
pub async fn with_timeout<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("timed out waiting for: {what}"),
    }
}

/// Polls a condition until it holds, for a state that has no notification, such as the
/// length of a queue or a server that starts.
///
/// # Panics
///
/// If it takes too long.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    with_timeout(what, async {
        while !condition().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
}
