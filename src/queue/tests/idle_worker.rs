//! Polls and starts of idle workers.

use std::time::Duration;

use futures_util::FutureExt as _;

use super::{
    SECOND, SpawnedQueueWorker, TaskRunLog, push_text, scripted_worker, text_queue, wait_until_idle,
};
use crate::{
    queue::queue_worker_loop::QueueWorkerLoop,
    store::{BackendFault, Store, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn delayed_task_starts_at_its_due_time() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let workers = [(); 3].map(|()| {
        SpawnedQueueWorker::start(scripted_worker(&text_queue(&store.as_another_process()), &log))
    });
    wait_until_idle().await;
    let began = tokio::time::Instant::now();
    for (payload, ms) in [("c", 61_500), ("a", 1_000), ("b", 7_250)] {
        queue.push(&payload.to_owned()).delay(Duration::from_millis(ms)).await.unwrap();
    }
    tokio::time::sleep(SECOND * 70).await;
    assert_eq!(log.payloads(), ["a", "b", "c"]);
    for (at, ms) in log.start_times().into_iter().zip([1_000, 7_250, 61_500]) {
        let (late, due) = (at - began, Duration::from_millis(ms));
        assert!(late >= due && late <= due + Duration::from_millis(3), "{late:?} for {due:?}");
    }
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_worker_checks_every_five_seconds_and_rarely_polls() {
    let (store, faults) = faulty_store();
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &TaskRunLog::default()));
    wait_until_idle().await;
    let call_counts = || ["turn", "still_idle"].map(|operation| faults.call_count(operation));
    let before = call_counts();
    tokio::time::sleep(SECOND * 1201).await;
    let [polls, checks] = [0, 1].map(|which| call_counts()[which] - before[which]);
    assert_eq!((polls, checks), (10, 230), "in twenty minutes");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failed_idle_check_is_followed_by_a_poll() {
    let (store, faults) = faulty_store();
    let worker =
        SpawnedQueueWorker::start(scripted_worker(&text_queue(&store), &TaskRunLog::default()));
    tokio::time::sleep(SECOND * 12).await;
    let before = faults.call_count("turn");
    for fault in [BackendFault::Unavailable, BackendFault::ReplyTimeout] {
        faults.set("still_idle", fault, 1);
        // The task poll that follows the failed check is not followed by another check at once.
        tokio::time::sleep(SECOND * 10).await;
    }
    assert_eq!((faults.remaining("still_idle"), faults.call_count("turn") - before), (0, 2));
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn task_with_a_lost_wakeup_starts_at_the_next_idle_check() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let mut worker = QueueWorkerLoop::new(scripted_worker(&queue, &log));
    let run_loop = async |worker: &mut QueueWorkerLoop, time| {
        let run_loop = async {
            while log.payloads().is_empty() {
                worker.step().await;
            }
        };
        let _ = tokio::time::timeout(time, run_loop).await;
    };
    run_loop(&mut worker, SECOND * 101).await;
    push_text(&queue, "x").await;
    assert!(worker.wakeup.notified().now_or_never().is_some(), "the push woke the worker");
    run_loop(&mut worker, SECOND * 5).await;
    assert_eq!(log.payloads(), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn long_idle_worker_starts_a_task_at_once() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    tokio::time::sleep(SECOND * 101).await;
    let began = tokio::time::Instant::now();
    push_text(&queue, "x").await;
    wait_until_idle().await;
    assert_eq!(log.payloads(), ["x"]);
    assert!(began.elapsed() < SECOND / 10, "after {:?}", began.elapsed());
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn busy_worker_polls_once_per_task() {
    let (store, faults) = faulty_store();
    let (queue, log) = (text_queue(&store), TaskRunLog::default());
    for _ in 0..50 {
        push_text(&queue, "x").await;
    }
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log).concurrency(1));
    wait_until_idle().await;
    assert_eq!(log.payloads().len(), 50);
    // One poll for each task, and a last one that finds the queue empty.
    assert_eq!(faults.call_count("turn"), 51);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_beyond_one_workers_concurrency_run_at_the_next() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let workers = [(); 3].map(|()| {
        let own = text_queue(&store.as_another_process());
        SpawnedQueueWorker::start(scripted_worker(&own, &log).concurrency(2))
    });
    wait_until_idle().await;
    for _ in 0..6 {
        push_text(&queue, "sleep 1000").await;
    }
    wait_until_idle().await;
    assert_eq!(log.payloads().len(), 6, "all at once");
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn task_starts_keep_the_queue_rate() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let workers = [(); 2].map(|()| {
        let own = text_queue(&store.as_another_process());
        SpawnedQueueWorker::start(scripted_worker(&own, &log).queue_rate(10, SECOND * 10))
    });
    wait_until_idle().await;
    for _ in 0..40 {
        push_text(&queue, "x").await;
    }
    tokio::time::sleep(SECOND * 40).await;
    let times = log.start_times();
    assert_eq!(times.len(), 40);
    for (first, later) in times.iter().zip(&times[10..]) {
        // Ten start at once, and then one in every second.
        assert!(*later - *first >= SECOND - Duration::from_millis(1), "{times:?}");
    }
    let took = times[39] - times[0];
    assert!(took >= SECOND * 30 && took < SECOND * 31, "{took:?}");
    for worker in workers {
        worker.stop().await;
    }
}

/// Tasks beyond the size limit of one reply are claimed by further polls at once.
#[tokio::test(start_paused = true)]
async fn tasks_beyond_one_reply_size_are_claimed_at_once() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).payload_limit(2 << 20);
    for n in 0..9 {
        push_text(&queue, &format!("{n}{}", "x".repeat(1 << 20))).await;
    }
    let run_log = log.clone();
    let worker = queue.worker(move |task| {
        run_log.record(&task);
        async {
            tokio::time::sleep(SECOND * 60).await;
            Ok::<(), super::TaskFailure>(())
        }
    });
    let worker = SpawnedQueueWorker::start(worker.concurrency(100).drain_timeout(SECOND));
    wait_until_idle().await;
    assert_eq!(log.payloads().len(), 9);
    worker.stop().await;
}
