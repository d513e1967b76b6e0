//! Row 3: a worker that is paused beyond its lease, and then continues.

use futures_util::future::join;
use lockgate_tests::{
    WebFramework,
    ledger::SendOutcome,
    proxy::{FaultPoint, FaultRule},
};

use super::{SECOND, long_lease_setup, start_fleet_without_worker};

/// Others acquire the lock meanwhile; the resumed worker's operations have no effect.
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
    // After the lease ends there is no other worker, so direct requests overtake the jobs.
    let paused = std::time::Instant::now();
    let direct_outcome = loop {
        match fleet.deferrable_request(web, "7").refused_if_busy().send().await {
            SendOutcome::Refused(409, _) => tokio::time::sleep(SECOND / 20).await,
            outcome => break outcome,
        }
        assert!(paused.elapsed() < 30 * SECOND, "the lease does not end");
    };
    assert!(matches!(direct_outcome, SendOutcome::RanDirectly(200, _)), "{direct_outcome:?}");
    let freed_after = paused.elapsed();
    println!("figure: resource free after its worker is stopped {} ms", freed_after.as_millis());
    fleet.resume(worker, paused.elapsed());
    let done = fleet.wait_for_outcome(web, &put).await;
    assert_eq!(done.state, "done", "{done:?}");
    let runs = fleet.runs_of(&put);
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2]);
    let stored = done.response.expect("it is done").1;
    assert!(stored.starts_with(&format!("{put}-2-")), "{stored}");
    assert_eq!(fleet.wait_for_outcome(web, &post).await.state, "done");
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!((stats.runs, stats.direct_runs), (3, 1));
}

/// A settlement that was in flight at the pause arrives after another worker claimed the job.
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
    let mut rule_match = fleet
        .proxy(victim)
        .add_rule(FaultRule::new("settle_job_and_claim_next", FaultPoint::BeforeCall));
    lock.release().await;
    let call = rule_match.wait_for_match().await;
    fleet.pause(victim);
    let paused = std::time::Instant::now();
    fleet.record_disturbance_for(Some(victim), 60 * SECOND);
    let _other = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let state = if put { "done" } else { "dead" };
    let final_status = fleet.wait_for_outcome(web, &id).await;
    assert_eq!(final_status.state, state, "{final_status:?}");
    let answer = fleet.send_server_command(&lockgate_tests::proxy::command_args(&call)).await;
    assert!(format!("{answer:?}").contains("lost"), "{answer:?}");
    // A heartbeat follows a timer, so the worker has resumed and processed its outstanding work.
    let mut heartbeat = fleet
        .proxy(victim)
        .add_rule(FaultRule::new("heartbeat_and_shard_assignment", FaultPoint::AfterCall));
    fleet.resume(victim, paused.elapsed());
    heartbeat.wait_for_match().await;
    assert_eq!(fleet.query_status(web, &id).await, final_status, "nothing of it counts");
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!(stats.runs, if put { 2 } else { 1 });
}
