//! Crashes, lost answers, shutdowns.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::{Log, SECOND, Working, obedient, push, queue, settled, state};
use crate::{
    queue::{Queue, QueueWorker, Task, TaskFailure, TaskState, queue_worker_loop::QueueWorkerLoop},
    store::{Fault, Store, faulty},
};

#[tokio::test(start_paused = true)]
async fn a_long_run_is_renewed() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    let workers =
        [(); 2].map(|()| Working::start(obedient(&self::queue(&store.as_another_process()), &log)));
    push(&queue, "sleep 300000").await;
    tokio::time::sleep(SECOND * 310).await;
    assert_eq!(log.attempts(), [1]);
    assert_eq!(queue.stats().await.unwrap().done, 1);
    for worker in workers {
        worker.stop().await;
    }
}

/// A worker whose runs take a minute, and what is gone when the future of the first is.
fn of_a_minute(queue: &Queue<String>, log: &Log) -> (QueueWorker, Weak<()>) {
    let held = Arc::new(());
    let (seen, held, log) = (Arc::downgrade(&held), Mutex::new(Some(held)), log.clone());
    let worker = queue.worker(move |task: Task<String>| {
        log.note(&task);
        let held = held.lock().take();
        async move {
            tokio::time::sleep(SECOND * 60).await;
            drop(held);
            Ok::<(), TaskFailure>(())
        }
    });
    (worker, seen)
}

#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_be_renewed_is_cancelled_in_time() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    let (worker, seen) = of_a_minute(&queue, &log);
    push(&queue, "x").await;
    let worker = Working::start(worker);
    settled().await;
    faults.set("renew_runs", Fault::Away, 1000);
    tokio::time::sleep(SECOND * 9).await;
    assert!(seen.upgrade().is_some(), "it still runs");
    tokio::time::sleep(SECOND).await;
    assert!(seen.upgrade().is_none(), "its future is dropped");
    faults.set("renew_runs", Fault::Away, 0);
    tokio::time::sleep(SECOND * 90).await;
    assert_eq!(log.attempts(), [1, 2]);
    worker.stop().await;
}

/// Its lease ends whether or not anybody says so.
#[tokio::test(start_paused = true)]
async fn a_run_whose_renewal_hangs_is_cancelled_in_time() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    push(&queue, "sleep 60000").await;
    let mut worker = QueueWorkerLoop::new(obedient(&queue, &log));
    faults.set("renew_runs", Fault::Silence, 1);
    let began = tokio::time::Instant::now();
    let works = async {
        while log.payloads().is_empty() || !worker.running.is_empty() {
            worker.step().await;
        }
    };
    let _ = tokio::time::timeout(SECOND * 30, works).await;
    assert_eq!(log.attempts(), [1]);
    assert!(began.elapsed() <= SECOND * 10, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_runs_stops_soon_whatever_became_of_the_store() {
    let (store, faults) = faulty();
    let worker = obedient(&queue(&store), &Log::default()).drain_timeout(Duration::MAX);
    let worker = Working::start(worker);
    settled().await;
    faults.set("still_idle", Fault::Away, usize::MAX);
    faults.set("turn", Fault::Away, usize::MAX);
    tokio::time::sleep(SECOND * 6).await;
    let began = tokio::time::Instant::now();
    worker.stop().await;
    assert!(began.elapsed() <= SECOND * 3, "{:?}", began.elapsed());
}

/// What a turn has begun whose answer is lost is handed back all the same, if the store is there again in time.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_turn_that_may_have_begun_something() {
    let (store, faults) = faulty();
    let queue = queue(&store).once();
    let worker = Working::start(obedient(&queue, &Log::default()));
    settled().await;
    faults.set("turn", Fault::NoReply, 5);
    let id = push(&queue, "x").await;
    settled().await;
    assert_eq!(queue.stats().await.unwrap().running, 1, "nobody knows of it");
    worker.stop().await;
    assert_eq!(faults.left("turn"), 0);
    assert_eq!(state(&queue, &id).await, Some(TaskState::Waiting));
    assert_eq!(queue.stats().await.unwrap().crashed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_runs_end() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store);
    push(&queue, "sleep 5000").await;
    let worker = Working::start(obedient(&queue, &log));
    settled().await;
    let began = tokio::time::Instant::now();
    push(&queue, "left").await;
    settled().await;
    worker.stop().await;
    assert!(began.elapsed() < SECOND * 6);
    assert_eq!(queue.stats().await.unwrap().done, 2);
    push(&queue, "not any more").await;
    settled().await;
    assert_eq!(log.payloads().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_in_time_is_handed_back_uncharged() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store).max_attempts(1);
    let id = push(&queue, "sleep 60000").await;
    let worker = Working::start(obedient(&queue, &log).drain_timeout(SECOND * 3));
    settled().await;
    let began = tokio::time::Instant::now();
    worker.stop().await;
    assert!(began.elapsed() < SECOND * 4);
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts), (TaskState::Waiting, 0));
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(SECOND * 61).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1, 1]);
    assert_eq!(queue.stats().await.unwrap().done, 1);
}

/// The turn under way is waited for without them: by then they may be somebody else's.
#[tokio::test(start_paused = true)]
async fn the_last_wait_of_a_drain_keeps_no_run_beyond_its_lease() {
    let (store, faults) = faulty();
    let (queue, log) = (queue(&store), Log::default());
    let (worker, seen) = of_a_minute(&queue, &log);
    push(&queue, "x").await;
    let worker = Working::start(worker.lease(SECOND).drain_timeout(Duration::ZERO));
    settled().await;
    faults.set("turn", Fault::Away, usize::MAX);
    faults.set("renew_runs", Fault::Away, usize::MAX);
    push(&queue, "y").await;
    settled().await;
    assert!(seen.upgrade().is_some(), "it runs");
    let began = tokio::time::Instant::now();
    let stopping = crate::store::spawn(worker.stop());
    tokio::time::sleep(SECOND).await;
    assert!(seen.upgrade().is_none(), "its future is dropped");
    stopping.await.unwrap();
    assert!(began.elapsed() < SECOND * 3, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_may_run_once_is_a_dead_letter_when_it_is_cut_off_by_a_shutdown() {
    let (store, log) = (Store::memory(), Log::default());
    let queue = queue(&store).once();
    let id = push(&queue, "sleep 60000").await;
    let worker = Working::start(obedient(&queue, &log).drain_timeout(SECOND * 3));
    settled().await;
    worker.stop().await;
    let worker = Working::start(obedient(&queue, &log));
    tokio::time::sleep(SECOND * 61).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1]);
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts), (TaskState::Dead, 1));
    assert_eq!(info.history[0].reason, "drained, may have run");
}
