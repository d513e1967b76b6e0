//! Rows 1 and 2, for workers with shared limits: SIGKILL at every boundary of the scripts that
//! count them.

use futures_util::{StreamExt as _, stream::iter};
use lockgate_tests::{
    WebFramework,
    ledger::NodeSetup,
    proxy::{FaultPoint, FaultRule},
};

use super::{BOTH_FRAMEWORKS, long_lease_setup, start_fleet_without_worker};

use FaultPoint::{AfterCall, BeforeCall};

/// A call of a worker, by what one of its arguments begins with.
struct LimitCall {
    script: &'static str,
    argument_prefix: &'static str,
    /// Which of such calls, from 0.
    skipped_calls: usize,
    /// Whether the first run has ended by then, and its end is not in the store.
    is_between_runs: bool,
}

const fn limit_call(script: &'static str, start: &'static str, number: usize) -> LimitCall {
    LimitCall { script, argument_prefix: start, skipped_calls: number, is_between_runs: false }
}

/// In the order in which a worker makes them, for a row of two runs that take longer than the rate's pause.
const LIMIT_CALLS: [LimitCall; 5] = [
    limit_call("acquire", "ap ", 0),
    limit_call("charge_batch", "", 0),
    // For the second run, ahead of the call that settles the first one and claims it.
    LimitCall { is_between_runs: true, ..limit_call("charge_batch", "", 1) },
    // What was charged for a third one, which there is not.
    limit_call("settle_charge", "", 0),
    limit_call("release", "rp", 0),
];

#[tokio::test]
async fn worker_killed_at_every_limit_call_loses_no_job() {
    let cases = LIMIT_CALLS.iter().flat_map(|call| {
        [BeforeCall, AfterCall]
            .into_iter()
            .flat_map(move |moment| [(call, moment, true), (call, moment, false)])
    });
    let cases = iter(cases.enumerate());
    // Not all at once: they would be the load that ends their leases.
    let cases = cases.map(|(n, (call, moment, put))| {
        check_killed_worker(BOTH_FRAMEWORKS[n / 2 % 2], call, moment, put)
    });
    cases.buffer_unordered(5).collect::<()>().await;
}

/// What was charged is spent, which costs a tenth of a second; a permit comes back with its lease, and no job is lost with
/// either.
async fn check_killed_worker(
    framework: WebFramework,
    call: &LimitCall,
    moment: FaultPoint,
    put: bool,
) {
    let LimitCall {
        script,
        argument_prefix: start,
        skipped_calls: number,
        is_between_runs: between,
    } = *call;
    let what = format!("{framework:?}, {moment:?} {script} {number}, put: {put}");
    let limited =
        |framework| NodeSetup { has_shared_run_limits: true, ..long_lease_setup(framework) };
    let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
    let victim = fleet.start_node(limited(framework)).await;
    let lock = fleet.hold_lock("7").await;
    let request = || {
        let request = fleet.deferrable_request(web, "7").instruct_handler("ms=250");
        if put { request.put() } else { request }
    };
    let (first, second_store) = (request().send_accepted().await, request().send_accepted().await);
    let rule = FaultRule::new(script, moment).with_argument_prefix(start).skip_calls(number);
    let mut struck = fleet.proxy(victim).add_rule(rule.with_action(fleet.kill_callback(victim)));
    lock.release().await;
    struck.wait_for_match().await;
    let _other = fleet.start_node(limited(framework.other())).await;
    let (runs, state) = match (between, put) {
        (true, true) => (2, "done"),
        (true, false) => (1, "dead"),
        (false, _) => (1, "done"),
    };
    let seen = fleet.wait_for_outcome(web, &first).await;
    assert_eq!(seen.state, state, "{what}: {seen:?}");
    assert_eq!(fleet.runs_of(&first).len(), runs, "{what}");
    assert_eq!(fleet.wait_for_outcome(web, &second_store).await.state, "done", "{what}");
    assert_eq!(fleet.runs_of(&second_store).len(), 1, "{what}");
    let verdict = fleet.finish_and_check(web).await;
    assert!(verdict.violations.is_empty(), "{what}: {verdict}");
    verdict.assert_no_violations();
}
