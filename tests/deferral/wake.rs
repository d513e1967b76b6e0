//! Rows 11 and 12: nobody is told, and the holder does not come back.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::{
    Framework, eventually,
    ledger::{Fleet, RecordedRun},
    proxy::{Moment, Rule},
    request,
};

use super::{BOTH, LEASE, SECOND, steady, with_web};

/// A sign of life of the worker, 5 s apart, at which it looks everywhere, and what a machine takes. Nobody else would look.
const LATEST: Duration = Duration::from_secs(12);

/// The same of one that has others beside it, 10 s apart.
const LATEST_AMONG_OTHERS: Duration = Duration::from_secs(20);

/// What is promised of a dead worker's shards, 15 s, and what a machine takes. One under load may be late by itself, but
/// not each time.
const TAKEN_OVER: Duration = Duration::from_secs(17);

/// An odd number, of which most must cost no more than a message: a machine has other things to do.
const ROUNDS: usize = 7;

#[tokio::test]
async fn a_message_that_is_lost_costs_a_look() {
    join_all(BOTH.map(|framework| async move {
        let (mut fleet, web) = with_web(framework.other()).await;
        let worker = fleet.join(steady(framework)).await;
        let before = is_told(&fleet, web, worker).await;
        let lock = fleet.hold("7").await;
        let ids = [
            fleet.later(web, "7").accepted().await,
            fleet.later(web, "7").put().wish("fail=1").accepted().await,
            fleet.later(web, "7").accepted().await,
        ];
        fleet.proxy(worker).lose_messages(true);
        fleet.proxy(web).lose_messages(true);
        let released = Instant::now();
        lock.release().await;
        fleet.started(&ids[0]).await;
        let waited = released.elapsed();
        println!("figure: longest wait without a message {} ms", waited.as_millis());
        assert!(waited < LATEST, "{waited:?}");
        assert!(fleet.proxy(worker).lost() > 0, "no message was lost");
        for id in &ids {
            assert_eq!(fleet.outcome(web, id).await.state, "done");
        }
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.repeated_runs), (before + 4, 1));
    }))
    .await;
}

/// The one worker that there is has given a sign of life, and listens: it has been told of something. How many runs that took.
async fn is_told(fleet: &Fleet, web: usize, worker: usize) -> usize {
    for n in 0..200 {
        if fleet.proxy(worker).heard() > 0 {
            return n;
        }
        let lock = fleet.hold("before").await;
        let id = fleet.later(web, "before").accepted().await;
        lock.release().await;
        assert_eq!(fleet.outcome(web, &id).await.state, "done");
    }
    panic!("the worker is told of nothing");
}

/// Nobody hears that there is something to be done, nor when: whoever has the shard looks by itself, and no other one does.
#[tokio::test]
async fn a_message_that_is_lost_to_several_costs_a_look_of_each() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let workers =
        [fleet.join(steady(Framework::Actix)).await, fleet.join(steady(Framework::Axum)).await];
    let before = have_divided(&fleet, web, workers).await;
    let (mut locks, mut ids) = (Vec::new(), Vec::new());
    workers.iter().for_each(|worker| fleet.proxy(*worker).lose_messages(true));
    // Of so many that each of the two has some.
    for resource in 0..16 {
        let resource = resource.to_string();
        locks.push(fleet.hold(&resource).await);
        ids.push(fleet.later(web, &resource).accepted().await);
    }
    let released = Instant::now();
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for id in &ids {
        fleet.started(id).await;
    }
    let waited = released.elapsed();
    println!("figure: longest wait of several without a message {} ms", waited.as_millis());
    assert!(waited < LATEST_AMONG_OTHERS, "{waited:?}");
    let runs = fleet.runs();
    for worker in workers {
        assert!(fleet.proxy(worker).lost() > 0, "no message was lost");
        let has_run = |run: &RecordedRun| {
            run.incarnation.process == worker
                && run.job_id.as_ref().is_some_and(|job| ids.contains(job))
        };
        assert!(runs.iter().any(has_run), "the other one has run all");
    }
    let looked = fleet.settle(web).await.is_good();
    assert_eq!(looked.runs, before + ids.len());
}

/// Whoever gives a lock back tells the worker of the next job, which is another process, and whoever ends that job tells
/// those who wait for it: each of them would look by itself, but not as soon as this.
#[tokio::test]
async fn messages_wake_other_processes() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let _worker = fleet.join(steady(Framework::Actix)).await;
    let (mut began, mut told) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let resource = round.to_string();
        let lock = fleet.hold(&resource).await;
        let id = fleet.later(web, &resource).wish("ms=300").accepted().await;
        let status = request(fleet.addr(web), "GET", &format!("/deferred/{id}"));
        let status = tokio::spawn(status.header("prefer", "wait=10").send());
        let released = Instant::now();
        lock.release().await;
        fleet.started(&id).await;
        began.push(released.elapsed());
        let answer = status.await.expect("it is answered").expect(200);
        // It is told of the run's begin or of its end; by its own look it would be later.
        assert!(answer.json()["state"] != "queued", "{answer:?}");
        told.push(released.elapsed());
        assert_eq!(fleet.outcome(web, &id).await.state, "done");
    }
    for (what, waited) in [("a run", &mut began), ("a status", &mut told)] {
        waited.sort_unstable();
        let median = waited[ROUNDS / 2];
        println!("figure: median wait of {what} with a message {} ms", median.as_millis());
        assert!(median < SECOND, "{what}: {waited:?}");
    }
    fleet.settle(web).await.is_good();
}

/// Its shards are another's within 15 s of its last sign of life.
#[tokio::test]
async fn what_a_dead_worker_looked_after_is_looked_after_by_others() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let other = fleet.join(steady(Framework::Axum)).await;
    let mut late = Vec::new();
    while late.len() < 3 {
        let dies = fleet.join(steady(Framework::Actix)).await;
        let waited = behind_the_dead(&mut fleet, web, [dies, other]).await;
        println!("figure: longest wait behind a dead worker {} ms", waited.as_millis());
        if waited < TAKEN_OVER {
            fleet.settle(web).await.is_good();
            return;
        }
        late.push(waited);
    }
    panic!("looked after by others after {late:?}");
}

/// Both have run something: they have divided the shards. How many runs that took.
async fn have_divided(fleet: &Fleet, web: usize, workers: [usize; 2]) -> usize {
    for n in 0..200 {
        let runs = fleet.runs();
        if workers.iter().all(|worker| runs.iter().any(|run| run.incarnation.process == *worker)) {
            return n;
        }
        let resource = format!("{}-{n}", workers[0]);
        let lock = fleet.hold(&resource).await;
        let id = fleet.later(web, &resource).accepted().await;
        lock.release().await;
        assert_eq!(fleet.outcome(web, &id).await.state, "done");
    }
    panic!("one of two workers has run all");
}

/// How long after the last sign of life of the first of two workers all runs that waited for either.
async fn behind_the_dead(fleet: &mut Fleet, web: usize, [dies, other]: [usize; 2]) -> Duration {
    have_divided(fleet, web, [dies, other]).await;
    let mut locks = Vec::new();
    let mut ids = Vec::new();
    for resource in 0..32 {
        let resource = format!("{dies}-r{resource}");
        locks.push(fleet.hold(&resource).await);
        ids.push(fleet.later(web, &resource).accepted().await);
    }
    let mut beat = fleet.proxy(dies).strike(Rule::new("heartbeat", Moment::After));
    beat.happened().await;
    let last = Instant::now();
    fleet.kill(dies).await;
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for id in &ids {
        fleet.started(id).await;
    }
    last.elapsed()
}

#[tokio::test]
async fn a_subscriber_that_is_cut_off_costs_a_look() {
    let (mut fleet, web) = with_web(Framework::Axum).await;
    let _worker = fleet.join(steady(Framework::Actix)).await;
    let lock = fleet.hold("7").await;
    let id = fleet.later(web, "7").accepted().await;
    // Who has joined may not listen yet.
    eventually("somebody to be cut off", async || {
        let killed = fleet.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        matches!(killed, Some(redis::Value::Int(1..)))
    })
    .await;
    let released = Instant::now();
    lock.release().await;
    fleet.started(&id).await;
    let waited = released.elapsed();
    println!("figure: longest wait without a message {} ms", waited.as_millis());
    assert!(waited < LATEST, "{waited:?}");
    assert_eq!(fleet.settle(web).await.is_good().runs, 1);
}

/// Also one whose death nobody was told of: the end of its lease is known to the worker.
#[tokio::test]
async fn a_holder_that_dies_costs_its_lease() {
    join_all([false, true].map(|deaf| async move {
        let (mut fleet, web) = with_web(Framework::Actix).await;
        let holder = fleet.join(steady(Framework::Axum).web_only()).await;
        let worker = fleet.join(steady(Framework::Actix)).await;
        let ship = fleet.later(holder, "7").ship().wish("ms=60000");
        let ship = tokio::spawn(ship.send());
        eventually("the request to run", async || !fleet.runs().is_empty()).await;
        let ids = [fleet.later(web, "7").accepted().await, fleet.later(web, "7").accepted().await];
        fleet.proxy(worker).lose_messages(deaf);
        let killed = Instant::now();
        fleet.kill(holder).await;
        fleet.started(&ids[0]).await;
        // The end of its lease is when the worker looks by itself.
        let most = LEASE + if deaf { LATEST } else { 4 * SECOND };
        let (waited, deaf) = (killed.elapsed(), if deaf { "without a message" } else { "told" });
        println!("figure: longest wait behind a dead holder, {deaf} {} ms", waited.as_millis());
        assert!(waited < most, "{waited:?}");
        let _ = ship.await.expect("the client does not panic");
        let looked = fleet.settle(web).await.is_good();
        assert_eq!((looked.runs, looked.direct_runs), (2, 1));
    }))
    .await;
}
