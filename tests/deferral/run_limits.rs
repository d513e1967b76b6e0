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

/// Worker call, identified by its script and the start of an argument.
struct LimitCall {
    script: &'static str,
    argument_prefix: &'static str,
    /// Number of matching calls before it.
    skipped_calls: usize,
    /// True if the first run has ended by then but is not settled.
    is_between_runs: bool,
}

const fn limit_call(
    script: &'static str,
    argument_prefix: &'static str,
    skipped_calls: usize,
) -> LimitCall {
    LimitCall { script, argument_prefix, skipped_calls, is_between_runs: false }
}

/// In the order of a worker's calls, for two runs that each exceed the interval of the rate.
const LIMIT_CALLS: [LimitCall; 5] = [
    limit_call("acquire", "ap ", 0),
    limit_call("charge_batch", "", 0),
    // For the second run, before the call that settles the first one and claims it.
    LimitCall { is_between_runs: true, ..limit_call("charge_batch", "", 1) },
    // Refund for a third run that does not exist.
    limit_call("settle_charge", "", 0),
    limit_call("release", "rp", 0),
];

#[tokio::test]
async fn worker_killed_at_every_limit_call_loses_no_job() {
    let cases = LIMIT_CALLS.iter().flat_map(|call| {
        [BeforeCall, AfterCall]
            .into_iter()
            .flat_map(move |fault_point| [(call, fault_point, true), (call, fault_point, false)])
    });
    let cases = iter(cases.enumerate());
    // Limited concurrency, so that the load does not let leases expire.
    let cases = cases.map(|(n, (call, fault_point, put))| {
        check_killed_worker(BOTH_FRAMEWORKS[n / 2 % 2], call, fault_point, put)
    });
    cases.buffer_unordered(5).collect::<()>().await;
}

/// A charge of a killed worker is spent, which costs 100 ms. A permit returns when its lease ends.
/// No job is lost in either case.
async fn check_killed_worker(
    framework: WebFramework,
    call: &LimitCall,
    fault_point: FaultPoint,
    put: bool,
) {
    let LimitCall { script, argument_prefix, skipped_calls, is_between_runs } = *call;
    let context = format!("{framework:?}, {fault_point:?} {script} {skipped_calls}, put: {put}");
    let limited_setup =
        |framework| NodeSetup { has_shared_run_limits: true, ..long_lease_setup(framework) };
    let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
    let victim = fleet.start_node(limited_setup(framework)).await;
    let lock = fleet.hold_lock("7").await;
    let request = || {
        let request = fleet.deferrable_request(web, "7").instruct_handler("ms=250");
        if put { request.put() } else { request }
    };
    let (first, second) = (request().send_accepted().await, request().send_accepted().await);
    let rule = FaultRule::new(script, fault_point)
        .with_argument_prefix(argument_prefix)
        .skip_calls(skipped_calls);
    let mut rule_match =
        fleet.proxy(victim).add_rule(rule.with_action(fleet.kill_callback(victim)));
    lock.release().await;
    rule_match.wait_for_match().await;
    let _other = fleet.start_node(limited_setup(framework.other())).await;
    let (runs, state) = match (is_between_runs, put) {
        (true, true) => (2, "done"),
        (true, false) => (1, "dead"),
        (false, _) => (1, "done"),
    };
    let outcome = fleet.wait_for_outcome(web, &first).await;
    assert_eq!(outcome.state, state, "{context}: {outcome:?}");
    assert_eq!(fleet.runs_of(&first).len(), runs, "{context}");
    assert_eq!(fleet.wait_for_outcome(web, &second).await.state, "done", "{context}");
    assert_eq!(fleet.runs_of(&second).len(), 1, "{context}");
    let report = fleet.finish_and_check(web).await;
    assert!(report.violations.is_empty(), "{context}: {report}");
    report.assert_no_violations();
}
