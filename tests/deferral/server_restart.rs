//! Row 5: the server is killed, and restarts with or without its append-only file.

use std::{path::Path, time::Instant};

use lockgate_tests::{
    RedisServer, WebFramework, eventually,
    ledger::{JobFleet, SendOutcome},
};

use super::{FAULTS_BINARY, SECOND, long_lease_setup};

/// All accepted jobs run. Written data of a killed process remain in the kernel, so an append-only
/// file with `everysec` is complete; a machine failure would lose a second.
#[tokio::test]
async fn killed_server_with_append_log_keeps_accepted_jobs() {
    let mut fleet = JobFleet::with_topology(
        Path::new(FAULTS_BINARY),
        RedisServer::start_with_append_log("everysec").await,
    )
    .await;
    for framework in super::BOTH_FRAMEWORKS {
        fleet.start_node(long_lease_setup(framework)).await;
    }
    let held = fleet.hold_lock("7").await;
    for n in 0..20 {
        let request = fleet.deferrable_request(n % 2, "7");
        (if n % 3 == 0 { request.put() } else { request }).send_accepted().await;
    }
    // The processes retry within their call timeout of 5 s.
    fleet.record_disturbance_for(None, 20 * SECOND);
    fleet.server.kill();
    let killed = Instant::now();
    fleet.server.restart().await;
    held.release().await;
    let (web, direct_request) = (0, fleet.deferrable_request(0, "8").put());
    direct_request.send().await;
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    println!("figure: all done after {} ms", killed.elapsed().as_millis());
    assert!(stats.accepted >= 20, "{stats:?}");
}

/// Jobs of a server without persistence are lost, and their status is 404. New requests are
/// accepted and run.
#[tokio::test]
async fn restarted_server_without_data_accepts_new_jobs() {
    let mut fleet = JobFleet::new(Path::new(FAULTS_BINARY)).await;
    fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let held = fleet.hold_lock("7").await;
    let lost_job = fleet.deferrable_request(0, "7").send_accepted().await;
    fleet.server.kill();
    fleet.server.restart().await;
    drop(held);
    eventually("the status to be available", async || {
        fleet.query_status(0, &lost_job).await.state.is_empty()
    })
    .await;
    let held = fleet.hold_lock("7").await;
    let mut outcome = SendOutcome::NoResponse;
    eventually("new requests to be accepted", async || {
        outcome = fleet.deferrable_request(0, "7").put().send().await;
        matches!(outcome, SendOutcome::Accepted(_))
    })
    .await;
    let SendOutcome::Accepted(id) = outcome else { panic!("{outcome:?}") };
    held.release().await;
    assert_eq!(fleet.wait_for_outcome(0, &id).await.state, "done");
    fleet.close_unchecked();
}
