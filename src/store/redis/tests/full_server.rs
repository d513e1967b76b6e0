//! A server without room (`noeviction`, which is what we advise) refuses what would take some. What is there is kept all
//! the same, goes on and ends: that takes no room, or makes some.

use std::{io, time::Duration};

use tokio::sync::oneshot;

use super::{
    SECOND,
    batched_runs::{enqueue_job, settle_command},
    idempotent_runs::acquire_for_run,
    server_process::ServerProcess,
    wait_for, wait_until,
};
use crate::{
    key::Key,
    lock::ReleaseStatus,
    queue::{Queue, Task},
    store::{
        backend::{ClaimCommand, ClaimOutcome, JobState, LockToken, SettleOutcome},
        tasks::{
            DeadLetterLimits, RunToken, TaskOutcome, TaskPollCommand, TaskRunLimits, TaskSettlement,
        },
    },
};

const LEASE: Duration = Duration::from_millis(2000);

/// Nothing ends, or is renewed, by a time that is shorter.
const SEVERAL_LEASES: Duration = Duration::from_millis(3000);

async fn fill_memory(server: &ServerProcess) {
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
}

#[tokio::test]
async fn full_server_renews_locks_of_all_modes() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let held = [
        store.lock("alone").lease(LEASE).acquire().await.expect("it is free"),
        store.lock("shared").shared().lease(LEASE).acquire().await.expect("it is free"),
        store.lock("permits").permits(2).lease(LEASE).acquire().await.expect("it is free"),
    ];
    fill_memory(&server).await;
    store.lock("other").acquire().await.expect_err("there is no room");
    tokio::time::sleep(SEVERAL_LEASES).await;
    for guard in held {
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

/// The worker has room for another one, so it looks again and again while the task runs.
#[tokio::test]
async fn full_server_completes_running_task_once() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    let (begun, has_begun) = oneshot::channel();
    let begun = parking_lot::Mutex::new(Some(begun));
    let worker = queue.worker(move |_: Task<u32>| {
        // A second run has nobody to tell.
        let tell = begun.lock().take();
        async move {
            tell.expect("it runs once").send(()).expect("somebody waits");
            tokio::time::sleep(SEVERAL_LEASES).await;
            Ok::<(), io::Error>(())
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = worker.concurrency(2).lease(LEASE);
    let worker = crate::store::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    queue.push(&1).await.expect("there is room");
    wait_for("the task to begin", has_begun).await.expect("it began");
    fill_memory(&server).await;
    wait_until("the task to end", async || {
        queue.stats().await.is_ok_and(|stats| stats.done + stats.dead + stats.crashed > 0)
    })
    .await;
    let stats = queue.stats().await.expect("it is there");
    assert_eq!((stats.done, stats.crashed, stats.dead, stats.running), (1, 0, 0, 0));
    drop(stop);
    wait_for("the worker to stop", worker).await.expect("it ends");
}

/// What an operator does about it.
#[tokio::test]
async fn full_server_pauses_and_resumes_queues() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    queue.push(&1).await.expect("there is room");
    fill_memory(&server).await;
    queue.pause().await.expect("it takes no room");
    assert!(queue.stats().await.expect("it is there").paused);
    queue.resume().await.expect("it takes no room");
    for paused in [true, false] {
        store.backend().set_jobs_paused(paused).await.expect("it takes no room");
        assert_eq!(store.backend().are_jobs_paused().await.expect("it is there"), paused);
    }
}

/// Of a request that waits to its end, and of one that is not to run any more.
#[tokio::test]
async fn full_server_runs_and_cancels_accepted_jobs() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("7");
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(enqueue_job(&store, &key).await);
    }
    fill_memory(&server).await;
    let backend = store.backend();
    let beat = backend.heartbeat(store.node().clone(), 10 * SECOND).await.expect("it lives");
    assert!(beat.own_shards.contains(&key.shard()));
    let (me, id) = (LockToken::new(store.node()), jobs[0].clone());
    let claim = ClaimCommand { key, id, token: me, lease: 10 * SECOND, retention: 60 * SECOND };
    let claimed = backend.claim(claim.clone()).await.expect("it runs");
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    let cancelled = backend.cancel_waiting_job(jobs[1].clone(), 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it takes no room"), Some(JobState::Cancelled));
    let settled = backend.settle(settle_command(&store, &claim)).await.expect("it ends");
    let SettleOutcome::Settled(Some(next)) = settled else { panic!("{settled:?}") };
    assert_eq!(next.id, jobs[2]);
    assert!(backend.heartbeat(store.node().clone(), Duration::ZERO).await.is_ok(), "it leaves");
}

/// It has run: a retry is to be told of that.
#[tokio::test]
async fn full_server_records_response_of_direct_run() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let call = acquire_for_run(&store).await;
    store.backend().begin_direct(call.clone()).await.expect("there is room");
    fill_memory(&server).await;
    let id = call.id.clone();
    let ended = store.backend().finish_direct(call, Some("answer".into())).await;
    assert!(ended.expect("it is written down"));
    let job = store.backend().job_view(id).await.expect("it is there").expect("it is kept");
    assert_eq!(job.state, JobState::Done);
}

/// Those who are called may be slow, and what ends behind them makes room.
#[tokio::test]
async fn full_server_finds_due_locks_behind_webhooks() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("7");
    let _ = enqueue_job(&store, &key).await;
    let names = server.remaining_keys().await;
    let due = names.iter().find(|name| name.ends_with("}:due")).expect("it waits");
    for n in 0..20 {
        server.command(&["ZADD", due, &n.to_string(), &format!("cb:{n}")]).await;
    }
    fill_memory(&server).await;
    let mut found = Vec::new();
    for _ in 0..3 {
        let looked =
            store.backend().poll_due(vec![key.shard()], 10).await.expect("it takes no room");
        found.extend(looked.into_iter().flat_map(|due| due.locks).map(|(name, _)| name));
    }
    assert!(found.contains(&key), "{found:?}");
}

/// It is all that a worker says, so it could end nothing else either.
#[tokio::test]
async fn full_server_reports_lost_runs_of_late_settlements() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    for n in 0..2 {
        queue.push(&n).await.expect("there is room");
    }
    let graves = DeadLetterLimits {
        retention: 60 * SECOND,
        max_count: 100,
        max_bytes: 1 << 20,
        max_crashes: 9,
    };
    let take = async |worker: &str, number, ends| {
        let (node, worker, lease) = (store.node().clone(), worker.into(), SECOND / 20);
        let (queue, limits, want) = (Key::from("numbers"), TaskRunLimits::default(), 2);
        let (idle, listed) = (8 * SECOND, false);
        let turn = TaskPollCommand {
            queue,
            node,
            worker,
            poll_number: number,
            max_runs: want,
            lease,
            limits,
            idle_timeout: idle,
            can_stay_idle: listed,
            dead_letter_limits: graves,
            settlements: ends,
        };
        store.backend().poll_tasks(turn).await.expect("it is answered")
    };
    let first = take("a", 1, Vec::new()).await.started;
    let (mut number, mut others) = (0, 0);
    while others < first.len() {
        number += 1;
        others += take("b", number, Vec::new()).await.started.len();
        tokio::time::sleep(SECOND / 100).await;
    }
    fill_memory(&server).await;
    let ends = first.into_iter().map(|run| {
        let (bytes, by) = (run.record.len() as u64, "a.1".into());
        let run = RunToken { id: run.id, owner: by };
        TaskSettlement { run, record_bytes: bytes, unique_key: None, outcome: TaskOutcome::Done }
    });
    assert_eq!(take("a", 2, ends.collect()).await.settled, [false, false]);
}

/// In a cluster a script for each shard does what one does on a single server.
#[tokio::test]
async fn full_server_releases_shards_of_leaving_worker() {
    let server = ServerProcess::start().await;
    let code = include_str!("../../lua/cluster_shard_watch_lease.lua");
    let watch = async |verb: &str, ms: &str| -> (String, u32) {
        let keys = ["watch", "due", "late", "exp"];
        let words = [&["EVAL", code, "4"][..], &keys, &["0a0b", verb, ms]].concat();
        server.query(&words).await
    };
    assert_eq!(watch("keep", "60000").await.0, "mine");
    fill_memory(&server).await;
    assert_eq!(watch("keep", "60000").await.0, "mine");
    assert_eq!(watch("leave", "5000").await.0, "free");
    assert_eq!(watch("keep", "60000").await.0, "mine");
    assert_eq!(watch("leave", "0").await.0, "free");
}
