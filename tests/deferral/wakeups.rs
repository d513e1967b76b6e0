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

/// The heartbeat interval of a single worker (5 s), at which it polls all shards, plus time for a
/// loaded machine.
const MAX_POLL_DELAY: Duration = Duration::from_secs(12);

/// The same for several workers, whose heartbeat interval is 10 s.
const MAX_POLL_DELAY_OF_SEVERAL: Duration = Duration::from_secs(20);

/// The promised takeover of a dead worker's shards (15 s), plus time for a loaded machine, which
/// may delay single rounds.
const MAX_TAKEOVER_DELAY: Duration = Duration::from_secs(17);

/// Odd, for the median: most rounds must cost no more than a message.
const ROUNDS: usize = 7;

#[tokio::test]
async fn lost_wakeup_delays_run_until_next_poll() {
    join_all(BOTH_FRAMEWORKS.map(|framework| async move {
        let (mut fleet, web) = start_fleet_without_worker(framework.other()).await;
        let worker = fleet.start_node(long_lease_setup(framework)).await;
        let run_count = wait_for_first_wakeup(&fleet, web, worker).await;
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
        let run_delay = released.elapsed();
        println!("figure: longest wait without a message {} ms", run_delay.as_millis());
        assert!(run_delay < MAX_POLL_DELAY, "{run_delay:?}");
        assert!(fleet.proxy(worker).dropped_messages() > 0, "no message was lost");
        for id in &ids {
            assert_eq!(fleet.wait_for_outcome(web, id).await.state, "done");
        }
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((stats.runs, stats.repeated_runs), (run_count + 4, 1));
    }))
    .await;
}

/// Waits until the only worker has sent a heartbeat and received a wake-up. Returns the number of
/// runs until then.
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
    panic!("the worker receives no wake-up");
}

/// All wake-ups are lost: the owner of a shard polls by timer, and no other worker does.
#[tokio::test]
async fn lost_wakeup_of_two_workers_delays_run_until_poll() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let workers = [
        fleet.start_node(long_lease_setup(WebFramework::Actix)).await,
        fleet.start_node(long_lease_setup(WebFramework::Axum)).await,
    ];
    let run_count = wait_until_both_have_run(&fleet, web, workers).await;
    let (mut locks, mut ids) = (Vec::new(), Vec::new());
    workers.iter().for_each(|worker| fleet.proxy(*worker).set_drop_messages(true));
    // Enough resources that each worker owns shards of some.
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
    let longest_delay = released.elapsed();
    println!("figure: longest wait of several without a message {} ms", longest_delay.as_millis());
    assert!(longest_delay < MAX_POLL_DELAY_OF_SEVERAL, "{longest_delay:?}");
    let runs = fleet.runs();
    for worker in workers {
        assert!(fleet.proxy(worker).dropped_messages() > 0, "no message was lost");
        let has_run = |run: &RecordedRun| {
            run.incarnation.process == worker
                && run.job_id.as_ref().is_some_and(|job| ids.contains(job))
        };
        assert!(runs.iter().any(has_run), "the other one has run all");
    }
    let stats = fleet.finish_and_check(web).await.assert_no_violations();
    assert_eq!(stats.runs, run_count + ids.len());
}

/// A release wakes the worker of the next job in another process, and the end of the job wakes its
/// long polls. Polling alone would be slower than the limit.
#[tokio::test]
async fn wakeups_reach_worker_and_long_poll_of_other_processes() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let (mut run_delays, mut status_delays) = (Vec::new(), Vec::new());
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
        run_delays.push(released.elapsed());
        let answer = status.await.expect("it is answered").expect_status(200);
        // A wake-up reports the start or the end of the run; polling would be later.
        assert!(answer.json()["state"] != "queued", "{answer:?}");
        status_delays.push(released.elapsed());
        assert_eq!(fleet.wait_for_outcome(web, &id).await.state, "done");
    }
    for (event, delays) in [("a run", &mut run_delays), ("a status", &mut status_delays)] {
        delays.sort_unstable();
        let median = delays[ROUNDS / 2];
        println!("figure: median wait of {event} with a message {} ms", median.as_millis());
        assert!(median < SECOND, "{event}: {delays:?}");
    }
    fleet.finish_and_check(web).await.assert_no_violations();
}

/// The shards of a dead worker have another owner within 15 s of its last heartbeat.
#[tokio::test]
async fn shards_of_dead_worker_are_taken_over_in_time() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let other = fleet.start_node(long_lease_setup(WebFramework::Axum)).await;
    let mut delays = Vec::new();
    while delays.len() < 3 {
        let victim = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
        let delay = run_delay_after_worker_death(&mut fleet, web, [victim, other]).await;
        println!("figure: longest wait behind a dead worker {} ms", delay.as_millis());
        if delay < MAX_TAKEOVER_DELAY {
            fleet.finish_and_check(web).await.assert_no_violations();
            return;
        }
        delays.push(delay);
    }
    panic!("shards taken over after {delays:?}");
}

/// Waits until both workers have run a job, so the shards are divided. Returns the number of runs
/// until then.
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

/// Returns the time from the last heartbeat of the killed worker until all jobs of both workers
/// run.
async fn run_delay_after_worker_death(
    fleet: &mut JobFleet,
    web: usize,
    [victim, other]: [usize; 2],
) -> Duration {
    wait_until_both_have_run(fleet, web, [victim, other]).await;
    let mut locks = Vec::new();
    let mut ids = Vec::new();
    for resource in 0..32 {
        let resource = format!("{victim}-r{resource}");
        locks.push(fleet.hold_lock(&resource).await);
        ids.push(fleet.deferrable_request(web, &resource).send_accepted().await);
    }
    let mut heartbeat = fleet
        .proxy(victim)
        .add_rule(FaultRule::new("heartbeat_and_shard_assignment", FaultPoint::AfterCall));
    heartbeat.wait_for_match().await;
    let last_heartbeat = Instant::now();
    fleet.kill(victim).await;
    join_all(locks.into_iter().map(lockgate::LockGuard::release)).await;
    for id in &ids {
        fleet.wait_for_run_start(id).await;
    }
    last_heartbeat.elapsed()
}

#[tokio::test]
async fn closed_subscription_delays_run_until_next_poll() {
    let (mut fleet, web) = start_fleet_without_worker(WebFramework::Axum).await;
    let _worker = fleet.start_node(long_lease_setup(WebFramework::Actix)).await;
    let lock = fleet.hold_lock("7").await;
    let id = fleet.deferrable_request(web, "7").send_accepted().await;
    // A started worker may not have subscribed yet.
    eventually("a subscriber to be disconnected", async || {
        let killed = fleet.send_server_command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        matches!(killed, Some(redis::Value::Int(1..)))
    })
    .await;
    let released = Instant::now();
    lock.release().await;
    fleet.wait_for_run_start(&id).await;
    let run_delay = released.elapsed();
    println!("figure: longest wait without a message {} ms", run_delay.as_millis());
    assert!(run_delay < MAX_POLL_DELAY, "{run_delay:?}");
    assert_eq!(fleet.finish_and_check(web).await.assert_no_violations().runs, 1);
}

/// The worker knows the end of the lease, so no wake-up about the holder's death is needed.
#[tokio::test]
async fn dead_holder_delays_run_until_lease_ends() {
    join_all([false, true].map(|drops_messages| async move {
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
        fleet.proxy(worker).set_drop_messages(drops_messages);
        let killed = Instant::now();
        fleet.kill(holder).await;
        fleet.wait_for_run_start(&ids[0]).await;
        // The worker polls by timer at the end of the lease.
        let max_delay = LONG_LEASE + if drops_messages { MAX_POLL_DELAY } else { 4 * SECOND };
        let (run_delay, drops_messages) =
            (killed.elapsed(), if drops_messages { "without a message" } else { "told" });
        println!(
            "figure: longest wait behind a dead holder, {drops_messages} {} ms",
            run_delay.as_millis()
        );
        assert!(run_delay < max_delay, "{run_delay:?}");
        let _ = ship.await.expect("the client does not panic");
        let stats = fleet.finish_and_check(web).await.assert_no_violations();
        assert_eq!((stats.runs, stats.direct_runs), (2, 1));
    }))
    .await;
}
