//! Row 3: a worker that is paused beyond its lease, and then continues.

use futures_util::future::join;
use lockgate_tests::{
    WebFramework,
    ledger::SendOutcome,
    proxy::{FaultPoint, FaultRule},
};

use super::{SECOND, long_lease_setup, start_fleet_without_worker};

/// Others have the lock meanwhile; what it does when it wakes counts for nothing.
#[tokio::test]
async fn worker_paused_past_its_lease_changes_nothing() {
    join(check_pause_during_run(WebFramework::Axum), check_pause_during_run(WebFramework::Actix))
        .await;
}

async fn check_pause_during_run(framework: WebFramework) {
    let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
    let worker = fleet.start_node(long_lease_setup(framework)).await;
    let lock = fleet.hold_lock("7").await;
    let put =
        fleet.deferrable_request(web, "7").put().instruct_handler("ms=6000").send_accepted().await;
    let post = fleet.deferrable_request(web, "7").send_accepted().await;
    lock.release().await;
    fleet.wait_for_run_start(&put).await;
    fleet.pause(worker);
    // Its lease ends, nobody takes the jobs, so they are passed over.
    let paused = std::time::Instant::now();
    let ran = loop {
        match fleet.deferrable_request(web, "7").refused_if_busy().send().await {
            SendOutcome::Refused(409, _) => tokio::time::sleep(SECOND / 20).await,
            other => break other,
        }
        assert!(paused.elapsed() < 30 * SECOND, "the lease does not end");
    };
    assert!(matches!(ran, SendOutcome::RanDirectly(200, _)), "{ran:?}");
    let free = paused.elapsed();
    println!("figure: resource free after its worker is stopped {} ms", free.as_millis());
    fleet.resume(worker, paused.elapsed());
    let done = fleet.wait_for_outcome(web, &put).await;
    assert_eq!(done.state, "done", "{done:?}");
    let runs = fleet.runs_of(&put);
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2]);
    let stored = done.response.expect("it is done").1;
    assert!(stored.starts_with(&format!("{put}-2-")), "{stored}");
    assert_eq!(fleet.wait_for_outcome(web, &post).await.state, "done");
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!((looked.runs, looked.direct_runs), (3, 1));
}

/// Its settlement was on its way when it was stopped; it arrives when another worker has the job.
#[tokio::test]
async fn settlement_after_lease_end_is_rejected() {
    join(check_late_settlement(true), check_late_settlement(false)).await;
}

async fn check_late_settlement(put: bool) {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let victim = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let lock = fleet.hold_lock("7").await;
    let request = fleet.deferrable_request(web, "7");
    let id = if put { request.put() } else { request }.send_accepted().await;
    let mut struck = fleet
        .proxy(victim)
        .add_rule(FaultRule::new("settle_job_and_claim_next", FaultPoint::BeforeCall));
    lock.release().await;
    let call = struck.wait_for_match().await;
    fleet.pause(victim);
    let paused = std::time::Instant::now();
    fleet.record_disturbance_for(Some(victim), 60 * SECOND);
    let _other = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let state = if put { "done" } else { "dead" };
    let before = fleet.wait_for_outcome(web, &id).await;
    assert_eq!(before.state, state, "{before:?}");
    let answer = fleet.send_server_command(&lockgate_tests::proxy::command_args(&call)).await;
    assert!(format!("{answer:?}").contains("lost"), "{answer:?}");
    // A sign of life comes by the clock: it goes on, with what it had in its hands.
    let mut beats = fleet
        .proxy(victim)
        .add_rule(FaultRule::new("worker_heartbeat_and_shards", FaultPoint::AfterCall));
    fleet.resume(victim, paused.elapsed());
    beats.wait_for_match().await;
    assert_eq!(fleet.query_status(web, &id).await, before, "nothing of it counts");
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!(looked.runs, if put { 2 } else { 1 });
}
