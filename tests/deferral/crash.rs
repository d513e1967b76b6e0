//! Rows 1 and 2: SIGKILL at every boundary of every script.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, future::join_all, stream::iter};
use lockgate_tests::{
    WebFramework, eventually,
    ledger::{DeferrableRequest, JobFleet, SendOutcome},
    proxy::{FaultPoint, FaultRule},
    with_timeout,
};

use super::{BOTH_FRAMEWORKS, long_lease_setup, start_fleet_without_worker};

/// Kind of the first request of a case, the fault, and the expected result.
struct CrashCase {
    script: &'static str,
    point: FaultPoint,
    is_put: bool,
    /// Number of runs and final state of the first request.
    expected_runs: usize,
    expected_state: &'static str,
}

const fn crash_case(
    script: &'static str,
    fault_point: FaultPoint,
    put: bool,
    runs: usize,
    state: &'static str,
) -> CrashCase {
    CrashCase {
        script,
        point: fault_point,
        is_put: put,
        expected_runs: runs,
        expected_state: state,
    }
}

use FaultPoint::{AfterCall, BeforeCall};

/// A worker that is killed around a script leaves the job as before the call or as after it.
const WORKER_CASES: [CrashCase; 10] = [
    crash_case("claim_lock_and_job", BeforeCall, true, 1, "done"),
    crash_case("claim_lock_and_job", BeforeCall, false, 1, "done"),
    // The attempt is counted but never started; the store cannot know that.
    crash_case("claim_lock_and_job", AfterCall, true, 1, "done"),
    crash_case("claim_lock_and_job", AfterCall, false, 0, "dead"),
    crash_case("settle_job_and_claim_next", BeforeCall, true, 2, "done"),
    crash_case("settle_job_and_claim_next", BeforeCall, false, 1, "dead"),
    crash_case("settle_job_and_claim_next", AfterCall, true, 1, "done"),
    crash_case("settle_job_and_claim_next", AfterCall, false, 1, "done"),
    // In the middle of a run.
    crash_case("renew", BeforeCall, true, 2, "done"),
    crash_case("renew", AfterCall, false, 1, "dead"),
];

/// Scripts of an idle worker; the next worker takes over their work.
const IDLE_WORKER_SCRIPTS: [&str; 2] =
    ["poll_due_locks_and_jobs", "heartbeat_and_shard_assignment"];

#[tokio::test]
async fn worker_killed_at_every_script_loses_no_job() {
    let idle = IDLE_WORKER_SCRIPTS.into_iter().flat_map(|script| {
        [BeforeCall, AfterCall].map(|at| crash_case(script, at, false, 1, "done"))
    });
    let cases = WORKER_CASES.into_iter().chain(idle).enumerate();
    // Limited concurrency, so that the load does not let leases expire.
    let cases = iter(cases).map(|(n, case)| check_killed_worker(BOTH_FRAMEWORKS[n % 2], case));
    cases.buffer_unordered(5).collect::<()>().await;
}

async fn check_killed_worker(framework: WebFramework, case: CrashCase) {
    let CrashCase {
        script,
        point: fault_point,
        is_put: put,
        expected_runs: runs,
        expected_state: state,
    } = case;
    let context = format!("{framework:?}, {fault_point:?} {script}, put: {put}");
    let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
    let victim = fleet.start_node(long_lease_setup(framework)).await;
    let lock = fleet.hold_lock("7").await;
    // The lease is renewed after a third of it: the run must still be active then, even with a late
    // timer.
    let first = fleet.deferrable_request(web, "7").instruct_handler(if script == "renew" {
        "ms=7000"
    } else {
        "ms=600"
    });
    let first = if put { first.put() } else { first }.send_accepted().await;
    // The killed worker may have started this job in the call that settles the first one.
    let second = fleet.deferrable_request(web, "7").put().send_accepted().await;
    // This job waits for its retry without a worker; only the due index leads to it.
    let third =
        fleet.deferrable_request(web, "7").put().instruct_handler("fail=1").send_accepted().await;
    let rule = FaultRule::new(script, fault_point).with_action(fleet.kill_callback(victim));
    let proxy = fleet.proxy(victim);
    // Scripts of an idle worker are called by timers, also during a run. The kill must not hit the
    // first run.
    match script {
        "poll_due_locks_and_jobs" => {
            lock.release().await;
            for id in [&first, &second] {
                assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done", "{context}");
            }
            let mut rule_match = proxy.add_rule(rule);
            // The third job may have run before the rule was added.
            enqueue_delayed_job(&fleet, web).await;
            rule_match.wait_for_match().await;
        }
        "heartbeat_and_shard_assignment" => {
            proxy.add_rule(rule).wait_for_match().await;
            lock.release().await;
        }
        _ => {
            let mut rule_match = proxy.add_rule(rule);
            lock.release().await;
            rule_match.wait_for_match().await;
        }
    }
    let killed = Instant::now();
    // Its lease outlasts the stalls of a loaded machine, so its runs do not repeat.
    let _other = fleet.start_node(long_lease_setup(framework.other())).await;
    let outcome = fleet.wait_for_outcome(web, &first).await;
    assert_eq!(outcome.state, state, "{context}: {outcome:?}");
    assert_eq!(fleet.runs_of(&first).len(), runs, "{context}");
    assert_eq!(fleet.wait_for_outcome(web, &second).await.state, "done", "{context}");
    assert_eq!(fleet.wait_for_outcome(web, &third).await.state, "done", "{context}");
    println!("figure: longest from the kill to the end of all {} ms", killed.elapsed().as_millis());
    let report = fleet.finish_and_check(web).await;
    assert!(report.violations.is_empty(), "{context}: {report}");
    report.assert_no_violations();
}

/// Enqueues a delayed job.
async fn enqueue_delayed_job(fleet: &JobFleet, web: usize) {
    let lock = fleet.hold_lock("7").await;
    let _ = fleet.deferrable_request(web, "7").put().delayed().send_accepted().await;
    lock.release().await;
}

/// The request was stored or not. A retry with its key creates no second job.
#[tokio::test]
async fn web_node_killed_during_enqueue_stores_one_job() {
    join_all(BOTH_FRAMEWORKS.map(|framework| check_killed_enqueue(framework, AfterCall, 1))).await;
    join_all(BOTH_FRAMEWORKS.map(|framework| check_killed_enqueue(framework, BeforeCall, 0))).await;
}

async fn check_killed_enqueue(
    framework: WebFramework,
    fault_point: FaultPoint,
    stored_count: usize,
) {
    let (mut fleet, web) = start_fleet_without_worker(framework).await;
    let other = fleet.start_node(long_lease_setup(framework.other())).await;
    let lock = fleet.hold_lock("7").await;
    let rule = FaultRule::new("enqueue_jobs", fault_point).with_action(fleet.kill_callback(web));
    let mut rule_match = fleet.proxy(web).add_rule(rule);
    let request = || fleet.deferrable_request(web, "7").idempotency_key("one");
    assert_eq!(request().send().await, SendOutcome::NoResponse);
    rule_match.wait_for_match().await;
    let ids = stored_job_ids(&fleet).await;
    assert_eq!(ids.len(), stored_count, "{fault_point:?}: {ids:?}");
    let first = fleet.deferrable_request(other, "7").idempotency_key("one").send_accepted().await;
    let retried = fleet.deferrable_request(other, "7").idempotency_key("one").send_accepted().await;
    assert_eq!(first, retried);
    assert!(ids.iter().all(|id| *id == first), "{ids:?} {first}");
    lock.release().await;
    assert_eq!(fleet.wait_for_outcome(other, &first).await.state, "done");
    assert_eq!(fleet.finish_and_check(other).await.assert_no_violations().runs, 1);
}

/// Returns the ids of all jobs in the store.
async fn stored_job_ids(fleet: &JobFleet) -> Vec<String> {
    let keys = fleet.send_server_command(&["KEYS", "*:j:*"]).await.expect("the server answers");
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of keys");
    keys.iter().filter_map(|key| Some(key.rsplit_once(":j:")?.1.to_owned())).collect()
}

/// Row 18 too: the job is either cancelled or runs.
#[tokio::test]
async fn web_node_killed_during_cancel_leaves_one_outcome() {
    join_all([BeforeCall, AfterCall].map(|fault_point| async move {
        let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
        let other = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
        let lock = fleet.hold_lock("7").await;
        let id = fleet.deferrable_request(web, "7").send_accepted().await;
        let rule = FaultRule::new("cancel_job", fault_point).with_action(fleet.kill_callback(web));
        let mut rule_match = fleet.proxy(web).add_rule(rule);
        assert_eq!(fleet.cancel_job(web, &id).await, 0);
        rule_match.wait_for_match().await;
        lock.release().await;
        let state = if fault_point == AfterCall { "cancelled" } else { "done" };
        assert_eq!(fleet.wait_for_outcome(other, &id).await.state, state);
        assert_eq!(
            fleet.finish_and_check(other).await.assert_no_violations().runs,
            usize::from(fault_point == BeforeCall)
        );
    }))
    .await;
}

/// The holder is killed around its release call. The job runs when the lease has ended.
#[tokio::test]
async fn holder_killed_around_release_frees_lock_after_lease() {
    join_all([BeforeCall, AfterCall].map(|fault_point| async move {
        let (mut fleet, web) = start_fleet_without_worker(WebFramework::Actix).await;
        let holder = fleet.start_node(long_lease_setup(WebFramework::Axum).without_worker()).await;
        let _worker = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
        let rule = FaultRule::new("release", fault_point).with_action(fleet.kill_callback(holder));
        let mut rule_match = fleet.proxy(holder).add_rule(rule);
        let ship =
            fleet.deferrable_request(holder, "7").waiting_if_busy().instruct_handler("ms=4000");
        let ship = tokio::spawn(ship.send());
        eventually("the request to run", async || !fleet.runs().is_empty()).await;
        let id = fleet.deferrable_request(web, "7").send_accepted().await;
        rule_match.wait_for_match().await;
        let _ = ship.await.expect("the client does not panic");
        assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
        assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
    }))
    .await;
}

/// A keyed direct run is killed in the middle, and the client retries at another process.
#[tokio::test]
async fn web_node_killed_in_direct_run_is_not_repeated() {
    join_all(BOTH_FRAMEWORKS.map(|framework| check_killed_direct_run(framework, false))).await;
    join_all(BOTH_FRAMEWORKS.map(|framework| check_killed_direct_run(framework, true))).await;
}

async fn check_killed_direct_run(framework: WebFramework, put: bool) {
    let (mut fleet, victim) = start_fleet_without_worker(framework).await;
    let other = fleet.start_node(long_lease_setup(framework.other())).await;
    let request = |node, ms: u32| {
        let request = keyed_direct_request(&fleet, node).instruct_handler(&format!("ms={ms}"));
        if put { request.put() } else { request }
    };
    let first = tokio::spawn(request(victim, 60_000).send());
    eventually("it to run", async || fleet.runs().len() == 1).await;
    let retry = || request(other, 60_000).send();
    // The retry has the same target and body.
    let SendOutcome::Refused(409, _) = retry().await else { panic!("it runs") };
    fleet.kill_callback(victim)();
    assert_eq!(first.await.expect("the client does not panic"), SendOutcome::NoResponse);
    if put {
        // The idempotency record may expire shortly before the lock. The retry is deferred then.
        match retry_while_running(async || request(other, 0).send().await).await {
            SendOutcome::RanDirectly(200, _) => {}
            SendOutcome::Accepted(id) => {
                assert_eq!(fleet.wait_for_outcome(other, &id).await.state, "done");
            }
            outcome => panic!("{outcome:?}"),
        }
        assert_eq!(fleet.runs().len(), 2);
        return fleet.close_unchecked();
    }
    let SendOutcome::Accepted(id) = retry_while_running(retry).await else {
        panic!("a POST is not run again")
    };
    let status = fleet.query_status(other, &id).await;
    assert_eq!((status.state.as_str(), status.reason.as_str()), ("dead", "crashed, may have run"));
    assert_eq!(retry().await, SendOutcome::Accepted(id), "for as long as its record lives");
    assert_eq!(fleet.runs().len(), 1);
    fleet.close_unchecked();
}

/// Repeats a request until its response is not 409 (a run with this key is active).
async fn retry_while_running(request: impl AsyncFn() -> SendOutcome) -> SendOutcome {
    with_timeout("the run of a killed process to lapse", async {
        loop {
            match request().await {
                SendOutcome::Refused(409, _) => tokio::time::sleep(Duration::from_millis(5)).await,
                outcome => break outcome,
            }
        }
    })
    .await
}

fn keyed_direct_request(fleet: &JobFleet, node: usize) -> DeferrableRequest {
    fleet.deferrable_request(node, "7").idempotent_direct().idempotency_key("one")
}
