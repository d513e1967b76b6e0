//! Row 5: the server is killed, and restarts with or without its append-only file.

use std::{path::Path, time::Instant};

use lockgate_tests::{
    RedisServer, WebFramework, eventually,
    ledger::{JobFleet, SendOutcome},
};

use super::{FAULTS_BINARY, SECOND, long_lease_setup};

/// All that was accepted runs. A process that is killed leaves to its kernel what it has written, so also a log
/// that is put on disk once a second has all of it; what a machine that dies loses is a second.
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
        let later = fleet.deferrable_request(n % 2, "7");
        (if n % 3 == 0 { later.put() } else { later }).send_accepted().await;
    }
    // The processes have a deadline of 5 s, and wait through it.
    fleet.record_disturbance_for(None, 20 * SECOND);
    fleet.server.kill();
    let killed = Instant::now();
    fleet.server.restart().await;
    held.release().await;
    let (web, shown) = (0, fleet.deferrable_request(0, "8").put());
    shown.send().await;
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    println!("figure: all done after {} ms", killed.elapsed().as_millis());
    assert!(looked.accepted >= 20, "{looked:?}");
}

/// What a server without a log forgets is gone, and says so; new requests are taken and run.
#[tokio::test]
async fn restarted_server_without_data_accepts_new_jobs() {
    let mut fleet = JobFleet::new(Path::new(FAULTS_BINARY)).await;
    fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let held = fleet.hold_lock("7").await;
    let gone = fleet.deferrable_request(0, "7").send_accepted().await;
    fleet.server.kill();
    fleet.server.restart().await;
    drop(held);
    eventually("the status to be told", async || {
        fleet.query_status(0, &gone).await.state.is_empty()
    })
    .await;
    let held = fleet.hold_lock("7").await;
    let mut told = SendOutcome::NoResponse;
    eventually("new requests to be taken", async || {
        told = fleet.deferrable_request(0, "7").put().send().await;
        matches!(told, SendOutcome::Accepted(_))
    })
    .await;
    let SendOutcome::Accepted(id) = told else { panic!("{told:?}") };
    held.release().await;
    assert_eq!(fleet.wait_for_outcome(0, &id).await.state, "done");
    fleet.close_unchecked();
}
