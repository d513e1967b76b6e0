//! Waiting for what must come, with an end.

use std::{future::Future, time::Duration};

/// How long a test waits for what must happen. Nothing takes this long on purpose: it only ends tests
/// whose expectation was wrong, with a sentence instead of a hang.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two looks at a condition that nobody announces.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Awaits with patience.
///
/// # Panics
///
/// If it takes too long.
pub async fn with_timeout<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited too long: {what}"),
    }
}

/// Looks until it is so. The condition decides, not the time: for what nothing announces, such as the
/// length of a line or a server that is coming up.
///
/// # Panics
///
/// If it takes too long.
pub async fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) {
    with_timeout(what, async {
        while !so().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
}
