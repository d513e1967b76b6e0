//! Row 12, second half, and the options of routes, with a worker that is killed meanwhile.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::{
    WebFramework,
    ledger::{RUN_DELAY, RUN_EXPIRY},
    proxy::{FaultPoint, FaultRule},
};

use super::{BOTH_FRAMEWORKS, SECOND, long_lease_setup, start_fleet_without_worker};

/// The holder renews its lock endlessly: jobs with a deadline expire, others keep waiting.
#[tokio::test]
async fn job_behind_endless_holder_expires_at_deadline() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let _worker = fleet.start_node(long_lease_setup(framework)).await;
        let lock = fleet.hold_lock("7").await;
        let sent = Instant::now();
        let expiring = [
            fleet.deferrable_request(web, "7").expiring().send_accepted().await,
            fleet.deferrable_request(web, "7").put().expiring().send_accepted().await,
        ];
        let unlimited = fleet.deferrable_request(web, "7").send_accepted().await;
        for id in &expiring {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "expired");
        }
        let expired = sent.elapsed();
        println!("figure: expired by, of a deadline of 1500 ms: {} ms", expired.as_millis());
        assert!(expired >= RUN_EXPIRY, "{expired:?}");
        assert!(expired < RUN_EXPIRY + 6 * SECOND, "{expired:?}");
        assert_eq!(fleet.query_status(web, &unlimited).await.state, "queued");
        lock.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &unlimited).await.state, "done");
        assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
    }))
    .await;
}

/// A retry after the deadline is not made.
#[tokio::test]
async fn job_that_fails_after_deadline_is_not_retried() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let instruction = format!("fail=9&ms={}", RUN_EXPIRY.as_millis());
    let mut round_count = 0;
    loop {
        round_count += 1;
        let lock = fleet.hold_lock("7").await;
        let expiring = fleet
            .deferrable_request(web, "7")
            .put()
            .expiring()
            .instruct_handler(&instruction)
            .send_accepted()
            .await;
        let next_job = fleet.deferrable_request(web, "7").send_accepted().await;
        lock.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &expiring).await.state, "expired");
        assert_eq!(fleet.wait_for_outcome(web, &next_job).await.state, "done");
        // On a slow machine the job may expire before its run.
        if !fleet.runs_of(&expiring).is_empty() {
            break;
        }
        assert!(round_count < 5, "never begun in time");
    }
    assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, round_count + 1);
}

/// Delayed jobs never run early, even after their worker was killed. Due jobs run in the order of
/// acceptance.
#[tokio::test]
async fn delayed_jobs_run_in_order_and_not_early() {
    join_all([None, Some(FaultPoint::BeforeCall), Some(FaultPoint::AfterCall)].map(
        |fault_point| async move {
            let (mut fleet, web) = start_fleet_without_worker(WebFramework::Actix).await;
            let worker = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
            let lock = fleet.hold_lock("7").await;
            let sent = lockgate_tests::ledger::now_ns();
            let mut ids = Vec::new();
            for _ in 0..3 {
                ids.push(fleet.deferrable_request(web, "7").put().delayed().send_accepted().await);
            }
            let immediate = fleet.deferrable_request(web, "7").send_accepted().await;
            lock.release().await;
            assert_eq!(fleet.wait_for_outcome(web, &immediate).await.state, "done");
            if let Some(fault_point) = fault_point {
                let rule = FaultRule::new("poll_due_locks_and_jobs", fault_point)
                    .with_action(fleet.kill_callback(worker));
                let mut rule_match = fleet.proxy(worker).add_rule(rule);
                // On a slow machine the other jobs may have run before the rule was added.
                let lock = fleet.hold_lock("7").await;
                ids.push(fleet.deferrable_request(web, "7").put().delayed().send_accepted().await);
                lock.release().await;
                rule_match.wait_for_match().await;
                let _other = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
            }
            let mut last_start = 0;
            for id in &ids {
                assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
                // The first run counts: the job runs again if its worker was killed before the
                // settlement.
                let run = &fleet.runs_of(id)[0];
                let after = Duration::from_nanos(run.started_at - sent);
                assert!(after >= RUN_DELAY, "{after:?}");
                assert!(run.started_at > last_start, "in the order of acceptance");
                last_start = run.started_at;
            }
            fleet.finish_and_check(web).await.assert_no_violations();
        },
    ))
    .await;
}

/// Later jobs overtake a job that waits for its retry. The retry survives the death of its worker.
#[tokio::test]
async fn overtaken_retry_survives_worker_crash() {
    join_all([FaultPoint::BeforeCall, FaultPoint::AfterCall].map(|fault_point| async move {
        let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
        let worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
        let lock = fleet.hold_lock("7").await;
        let first = fleet
            .deferrable_request(web, "7")
            .put()
            .skip_on_failure()
            .instruct_handler("fail=1")
            .send_accepted()
            .await;
        let overtaking = fleet.deferrable_request(web, "7").put().send_accepted().await;
        let rule = FaultRule::new("settle_job_and_claim_next", fault_point)
            .with_argument(&first)
            .with_action(fleet.kill_callback(worker));
        let mut rule_match = fleet.proxy(worker).add_rule(rule);
        lock.release().await;
        rule_match.wait_for_match().await;
        let _other = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
        for id in [&first, &overtaking] {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
        }
        let attempts: Vec<_> = fleet.runs_of(&first).iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 2]);
        fleet.finish_and_check(web).await.assert_no_violations();
    }))
    .await;
}
