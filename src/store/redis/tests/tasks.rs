//! Queues of tasks over a server that forgets and a network that loses.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{proxy::Proxy, server::Server};
use crate::{
    queue::{Queue, QueueWorker, Task},
    store::Store,
};

/// How often each payload was run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<BTreeMap<u32, u32>>>);

impl Runs {
    fn worker(&self, store: &Store, takes: Duration) -> QueueWorker {
        let runs = self.clone();
        queue(store).worker(move |task: Task<u32>| {
            *runs.0.lock().entry(task.payload).or_default() += 1;
            async move {
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                Ok::<(), std::io::Error>(())
            }
        })
    }

    fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// All that were run twice or more.
    fn again(&self) -> usize {
        self.0.lock().values().filter(|times| **times > 1).count()
    }
}

fn queue(store: &Store) -> Queue<u32> {
    store.queue("numbers")
}

/// A worker, and how it is told to stop.
fn start(worker: QueueWorker) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let task = crate::store::spawn(worker.run(async {
        let _ = stopped.await;
    }));
    (stop, task)
}

async fn until_done(store: &Store, tasks: u64) {
    for _ in 0..6000 {
        let stats = queue(store).stats().await;
        if stats.is_ok_and(|stats| stats.done + stats.dead >= tasks) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", queue(store).stats().await);
}

/// Nothing is left but numbers, and what has a TTL.
async fn nothing_is_left(server: &Server) {
    for key in server.left().await {
        let kind = key.split("}:").nth(1).unwrap_or_default().split(':').next().unwrap_or_default();
        let ttl: i64 = server.ask(&["PTTL", &key]).await;
        assert!(kind == "zf" || ttl > 0, "{key} is left behind");
    }
}

/// The worker has ended each task long before its push is sent again: it must not be stored once more.
#[tokio::test]
async fn pushes_whose_replies_are_lost_are_stored_once() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (pushing, working) = (proxy.patient_store().await, server.patient_store().await);
    let runs = Runs::default();
    let (stop, worker) = start(runs.worker(&working, Duration::ZERO));
    for n in 0..40 {
        proxy.cut(usize::from(n % 2 == 0));
        queue(&pushing).push(&n).await.unwrap();
        assert_eq!(proxy.cuts_left(), 0);
    }
    let many = (40..240).map(|n| {
        let pushing = pushing.clone();
        async move { queue(&pushing).push(&n).await.unwrap() }
    });
    proxy.cut(2);
    futures_util::future::join_all(many).await;
    until_done(&working, 240).await;
    stop.send(()).unwrap();
    worker.await.unwrap();
    let stats = queue(&working).stats().await.unwrap();
    assert_eq!((stats.pushed, stats.done, runs.len(), runs.again()), (240, 240, 240, 0));
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn turns_whose_replies_are_lost_run_nothing_twice() {
    let server = Server::start().await;
    let proxy = Proxy::to(server.port()).await;
    let (pushing, working) = (server.patient_store().await, proxy.patient_store().await);
    let runs = Runs::default();
    let (stop, worker) = start(runs.worker(&working, Duration::from_millis(1)).concurrency(5));
    for n in 0..300 {
        queue(&pushing).push(&n).await.unwrap();
        if n % 10 == 0 {
            proxy.cut(1);
        }
    }
    until_done(&pushing, 300).await;
    proxy.cut(0);
    stop.send(()).unwrap();
    worker.await.unwrap();
    let stats = queue(&pushing).stats().await.unwrap();
    assert_eq!((stats.done, stats.crashed, stats.failed, runs.again()), (300, 0, 0, 0));
    nothing_is_left(&server).await;
}

#[tokio::test]
async fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let server = Server::start().await;
    let store = server.patient_store().await;
    let runs = Runs::default();
    let (stop, worker) = start(runs.worker(&store, Duration::ZERO));
    for n in 0..100 {
        if n % 7 == 0 {
            server.command(&["SCRIPT", "FLUSH"]).await;
        }
        queue(&store).push(&n).await.unwrap();
    }
    until_done(&store, 100).await;
    stop.send(()).unwrap();
    worker.await.unwrap();
    let missed = server.info("errorstats", "errorstat_NOSCRIPT:count").await;
    assert!(missed > 30, "{missed} scripts were missed");
    assert_eq!((runs.len(), runs.again()), (100, 0));
}

#[tokio::test]
async fn a_long_backlog_is_worked_off_by_two() {
    const TASKS: u32 = 5_000;
    let server = Server::start().await;
    let store = server.patient_store().await;
    let pushes = (0..50).map(|part| {
        let queue = queue(&store);
        crate::store::spawn(async move {
            for n in 0..TASKS / 50 {
                queue.push(&(part * (TASKS / 50) + n)).await.unwrap();
            }
        })
    });
    futures_util::future::try_join_all(pushes).await.unwrap();
    let runs = Runs::default();
    let other = store.as_another_process();
    let workers =
        [&store, &other].map(|store| start(runs.worker(store, Duration::ZERO).concurrency(150)));
    until_done(&store, TASKS.into()).await;
    for (stop, worker) in workers {
        stop.send(()).unwrap();
        worker.await.unwrap();
    }
    assert_eq!((runs.len(), runs.again()), (TASKS as usize, 0));
    nothing_is_left(&server).await;
}
