//! Rows 1 and 2: SIGKILL at every boundary of every script.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, future::join_all, stream::iter};
use lockgate_tests::{
    Framework, eventually,
    ledger::{Fleet, Later, Told},
    proxy::{Moment, Rule},
    within,
};

use super::{BOTH, steady, with_web};

/// What the requests of a case are, and what becomes of the first one.
struct Case {
    script: &'static str,
    moment: Moment,
    put: bool,
    /// Runs of the first request, and its state.
    runs: usize,
    state: &'static str,
}

const fn case(
    script: &'static str,
    moment: Moment,
    put: bool,
    runs: usize,
    state: &'static str,
) -> Case {
    Case { script, moment, put, runs, state }
}

use Moment::{After, Before};

/// A worker that dies around a script leaves the job as it was, or as the script has made it.
const WORKER: [Case; 10] = [
    case("claim_job", Before, true, 1, "done"),
    case("claim_job", Before, false, 1, "done"),
    // Charged, and never begun: nobody can know that.
    case("claim_job", After, true, 1, "done"),
    case("claim_job", After, false, 0, "dead"),
    case("settle_job", Before, true, 2, "done"),
    case("settle_job", Before, false, 1, "dead"),
    case("settle_job", After, true, 1, "done"),
    case("settle_job", After, false, 1, "done"),
    // In the middle of a run.
    case("renew", Before, true, 2, "done"),
    case("renew", After, false, 1, "dead"),
];

/// Those of a worker that has nothing to do: whoever comes next does it.
const IDLE: [&str; 2] = ["poll_due", "heartbeat"];

#[tokio::test]
async fn a_worker_is_killed_at_every_script() {
    let idle = IDLE
        .into_iter()
        .flat_map(|script| [Before, After].map(|at| case(script, at, false, 1, "done")));
    let cases = WORKER.into_iter().chain(idle).enumerate();
    // Not all at once: they would be the load that ends their leases.
    let cases = iter(cases).map(|(n, case)| killed_worker(BOTH[n % 2], case));
    cases.buffer_unordered(5).collect::<()>().await;
}

async fn killed_worker(framework: Framework, case: Case) {
    let Case { script, moment, put, runs, state } = case;
    let what = format!("{framework:?}, {moment:?} {script}, put: {put}");
    let (mut fleet, web) = with_web(framework.other()).await;
    let victim = fleet.join(steady(framework)).await;
    let lock = fleet.hold("7").await;
    // A third of its lease until it is renewed: the run must still be there, however late the timer is.
    let first = fleet.later(web, "7").wish(if script == "renew" { "ms=7000" } else { "ms=600" });
    let first = if put { first.put() } else { first }.accepted().await;
    // It may be begun in the call that settles the first one, by who is dead then.
    let second = fleet.later(web, "7").put().accepted().await;
    // Waits for its retry, with nobody near: the time of the index is all there is to it.
    let third = fleet.later(web, "7").put().wish("fail=1").accepted().await;
    let rule = Rule::new(script, moment).act(fleet.killer(victim));
    let proxy = fleet.proxy(victim);
    // Those of an idle worker come by the clock, whatever it does: in the middle of a run they would be that run's crash.
    match script {
        "poll_due" => {
            lock.release().await;
            for id in [&first, &second] {
                assert_eq!(fleet.outcome(web, id).await.state, "done", "{what}");
            }
            let mut struck = proxy.strike(rule);
            // The third one may have been due before there was the rule.
            comes_due(&fleet, web).await;
            struck.happened().await;
        }
        "heartbeat" => {
            proxy.strike(rule).happened().await;
            lock.release().await;
        }
        _ => {
            let mut struck = proxy.strike(rule);
            lock.release().await;
            struck.happened().await;
        }
    }
    let killed = Instant::now();
    // Whose runs end once: its lease is longer than a loaded machine stands still.
    let _other = fleet.join(steady(framework.other())).await;
    let seen = fleet.outcome(web, &first).await;
    assert_eq!(seen.state, state, "{what}: {seen:?}");
    assert_eq!(fleet.runs_of(&first).len(), runs, "{what}");
    assert_eq!(fleet.outcome(web, &second).await.state, "done", "{what}");
    assert_eq!(fleet.outcome(web, &third).await.state, "done", "{what}");
    println!("figure: longest from the kill to the end of all {} ms", killed.elapsed().as_millis());
    let verdict = fleet.settle(web).await;
    assert!(verdict.wrong.is_empty(), "{what}: {verdict}");
    verdict.is_good();
}

/// One more that waits for its time alone.
async fn comes_due(fleet: &Fleet, web: usize) {
    let lock = fleet.hold("7").await;
    let _ = fleet.later(web, "7").put().delayed().accepted().await;
    lock.release().await;
}

/// The request was stored or not; its client asks again, with its key, and has one job.
#[tokio::test]
async fn a_web_node_is_killed_as_it_accepts() {
    join_all(BOTH.map(|framework| killed_web(framework, After, 1))).await;
    join_all(BOTH.map(|framework| killed_web(framework, Before, 0))).await;
}

async fn killed_web(framework: Framework, moment: Moment, stored: usize) {
    let (mut fleet, web) = with_web(framework).await;
    let other = fleet.join(steady(framework.other())).await;
    let lock = fleet.hold("7").await;
    let rule = Rule::new("enqueue_batch", moment).act(fleet.killer(web));
    let mut struck = fleet.proxy(web).strike(rule);
    let request = || fleet.later(web, "7").key("one");
    assert_eq!(request().send().await, Told::Nothing);
    struck.happened().await;
    let ids = jobs(&fleet).await;
    assert_eq!(ids.len(), stored, "{moment:?}: {ids:?}");
    let first = fleet.later(other, "7").key("one").accepted().await;
    let again = fleet.later(other, "7").key("one").accepted().await;
    assert_eq!(first, again);
    assert!(ids.iter().all(|id| *id == first), "{ids:?} {first}");
    lock.release().await;
    assert_eq!(fleet.outcome(other, &first).await.state, "done");
    assert_eq!(fleet.settle(other).await.is_good().runs, 1);
}

/// The ids of all jobs in the store.
async fn jobs(fleet: &Fleet) -> Vec<String> {
    let keys = fleet.command(&["KEYS", "*:j:*"]).await.expect("the server answers");
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of keys");
    keys.iter().filter_map(|key| Some(key.rsplit_once(":j:")?.1.to_owned())).collect()
}

/// Row 18, too: either it is cancelled or it is not.
#[tokio::test]
async fn a_web_node_is_killed_as_it_cancels() {
    join_all([Before, After].map(|moment| async move {
        let (mut fleet, web) = with_web(Framework::Axum).await;
        let other = fleet.join(steady(Framework::Actix)).await;
        let lock = fleet.hold("7").await;
        let id = fleet.later(web, "7").accepted().await;
        let rule = Rule::new("cancel_job", moment).act(fleet.killer(web));
        let mut struck = fleet.proxy(web).strike(rule);
        assert_eq!(fleet.cancel(web, &id).await, 0);
        struck.happened().await;
        lock.release().await;
        let state = if moment == After { "cancelled" } else { "done" };
        assert_eq!(fleet.outcome(other, &id).await.state, state);
        assert_eq!(fleet.settle(other).await.is_good().runs, usize::from(moment == Before));
    }))
    .await;
}

/// Killed in the middle of the call that would free the lock: the job runs when its lease is over.
#[tokio::test]
async fn a_holder_is_killed_before_and_after_it_releases() {
    join_all([Before, After].map(|moment| async move {
        let (mut fleet, web) = with_web(Framework::Actix).await;
        let holder = fleet.join(steady(Framework::Axum).web_only()).await;
        let _worker = fleet.join(steady(Framework::Axum)).await;
        let rule = Rule::new("release", moment).act(fleet.killer(holder));
        let mut struck = fleet.proxy(holder).strike(rule);
        let ship = fleet.later(holder, "7").ship().wish("ms=4000");
        let ship = tokio::spawn(ship.send());
        eventually("the request to run", async || !fleet.runs().is_empty()).await;
        let id = fleet.later(web, "7").accepted().await;
        struck.happened().await;
        let _ = ship.await.expect("the client does not panic");
        assert_eq!(fleet.outcome(web, &id).await.state, "done");
        assert_eq!(fleet.settle(web).await.is_good().runs, 1);
    }))
    .await;
}

/// A request that runs at once and is remembered: its process is killed in the middle, and its client asks another one.
#[tokio::test]
async fn a_web_node_is_killed_in_a_remembered_run() {
    join_all(BOTH.map(|framework| killed_direct(framework, false))).await;
    join_all(BOTH.map(|framework| killed_direct(framework, true))).await;
}

async fn killed_direct(framework: Framework, put: bool) {
    let (mut fleet, victim) = with_web(framework).await;
    let other = fleet.join(steady(framework.other())).await;
    let request = |node, ms: u32| {
        let request = fleet_request(&fleet, node).wish(&format!("ms={ms}"));
        if put { request.put() } else { request }
    };
    let first = tokio::spawn(request(victim, 60_000).send());
    eventually("it to run", async || fleet.runs().len() == 1).await;
    let retry = || request(other, 60_000).send();
    // Its body and its target are those of the first.
    let Told::Refused(409, _) = retry().await else { panic!("it runs") };
    fleet.killer(victim)();
    assert_eq!(first.await.expect("the client does not panic"), Told::Nothing);
    if put {
        // The record of the key may lapse shortly before the lock does. The retry is deferred then.
        match unless_running(async || request(other, 0).send().await).await {
            Told::Ran(200, _) => {}
            Told::Accepted(id) => assert_eq!(fleet.outcome(other, &id).await.state, "done"),
            told => panic!("{told:?}"),
        }
        assert_eq!(fleet.runs().len(), 2);
        return fleet.leave();
    }
    let Told::Accepted(id) = unless_running(retry).await else { panic!("a POST is not run again") };
    let seen = fleet.see(other, &id).await;
    assert_eq!((seen.state.as_str(), seen.reason.as_str()), ("dead", "crashed, may have run"));
    assert_eq!(retry().await, Told::Accepted(id), "for as long as its record lives");
    assert_eq!(fleet.runs().len(), 1);
    fleet.leave();
}

/// The first answer other than 409, which says that a request with this key runs.
async fn unless_running(request: impl AsyncFn() -> Told) -> Told {
    within("the run of a killed process to lapse", async {
        loop {
            match request().await {
                Told::Refused(409, _) => tokio::time::sleep(Duration::from_millis(5)).await,
                told => break told,
            }
        }
    })
    .await
}

fn fleet_request(fleet: &Fleet, node: usize) -> Later {
    fleet.later(node, "7").once().key("one")
}
