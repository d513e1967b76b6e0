//! Rows 11 and 12: wake-ups are lost, and the holder does not release its lock.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockgate_tests::{
    WebFramework, eventually,
    ledger::{JobFleet, RecordedRun},
    proxy::{FaultPoint, FaultRule},
    request,
};

use super::{BOTH_FRAMEWORKS, LONG_LEASE, SECOND, long_lease_setup, start_fleet_without_worker};

/// A sign of life of the worker, 5 s apart, at which it looks everywhere, and what a machine takes. Nobody else would look.
const MAX_POLL_DELAY: Duration = Duration::from_secs(12);

/// The same of one that has others beside it, 10 s apart.
const MAX_POLL_DELAY_OF_SEVERAL: Duration = Duration::from_secs(20);

/// What is promised of a dead worker's shards, 15 s, and what a machine takes. One under load may be late by itself, but
/// not each time.
const MAX_TAKEOVER_DELAY: Duration = Duration::from_secs(17);

/// An odd number, of which most must cost no more than a message: a machine has other things to do.
const ROUNDS: usize = 7;

#[tokio::test]
async fn lost_wakeup_delays_run_until_next_poll() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let worker = fleet.start_node(long_lease_setup(framework)).await;
        let before = wait_for_first_wakeup(&fleet, web, worker).await;
        let lock = fleet.hold_lock("7").await;
        let ids = [
            fleet.deferrable_request(web, "7").send_accepted().await,
            fleet
                .deferrable_request(web, "7")
                .put()
                .instruct_handler("fail=1")
                .send_accepted()
                .await,
            fleet.deferrable_request(web, "7").send_accepted().await,
        ];
        fleet.proxy(worker).set_drop_messages(true);
        fleet.proxy(web).set_drop_messages(true);
        let released = Instant::now();
        lock.release().await;
        fleet.wait_for_run_start(&ids[0]).await;
        let waited = released.elapsed();
        println!("figure: longest wait without a message {} ms", waited.as_millis());
        assert!(waited < MAX_POLL_DELAY, "{waited:?}");
        assert!(fleet.proxy(worker).dropped_messages() > 0, "no message was lost");
        for id in &ids {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
        }
        let looked = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((looked.runs, looked.repeated_runs), (before + 4, 1));
    }))
    .await;
}

/// The one worker that there is has given a sign of life, and listens: it has been told of something. How many runs that took.
async fn wait_for_first_wakeup(fleet: &JobFleet, web: usize, worker: usize) -> usize {
    for n in 0..200 {
        if fleet.proxy(worker).delivered_messages() > 0 {
            return n;
        }
        let lock = fleet.hold_lock("before").await;
        let id = fleet.deferrable_request(web, "before").send_accepted().await;
        lock.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
    }
    panic!("the worker is told of nothing");
}

/// Nobody hears that there is something to be done, nor when: whoever has the shard looks by itself, and no other one does.
#[tokio::test]
async fn lost_wakeup_of_two_workers_delays_run_until_poll() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let workers = [
        fleet.start_node(long_lease_setup(WebFramework::Actix)).await,
        fleet.start_node(long_lease_setup(WebFramework::Axum)).await,
    ];
    let before = wait_until_both_have_run(&fleet, web, workers).await;
    let (mut locks, mut ids) = (Vec::new(), Vec::new());
    workers.iter().for_each(|worker| fleet.proxy(*worker).set_drop_messages(true));
    // Of so many that each of the two has some.
    for resource in 0..16 {
        let resource = resource.to_string();
        locks.push(fleet.hold_lock(&resource).await);
        ids.push(fleet.deferrable_request(web, &resource).send_accepted().await);
    }
    let released = Instant::now();
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for id in &ids {
        fleet.wait_for_run_start(id).await;
    }
    let waited = released.elapsed();
    println!("figure: longest wait of several without a message {} ms", waited.as_millis());
    assert!(waited < MAX_POLL_DELAY_OF_SEVERAL, "{waited:?}");
    let runs = fleet.runs();
    for worker in workers {
        assert!(fleet.proxy(worker).dropped_messages() > 0, "no message was lost");
        let has_run = |run: &RecordedRun| {
            run.incarnation.process == worker
                && run.job_id.as_ref().is_some_and(|job| ids.contains(job))
        };
        assert!(runs.iter().any(has_run), "the other one has run all");
    }
    let looked = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!(looked.runs, before + ids.len());
}

/// Whoever gives a lock back tells the worker of the next job, which is another process, and whoever ends that job tells
/// those who wait for it: each of them would look by itself, but not as soon as this.
#[tokio::test]
async fn wakeups_reach_worker_and_long_poll_of_other_processes() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let (mut began, mut told) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let resource = round.to_string();
        let lock = fleet.hold_lock(&resource).await;
        let id = fleet
            .deferrable_request(web, &resource)
            .instruct_handler("ms=300")
            .send_accepted()
            .await;
        let status = request(fleet.node_addr(web), "GET", &format!("/deferred/{id}"));
        let status = tokio::spawn(status.header("prefer", "wait=10").send());
        let released = Instant::now();
        lock.release().await;
        fleet.wait_for_run_start(&id).await;
        began.push(released.elapsed());
        let answer = status.await.expect("it is answered").expect_status(200);
        // It is told of the run's begin or of its end; by its own look it would be later.
        assert!(answer.json()["state"] != "queued", "{answer:?}");
        told.push(released.elapsed());
        assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
    }
    for (what, waited) in [("a run", &mut began), ("a status", &mut told)] {
        waited.sort_unstable();
        let median = waited[ROUNDS / 2];
        println!("figure: median wait of {what} with a message {} ms", median.as_millis());
        assert!(median < SECOND, "{what}: {waited:?}");
    }
    fleet.finish_and_check(web).await.assert_no_violations();
}

/// Its shards are another's within 15 s of its last sign of life.
#[tokio::test]
async fn shards_of_dead_worker_are_taken_over_in_time() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let other = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let mut late = Vec::new();
    while late.len() < 3 {
        let dies = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
        let waited = run_delay_after_worker_death(&mut fleet, web, [dies, other]).await;
        println!("figure: longest wait behind a dead worker {} ms", waited.as_millis());
        if waited < MAX_TAKEOVER_DELAY {
            fleet.finish_and_check(web).await.assert_no_violations();
            return;
        }
        late.push(waited);
    }
    panic!("looked after by others after {late:?}");
}

/// Both have run something: they have divided the shards. How many runs that took.
async fn wait_until_both_have_run(fleet: &JobFleet, web: usize, workers: [usize; 2]) -> usize {
    for n in 0..200 {
        let runs = fleet.runs();
        if workers.iter().all(|worker| runs.iter().any(|run| run.incarnation.process == *worker)) {
            return n;
        }
        let resource = format!("{}-{n}", workers[0]);
        let lock = fleet.hold_lock(&resource).await;
        let id = fleet.deferrable_request(web, &resource).send_accepted().await;
        lock.release().await;
        assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
    }
    panic!("one of two workers has run all");
}

/// How long after the last sign of life of the first of two workers all runs that waited for either.
async fn run_delay_after_worker_death(
    fleet: &mut JobFleet,
    web: usize,
    [dies, other]: [usize; 2],
) -> Duration {
    wait_until_both_have_run(fleet, web, [dies, other]).await;
    let mut locks = Vec::new();
    let mut ids = Vec::new();
    for resource in 0..32 {
        let resource = format!("{dies}-r{resource}");
        locks.push(fleet.hold_lock(&resource).await);
        ids.push(fleet.deferrable_request(web, &resource).send_accepted().await);
    }
    let mut beat = fleet
        .proxy(dies)
        .add_rule(FaultRule::new("worker_heartbeat_and_shards", FaultPoint::AfterCall));
    beat.wait_for_match().await;
    let last = Instant::now();
    fleet.kill(dies).await;
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for id in &ids {
        fleet.wait_for_run_start(id).await;
    }
    last.elapsed()
}

#[tokio::test]
async fn closed_subscription_delays_run_until_next_poll() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let lock = fleet.hold_lock("7").await;
    let id = fleet.deferrable_request(web, "7").send_accepted().await;
    // Who has joined may not listen yet.
    eventually("somebody to be cut off", async || {
        let killed = fleet.send_server_command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        matches!(killed, Some(redis::Value::Int(1..)))
    })
    .await;
    let released = Instant::now();
    lock.release().await;
    fleet.wait_for_run_start(&id).await;
    let waited = released.elapsed();
    println!("figure: longest wait without a message {} ms", waited.as_millis());
    assert!(waited < MAX_POLL_DELAY, "{waited:?}");
    assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
}

/// Also one whose death nobody was told of: the end of its lease is known to the worker.
#[tokio::test]
async fn dead_holder_delays_run_until_lease_ends() {
    join_all([false, true].map(|deaf| async move {
        let (mut fleet, web) = start_fleet_without_worker(WebFramework::Actix).await;
        let holder = fleet.start_node(long_lease_setup(WebFramework::Axum).without_worker()).await;
        let worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
        let ship =
            fleet.deferrable_request(holder, "7").waiting_if_busy().instruct_handler("ms=60000");
        let ship = tokio::spawn(ship.send());
        eventually("the request to run", async || !fleet.runs().is_empty()).await;
        let ids = [
            fleet.deferrable_request(web, "7").send_accepted().await,
            fleet.deferrable_request(web, "7").send_accepted().await,
        ];
        fleet.proxy(worker).set_drop_messages(deaf);
        let killed = Instant::now();
        fleet.kill(holder).await;
        fleet.wait_for_run_start(&ids[0]).await;
        // The end of its lease is when the worker looks by itself.
        let most = LONG_LEASE + if deaf { MAX_POLL_DELAY } else { 4 * SECOND };
        let (waited, deaf) = (killed.elapsed(), if deaf { "without a message" } else { "told" });
        println!("figure: longest wait behind a dead holder, {deaf} {} ms", waited.as_millis());
        assert!(waited < most, "{waited:?}");
        let _ = ship.await.expect("the client does not panic");
        let looked = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((looked.runs, looked.direct_runs), (2, 1));
    }))
    .await;
}
