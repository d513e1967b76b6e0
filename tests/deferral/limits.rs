//! Rows 1 and 2, for workers that share limits: SIGKILL at every boundary of the scripts that keep them.

use futures_util::{StreamExt as _, stream::iter};
use lockgate_tests::{
    Framework,
    ledger::Setup,
    proxy::{Moment, Rule},
};

use super::{BOTH, steady, with_web};

use Moment::{After, Before};

/// A call of a worker, by what one of its arguments begins with.
struct Call {
    script: &'static str,
    start: &'static str,
    /// Which of such calls, from 0.
    number: usize,
    /// Whether the first run has ended by then, and its end is not in the store.
    between: bool,
}

const fn call(script: &'static str, start: &'static str, number: usize) -> Call {
    Call { script, start, number, between: false }
}

/// In the order in which a worker makes them, for a row of two runs that take longer than the rate's pause.
const CALLS: [Call; 5] = [
    call("acquire", "ap ", 0),
    call("charge_batch", "", 0),
    // For the second run, ahead of the call that settles the first one and claims it.
    Call { between: true, ..call("charge_batch", "", 1) },
    // What was charged for a third one, which there is not.
    call("settle_charge", "", 0),
    call("release", "rp", 0),
];

#[tokio::test]
async fn a_worker_is_killed_at_every_call_about_its_limits() {
    let cases = CALLS.iter().flat_map(|call| {
        [Before, After]
            .into_iter()
            .flat_map(move |moment| [(call, moment, true), (call, moment, false)])
    });
    let cases = iter(cases.enumerate());
    // Not all at once: they would be the load that ends their leases.
    let cases = cases.map(|(n, (call, moment, put))| killed(BOTH[n / 2 % 2], call, moment, put));
    cases.buffer_unordered(5).collect::<()>().await;
}

/// What was charged is spent, which costs a tenth of a second; a permit comes back with its lease, and no job is lost with
/// either.
async fn killed(framework: Framework, call: &Call, moment: Moment, put: bool) {
    let Call { script, start, number, between } = *call;
    let what = format!("{framework:?}, {moment:?} {script} {number}, put: {put}");
    let limited = |framework| Setup { limited: true, ..steady(framework) };
    let (mut fleet, web) = with_web(framework.other()).await;
    let victim = fleet.join(limited(framework)).await;
    let lock = fleet.hold("7").await;
    let request = || {
        let request = fleet.later(web, "7").wish("ms=250");
        if put { request.put() } else { request }
    };
    let (first, second) = (request().accepted().await, request().accepted().await);
    let rule = Rule::new(script, moment).with_start(start).skip(number);
    let mut struck = fleet.proxy(victim).strike(rule.act(fleet.killer(victim)));
    lock.release().await;
    struck.happened().await;
    let _other = fleet.join(limited(framework.other())).await;
    let (runs, state) = match (between, put) {
        (true, true) => (2, "done"),
        (true, false) => (1, "dead"),
        (false, _) => (1, "done"),
    };
    let seen = fleet.outcome(web, &first).await;
    assert_eq!(seen.state, state, "{what}: {seen:?}");
    assert_eq!(fleet.runs_of(&first).len(), runs, "{what}");
    assert_eq!(fleet.outcome(web, &second).await.state, "done", "{what}");
    assert_eq!(fleet.runs_of(&second).len(), 1, "{what}");
    let verdict = fleet.settle(web).await;
    assert!(verdict.wrong.is_empty(), "{what}: {verdict}");
    verdict.is_good();
}
