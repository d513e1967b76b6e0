//! A server without free memory (`noeviction`, as recommended) refuses calls that need some.
//! Existing locks, runs and jobs go on and end: that needs no memory, or frees some.

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

/// Longer than [`LEASE`]: without renewals, a lease ends within it.
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
    store.lock("other").acquire().await.expect_err("the memory is full");
    tokio::time::sleep(SEVERAL_LEASES).await;
    for guard in held {
        assert_eq!(guard.release().await, ReleaseStatus::Released);
    }
}

/// The worker has a free run slot, so it polls repeatedly while the task runs.
#[tokio::test]
async fn full_server_completes_running_task_once() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    let (started, has_started) = oneshot::channel();
    let started = parking_lot::Mutex::new(Some(started));
    let worker = queue.worker(move |_: Task<u32>| {
        // A second run finds no sender, and fails.
        let signal = started.lock().take();
        async move {
            signal.expect("it runs once").send(()).expect("the test waits for the start");
            tokio::time::sleep(SEVERAL_LEASES).await;
            Ok::<(), io::Error>(())
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = worker.concurrency(2).lease(LEASE);
    let worker = crate::store::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    queue.push(&1).await.expect("the memory is not full");
    wait_for("the task to begin", has_started).await.expect("it began");
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

/// Operators pause queues on a full server.
#[tokio::test]
async fn full_server_pauses_and_resumes_queues() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    queue.push(&1).await.expect("the memory is not full");
    fill_memory(&server).await;
    queue.pause().await.expect("it needs no memory");
    assert!(queue.stats().await.expect("it is there").paused);
    queue.resume().await.expect("it needs no memory");
    for paused in [true, false] {
        store.backend().set_jobs_paused(paused).await.expect("it needs no memory");
        assert_eq!(store.backend().are_jobs_paused().await.expect("it is there"), paused);
    }
}

/// One job runs to its end, and another is cancelled.
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
    let heartbeat = backend.heartbeat(store.node().clone(), 10 * SECOND).await.expect("it lives");
    assert!(heartbeat.own_shards.contains(&key.shard()));
    let (token, id) = (LockToken::new(store.node()), jobs[0].clone());
    let claim = ClaimCommand { key, id, token, lease: 10 * SECOND, retention: 60 * SECOND };
    let claimed = backend.claim(claim.clone()).await.expect("it runs");
    assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
    let cancelled = backend.cancel_waiting_job(jobs[1].clone(), 0, 60 * SECOND).await;
    assert_eq!(cancelled.expect("it needs no memory"), Some(JobState::Cancelled));
    let settled = backend.settle(settle_command(&store, &claim)).await.expect("it ends");
    let SettleOutcome::Settled(Some(next)) = settled else { panic!("{settled:?}") };
    assert_eq!(next.id, jobs[2]);
    assert!(backend.heartbeat(store.node().clone(), Duration::ZERO).await.is_ok(), "it leaves");
}

/// The request has run, so a retry must get its response.
#[tokio::test]
async fn full_server_records_response_of_direct_run() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let call = acquire_for_run(&store).await;
    store.backend().begin_direct(call.clone()).await.expect("the memory is not full");
    fill_memory(&server).await;
    let id = call.id.clone();
    let finished = store.backend().finish_direct(call, Some("answer".into())).await;
    assert!(finished.expect("it is written down"));
    let job = store.backend().job_view(id).await.expect("it is there").expect("it is stored");
    assert_eq!(job.state, JobState::Done);
}

/// Webhook receivers may be slow, and jobs behind them free memory when they end.
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
        let polled =
            store.backend().poll_due(vec![key.shard()], 10).await.expect("it needs no memory");
        found.extend(polled.into_iter().flat_map(|due| due.locks).map(|(name, _)| name));
    }
    assert!(found.contains(&key), "{found:?}");
}

/// A worker has no other call, so it could settle no other run either.
#[tokio::test]
async fn full_server_reports_lost_runs_of_late_settlements() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let queue: Queue<u32> = store.queue("numbers");
    for n in 0..2 {
        queue.push(&n).await.expect("the memory is not full");
    }
    let dead_letter_limits = DeadLetterLimits {
        retention: 60 * SECOND,
        max_count: 100,
        max_bytes: 1 << 20,
        max_crashes: 9,
    };
    let poll = async |worker: &str, poll_number, settlements| {
        let command = TaskPollCommand {
            queue: Key::from("numbers"),
            node: store.node().clone(),
            worker: worker.into(),
            poll_number,
            max_runs: 2,
            lease: SECOND / 20,
            limits: TaskRunLimits::default(),
            idle_timeout: 8 * SECOND,
            can_stay_idle: false,
            dead_letter_limits,
            settlements,
        };
        store.backend().poll_tasks(command).await.expect("it is answered")
    };
    let first = poll("a", 1, Vec::new()).await.started;
    let (mut number, mut others) = (0, 0);
    while others < first.len() {
        number += 1;
        others += poll("b", number, Vec::new()).await.started.len();
        tokio::time::sleep(SECOND / 100).await;
    }
    fill_memory(&server).await;
    let settlements = first.into_iter().map(|run| {
        let record_bytes = run.record.len() as u64;
        let run = RunToken { id: run.id, owner: "a.1".into() };
        TaskSettlement { run, record_bytes, unique_key: None, outcome: TaskOutcome::Done }
    });
    assert_eq!(poll("a", 2, settlements.collect()).await.settled, [false, false]);
}

/// In a cluster, a script for each shard replaces the script of a single server.
#[tokio::test]
async fn full_server_releases_shards_of_leaving_worker() {
    let server = ServerProcess::start().await;
    let code = include_str!("../../lua/cluster_shard_watch_lease.lua");
    let watch = async |action: &str, ms: &str| -> (String, u32) {
        let keys = ["watch", "due", "late", "exp"];
        let command = [&["EVAL", code, "4"][..], &keys, &["0a0b", action, ms]].concat();
        server.query(&command).await
    };
    assert_eq!(watch("assign", "60000").await.0, "this_node");
    fill_memory(&server).await;
    assert_eq!(watch("assign", "60000").await.0, "this_node");
    assert_eq!(watch("vacate", "5000").await.0, "released");
    assert_eq!(watch("assign", "60000").await.0, "this_node");
    assert_eq!(watch("vacate", "0").await.0, "released");
}
