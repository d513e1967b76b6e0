//! Row 13: a request that ends every process that runs it.

use std::time::{Duration, Instant};

use lockgate_tests::{
    Framework,
    ledger::{Fleet, ObservedStatus, Setup},
};

use super::{steady, with_web};

/// Several leases of workers that die one after the other, on a machine that has other things to do.
const MOST: Duration = Duration::from_secs(90);

/// Keeps so many workers alive until the job has ended.
async fn outcome(fleet: &mut Fleet, web: usize, id: &str) -> ObservedStatus {
    let until = Instant::now() + MOST;
    loop {
        for node in 0..fleet.size() {
            if !fleet.lives(node) {
                fleet.replace(node).await;
            }
        }
        let seen = fleet.see(web, id).await;
        if seen.is_final() {
            return seen;
        }
        assert!(Instant::now() < until, "{id} does not end: {seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_poisonous_request_is_dead_after_its_attempts_and_its_resource_goes_on() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    // The web node says how often it may run.
    let setup = |framework| Setup { most: 2, ..steady(framework) };
    let web_two = fleet.join(setup(Framework::Axum).web_only()).await;
    for framework in [Framework::Axum, Framework::Actix] {
        fleet.join(setup(framework)).await;
    }
    let lock = fleet.hold("7").await;
    let poison = fleet.later(web_two, "7").put().wish("ms=50&abort=99").accepted().await;
    let once = fleet.later(web, "7").wish("abort=99").accepted().await;
    let next = fleet.later(web, "7").accepted().await;
    lock.release().await;
    let dead = outcome(&mut fleet, web, &poison).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert!(dead.reason.contains("crashed"), "{dead:?}");
    assert_eq!(fleet.runs_of(&poison).len(), 2);
    // Its method does not allow it to run again.
    let dead = outcome(&mut fleet, web, &once).await;
    assert_eq!(dead.state, "dead", "{dead:?}");
    assert_eq!(fleet.runs_of(&once).len(), 1);
    assert_eq!(outcome(&mut fleet, web, &next).await.state, "done");
    let looked = fleet.settle(web).await.is_good();
    assert_eq!((looked.runs, looked.repeated_runs), (4, 1));
}
