//! The guarantees of local queues hold on a real server, as on the embedded store with a stopped
//! clock.

use super::server_process::ServerProcess;
use crate::lock::tests::{
    cancellation::{REAL_CLOCK_UNDO_TIMEOUT, assert_nothing_left},
    reader_batches::queued_readers_enter_before_a_later_writer,
};

#[tokio::test]
async fn queued_readers_are_not_overtaken_by_later_writer() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    queued_readers_enter_before_a_later_writer(&store).await;
    assert_nothing_left(&store, REAL_CLOCK_UNDO_TIMEOUT, "a run of readers").await;
}
