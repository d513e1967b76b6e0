//! Row 13: a request that kills every process that runs it.

use std::time::{Duration, Instant};

use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, NodeSetup, ObservedStatus},
};

use super::{long_lease_setup, start_fleet_without_worker};

/// Several leases of workers that die one after the other, on a machine that has other things to do.
const MAX_RUN_TIME: Duration = Duration::from_secs(90);

/// Keeps so many workers alive until the job has ended.
async fn outcome_with_replaced_workers(
    fleet: &mut JobFleet,
    web: usize,
    id: &str,
) -> ObservedStatus {
    let until = Instant::now() + MAX_RUN_TIME;
    loop {
        for node in 0..fleet.process_count() {
            if !fleet.is_running(node) {
                fleet.replace_process(node).await;
            }
        }
        let seen = fleet.query_status(web, id).await;
        if seen.is_final() {
            return seen;
        }
        assert!(Instant::now() < until, "{id} does not end: {seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn poison_job_is_dead_after_max_attempts_and_queue_continues() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    // The web node says how often it may run.
    let setup = |framework| NodeSetup { max_put_runs: 2, ..long_lease_setup(framework) };
    let web_two = fleet.start_node(setup(WebFramework::Axum).without_worker()).await;
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        fleet.start_node(setup(framework)).await;
    }
    let lock = fleet.hold_lock("7").await;
    let poison = fleet
        .deferrable_request(web_two, "7")
        .put()
        .instruct_handler("ms=50&abort=99")
        .send_accepted()
        .await;
    let once =
        fleet.deferrable_request(web, "7").instruct_handler("abort=99").send_accepted().await;
    let next = fleet.deferrable_request(web, "7").send_accepted().await;
    lock.release().await;
    let dead = outcome_with_replaced_workers(&mut fleet, web, &poison).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert!(dead.reason.contains("crashed"), "{dead:?}");
    assert_eq!(fleet.runs_of(&poison).len(), 2);
    // Its method does not allow it to run again.
    let dead = outcome_with_replaced_workers(&mut fleet, web, &once).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert_eq!(fleet.runs_of(&once).len(), 1);
    assert_eq!(outcome_with_replaced_workers(&mut fleet, web, &next).await.state, "done");
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!((looked.runs, looked.repeated_runs), (4, 1));
}
