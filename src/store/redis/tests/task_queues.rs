//! Task queues on a server that loses scripts, over a network that loses replies.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{lossy_proxy::LossyProxy, server_process::ServerProcess, wait_until};
use crate::{
    queue::{Queue, QueueWorker, Task},
    store::Store,
};

/// Number of runs of each payload.
#[derive(Clone, Default)]
struct RunCounts(Arc<Mutex<BTreeMap<u32, u32>>>);

impl RunCounts {
    fn counting_worker(&self, store: &Store, run_time: Duration) -> QueueWorker {
        let runs = self.clone();
        numbers_queue(store).worker(move |task: Task<u32>| {
            *runs.0.lock().entry(task.payload).or_default() += 1;
            async move {
                if !run_time.is_zero() {
                    tokio::time::sleep(run_time).await;
                }
                Ok::<(), std::io::Error>(())
            }
        })
    }

    fn task_count(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the number of payloads that were run twice or more.
    fn count_repeated(&self) -> usize {
        self.0.lock().values().filter(|times| **times > 1).count()
    }
}

fn numbers_queue(store: &Store) -> Queue<u32> {
    store.queue("numbers")
}

/// Starts a worker. Returns its stop signal and its task.
fn start_worker(worker: QueueWorker) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let task = crate::store::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    (stop, task)
}

async fn wait_until_done(store: &Store, tasks: u64) {
    for _ in 0..6000 {
        let stats = numbers_queue(store).stats().await;
        if stats.is_ok_and(|stats| stats.done + stats.dead >= tasks) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", numbers_queue(store).stats().await);
}

/// Asserts that nothing is left but counters, the names of queues, and keys with a TTL.
async fn assert_only_expiring_keys_left(server: &ServerProcess) {
    for key in server.remaining_keys().await {
        let kind = key.split("}:").nth(1).unwrap_or_default().split(':').next().unwrap_or_default();
        let ttl: i64 = server.query(&["PTTL", &key]).await;
        assert!(matches!(kind, "zf" | "queues") || ttl > 0, "{key} is left behind");
    }
}

/// Each task has ended long before its push is sent again. It must not be stored once more.
#[tokio::test]
async fn push_with_lost_reply_is_stored_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (pushing, working) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let runs = RunCounts::default();
    let (stop, worker) = start_worker(runs.counting_worker(&working, Duration::ZERO));
    for n in 0..40 {
        proxy.lose_next_replies(usize::from(n % 2 == 0));
        numbers_queue(&pushing).push(&n).await.unwrap();
        assert_eq!(proxy.pending_cuts(), 0);
    }
    let many = (40..240).map(|n| {
        let pushing = pushing.clone();
        async move { numbers_queue(&pushing).push(&n).await.unwrap() }
    });
    proxy.lose_next_replies(2);
    futures_util::future::join_all(many).await;
    wait_until_done(&working, 240).await;
    stop.send(()).unwrap();
    worker.await.unwrap();
    let stats = numbers_queue(&working).stats().await.unwrap();
    assert_eq!(
        (stats.pushed, stats.done, runs.task_count(), runs.count_repeated()),
        (240, 240, 240, 0)
    );
    assert_only_expiring_keys_left(&server).await;
}

#[tokio::test]
async fn poll_with_lost_reply_runs_no_task_twice() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (pushing, working) =
        (server.store_with_long_timeout().await, proxy.store_with_long_timeout().await);
    let runs = RunCounts::default();
    let (stop, worker) =
        start_worker(runs.counting_worker(&working, Duration::from_millis(1)).concurrency(5));
    for n in 0..300 {
        numbers_queue(&pushing).push(&n).await.unwrap();
        if n % 10 == 0 {
            proxy.lose_next_replies(1);
        }
    }
    wait_until_done(&pushing, 300).await;
    proxy.lose_next_replies(0);
    stop.send(()).unwrap();
    worker.await.unwrap();
    let stats = numbers_queue(&pushing).stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.failed, runs.count_repeated()), (300, 0, 0, 0));
    assert_only_expiring_keys_left(&server).await;
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let runs = RunCounts::default();
    let (stop, worker) = start_worker(runs.counting_worker(&store, Duration::ZERO));
    for n in 0..100 {
        if n % 7 == 0 {
            server.command(&["SCRIPT", "FLUSH"]).await;
        }
        numbers_queue(&store).push(&n).await.unwrap();
    }
    wait_until_done(&store, 100).await;
    stop.send(()).unwrap();
    worker.await.unwrap();
    let missed = server.info_number("errorstats", "errorstat_NOSCRIPT:count").await;
    assert!(missed > 30, "{missed} scripts were missed");
    assert_eq!((runs.task_count(), runs.count_repeated()), (100, 0));
}

#[tokio::test]
async fn two_workers_run_long_backlog_once() {
    const TASKS: u32 = 5_000;
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let pushes = (0..50).map(|chunk| {
        let queue = numbers_queue(&store);
        crate::store::spawn(async move {
            for n in 0..TASKS / 50 {
                queue.push(&(chunk * (TASKS / 50) + n)).await.unwrap();
            }
        })
    });
    futures_util::future::try_join_all(pushes).await.unwrap();
    let runs = RunCounts::default();
    let other = store.as_another_process();
    let workers = [&store, &other]
        .map(|store| start_worker(runs.counting_worker(store, Duration::ZERO).concurrency(150)));
    wait_until_done(&store, TASKS.into()).await;
    for (stop, worker) in workers {
        stop.send(()).unwrap();
        worker.await.unwrap();
    }
    assert_eq!((runs.task_count(), runs.count_repeated()), (TASKS as usize, 0));
    assert_only_expiring_keys_left(&server).await;
}

/// The worker is idle, nothing is pushed, and the connections stay.
#[tokio::test]
async fn queue_of_a_worker_is_listed_again_after_a_flush() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let (stop, worker) = start_worker(RunCounts::default().counting_worker(&store, Duration::ZERO));
    let is_listed = async || {
        store.queues().await.expect("it is there").iter().any(|queue| queue.name == "numbers")
    };
    wait_until("the queue to be listed", is_listed).await;
    server.command(&["FLUSHALL"]).await;
    wait_until("the queue to be listed again", is_listed).await;
    drop(stop);
    worker.await.expect("it ends");
}
