//! Row 13: a request that kills every process that runs it.

use std::time::{Duration, Instant};

use lockgate_tests::{
    WebFramework,
    ledger::{JobFleet, NodeSetup, ObservedStatus},
};

use super::{long_lease_setup, start_fleet_without_worker};

/// Several leases of workers that are killed in turn, on a loaded machine.
const MAX_RUN_TIME: Duration = Duration::from_secs(90);

/// Replaces killed workers until the job has ended.
async fn outcome_with_replaced_workers(
    fleet: &mut JobFleet,
    web: usize,
    id: &str,
) -> ObservedStatus {
    let deadline = Instant::now() + MAX_RUN_TIME;
    loop {
        for node in 0..fleet.process_count() {
            if !fleet.is_running(node) {
                fleet.replace_process(node).await;
            }
        }
        let status = fleet.query_status(web, id).await;
        if status.is_final() {
            return status;
        }
        assert!(Instant::now() < deadline, "{id} does not end: {status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn poison_job_is_dead_after_max_attempts_and_queue_continues() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    // The enqueueing node sets the limit of runs.
    let setup = |framework| NodeSetup { max_put_runs: 2, ..long_lease_setup(framework) };
    let limiting_web = fleet.start_node(setup(WebFramework::Axum).without_worker()).await;
    for framework in [WebFramework::Axum, WebFramework::Actix] {
        fleet.start_node(setup(framework)).await;
    }
    let lock = fleet.hold_lock("7").await;
    let poison = fleet
        .deferrable_request(limiting_web, "7")
        .put()
        .instruct_handler("ms=50&abort=99")
        .send_accepted()
        .await;
    let post =
        fleet.deferrable_request(web, "7").instruct_handler("abort=99").send_accepted().await;
    let next = fleet.deferrable_request(web, "7").send_accepted().await;
    lock.release().await;
    let dead = outcome_with_replaced_workers(&mut fleet, web, &poison).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert!(dead.reason.contains("crashed"), "{dead:?}");
    assert_eq!(fleet.runs_of(&poison).len(), 2);
    // A POST is not repeatable.
    let dead = outcome_with_replaced_workers(&mut fleet, web, &post).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert_eq!(fleet.runs_of(&post).len(), 1);
    assert_eq!(outcome_with_replaced_workers(&mut fleet, web, &next).await.state, "done");
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!((stats.runs, stats.repeated_runs), (4, 1));
}
