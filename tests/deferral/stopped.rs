//! Row 3: a worker that is stopped past its lease, and goes on.

use futures_util::future::join;
use lockgate_tests::{
    Framework,
    ledger::Told,
    proxy::{Moment, Rule},
};

use super::{SECOND, steady, with_web};

/// Others have the lock meanwhile; what it does when it wakes counts for nothing.
#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_changes_nothing() {
    join(in_the_middle(Framework::Axum), in_the_middle(Framework::Actix)).await;
}

async fn in_the_middle(framework: Framework) {
    let (mut fleet, web) = with_web(framework.other()).await;
    let worker = fleet.join(steady(framework)).await;
    let lock = fleet.hold("7").await;
    let put = fleet.later(web, "7").put().wish("ms=6000").accepted().await;
    let post = fleet.later(web, "7").accepted().await;
    lock.release().await;
    fleet.started(&put).await;
    fleet.pause(worker);
    // Its lease ends, nobody takes the jobs, so they are passed over.
    let paused = std::time::Instant::now();
    let ran = loop {
        match fleet.later(web, "7").pay().send().await {
            Told::Refused(409, _) => tokio::time::sleep(SECOND / 20).await,
            other => break other,
        }
        assert!(paused.elapsed() < 30 * SECOND, "the lease does not end");
    };
    assert!(matches!(ran, Told::Ran(200, _)), "{ran:?}");
    let free = paused.elapsed();
    println!("figure: resource free after its worker is stopped {} ms", free.as_millis());
    fleet.resume(worker, paused.elapsed());
    let done = fleet.outcome(web, &put).await;
    assert_eq!(done.state, "done", "{done:?}");
    let runs = fleet.runs_of(&put);
    assert_eq!(runs.iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2]);
    let stored = done.response.expect("it is done").1;
    assert!(stored.starts_with(&format!("{put}-2-")), "{stored}");
    assert_eq!(fleet.outcome(web, &post).await.state, "done");
    let looked = fleet.settle(web).await.is_good();
    assert_eq!((looked.runs, looked.direct_runs), (3, 1));
}

/// Its settlement was on its way when it was stopped; it arrives when another worker has the job.
#[tokio::test]
async fn a_settlement_that_comes_too_late_is_lost() {
    join(too_late(true), too_late(false)).await;
}

async fn too_late(put: bool) {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let victim = fleet.join(steady(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    let request = fleet.later(web, "7");
    let id = if put { request.put() } else { request }.accepted().await;
    let mut struck = fleet.proxy(victim).strike(Rule::new("settle_job", Moment::Before));
    lock.release().await;
    let call = struck.happened().await;
    fleet.pause(victim);
    let paused = std::time::Instant::now();
    fleet.trouble_for(Some(victim), 60 * SECOND);
    let _other = fleet.join(steady(Framework::Axum)).await;
    let state = if put { "done" } else { "dead" };
    let before = fleet.outcome(web, &id).await;
    assert_eq!(before.state, state, "{before:?}");
    let answer = fleet.command(&lockgate_tests::proxy::words(&call)).await;
    assert!(format!("{answer:?}").contains("lost"), "{answer:?}");
    // A sign of life comes by the clock: it goes on, with what it had in its hands.
    let mut beats = fleet.proxy(victim).strike(Rule::new("heartbeat", Moment::After));
    fleet.resume(victim, paused.elapsed());
    beats.happened().await;
    assert_eq!(fleet.see(web, &id).await, before, "nothing of it counts");
    let looked = fleet.settle(web).await.is_good();
    assert_eq!(looked.runs, if put { 2 } else { 1 });
}
