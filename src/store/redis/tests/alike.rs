//! What the local lines of locks promise, shown on the embedded store with its clock stopped, holds on a real server.

use super::server::Server;
use crate::lock::tests::{
    cancel::{LATE, nothing_is_left},
    crowds::all_readers_of_a_run_come_in,
    resting::are_had_under_a_record,
};

#[tokio::test]
async fn readers_beyond_those_who_come_in_at_once_are_not_passed_by_a_later_writer() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    all_readers_of_a_run_come_in(&store).await;
    nothing_is_left(&store, LATE, "a run of readers").await;
}

/// What goes back and what is asked go in this order, or it would be busy.
#[tokio::test]
async fn a_lock_that_rests_is_free_for_requests_with_a_record() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    are_had_under_a_record(&store).await;
    nothing_is_left(&store, LATE, "a lock that rested").await;
}
