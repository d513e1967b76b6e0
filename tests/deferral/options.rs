//! Row 12, second half, and what routes can be set to, with a worker that dies in between.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::{
    Framework,
    ledger::{DELAY, SOON},
    proxy::{Moment, Rule},
};

use super::{BOTH, SECOND, steady, with_web};

/// Its lock is renewed and renewed: who has a deadline is expired by then, and others go on waiting.
#[tokio::test]
async fn a_holder_that_never_ends_lets_deadlines_pass() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let _worker = fleet.join(steady(framework)).await;
        let lock = fleet.hold("7").await;
        let sent = Instant::now();
        let soon = [
            fleet.later(web, "7").soon().accepted().await,
            fleet.later(web, "7").put().soon().accepted().await,
        ];
        let patient = fleet.later(web, "7").accepted().await;
        for id in &soon {
            assert_eq!(fleet.outcome(web, id).await.state, "expired");
        }
        let expired = sent.elapsed();
        println!("figure: expired by, of a deadline of 1500 ms: {} ms", expired.as_millis());
        assert!(expired >= SOON, "{expired:?}");
        assert!(expired < SOON + 6 * SECOND, "{expired:?}");
        assert_eq!(fleet.see(web, &patient).await.state, "queued");
        lock.release().await;
        assert_eq!(fleet.outcome(web, &patient).await.state, "done");
        assert_eq!(fleet.settle(web).await.is_good().runs, 1);
    }))
    .await;
}

/// A retry after the deadline is none.
#[tokio::test]
async fn a_request_that_fails_past_its_deadline_is_expired() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let _worker = fleet.join(steady(Framework::Actix)).await;
    let wish = format!("fail=9&ms={}", SOON.as_millis());
    let mut tries = 0;
    loop {
        tries += 1;
        let lock = fleet.hold("7").await;
        let soon = fleet.later(web, "7").put().soon().wish(&wish).accepted().await;
        let behind = fleet.later(web, "7").accepted().await;
        lock.release().await;
        assert_eq!(fleet.outcome(web, &soon).await.state, "expired");
        assert_eq!(fleet.outcome(web, &behind).await.state, "done");
        // A slow machine may not have begun it in time.
        if !fleet.runs_of(&soon).is_empty() {
            break;
        }
        assert!(tries < 5, "never begun in time");
    }
    assert_eq!(fleet.settle(web).await.is_good().runs, tries + 1);
}

/// Never early, also where its worker has died; and in the order of acceptance among those that are due.
#[tokio::test]
async fn what_is_delayed_is_not_early() {
    join_all([None, Some(Moment::Before), Some(Moment::After)].map(|moment| async move {
        let (mut fleet, web) = with_web(Framework::Actix).await;
        let worker = fleet.join(steady(Framework::Axum)).await;
        let lock = fleet.hold("7").await;
        let sent = lockgate_tests::ledger::now();
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(fleet.later(web, "7").put().delayed().accepted().await);
        }
        let at_once = fleet.later(web, "7").accepted().await;
        lock.release().await;
        assert_eq!(fleet.outcome(web, &at_once).await.state, "done");
        if let Some(moment) = moment {
            let rule = Rule::new("poll_due", moment).act(fleet.killer(worker));
            let mut struck = fleet.proxy(worker).strike(rule);
            // On a slow machine the others may have been due before there was the rule.
            let lock = fleet.hold("7").await;
            ids.push(fleet.later(web, "7").put().delayed().accepted().await);
            lock.release().await;
            struck.happened().await;
            let _other = fleet.join(steady(Framework::Actix)).await;
        }
        let mut last = 0;
        for id in &ids {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
            // Again, if its worker had died before it could say what became of it.
            let run = &fleet.runs_of(id)[0];
            let after = Duration::from_nanos(run.started_at - sent);
            assert!(after >= DELAY, "{after:?}");
            assert!(run.started_at > last, "in the order of acceptance");
            last = run.started_at;
        }
        fleet.settle(web).await.is_good();
    }))
    .await;
}

/// While it waits for its retry, later ones pass; its worker dies meanwhile, and it comes back all the same.
#[tokio::test]
async fn a_retry_that_others_pass_is_not_lost() {
    join_all([Moment::Before, Moment::After].map(|moment| async move {
        let (mut fleet, web) = with_web(Framework::Axum).await;
        let worker = fleet.join(steady(Framework::Actix)).await;
        let lock = fleet.hold("7").await;
        let first = fleet.later(web, "7").put().skip().wish("fail=1").accepted().await;
        let passes = fleet.later(web, "7").put().accepted().await;
        let rule = Rule::new("settle_job", moment).with(&first).act(fleet.killer(worker));
        let mut struck = fleet.proxy(worker).strike(rule);
        lock.release().await;
        struck.happened().await;
        let _other = fleet.join(steady(Framework::Axum)).await;
        for id in [&first, &passes] {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
        }
        let attempts: Vec<_> = fleet.runs_of(&first).iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 2]);
        fleet.settle(web).await.is_good();
    }))
    .await;
}
