//! What the local lines of locks promise, shown on the embedded store with its clock stopped, holds on a real server.

use super::server::Server;
use crate::lock::tests::{
    cancel::{LATE, nothing_is_left},
    crowds::all_readers_of_a_run_come_in,
};

#[tokio::test]
async fn readers_beyond_those_who_come_in_at_once_are_not_passed_by_a_later_writer() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    all_readers_of_a_run_come_in(&store).await;
    nothing_is_left(&store, LATE, "a run of readers").await;
}
