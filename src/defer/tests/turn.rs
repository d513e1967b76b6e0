//! Whose turn it is where deferred and live requests wait for one lock.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use tokio::task::JoinHandle;

use super::{Function, SECOND, Working, answered, ended, key_of, put_off, settled};
use crate::{
    defer::DeferWorker,
    lock::LockRequest,
    store::{Fault, JobState, Store, faulty},
};

const MS: Duration = Duration::from_millis(1);

/// Who had the lock, in this order.
type Log = Arc<Mutex<Vec<&'static str>>>;

/// A worker of another process that writes down its runs.
async fn working(store: &Store, log: &Log) -> Working {
    let runs = Arc::clone(log);
    let routes = Function::new(move |head, marker| {
        marker.pass(&key_of(&head.target));
        runs.lock().push("job");
        async { answered(200) }
    });
    let worker = Working::with(DeferWorker::new(&store.as_another_process(), routes));
    settled().await;
    worker
}

/// It is in line when this returns.
async fn waits(request: LockRequest, name: &'static str, log: &Log) -> JoinHandle<()> {
    let log = Arc::clone(log);
    let task = crate::store::spawn(async move {
        let _guard = request.wait(60 * SECOND).acquire().await.expect("served in time");
        log.lock().push(name);
        tokio::time::sleep(MS / 10).await;
    });
    tokio::time::sleep(MS).await;
    task
}

fn lasting(store: &Store) -> LockRequest {
    store.lock("x").handover_limits(16, 60 * SECOND)
}

/// A lock that is handed on within its process passes places of others, but no job that came first.
#[tokio::test(start_paused = true)]
async fn those_who_came_after_a_job_have_the_lock_after_it() {
    let (store, log) = (Store::memory(), Log::default());
    let worker = working(&store, &log).await;
    let held = lasting(&store).acquire().await.expect("it is free");
    let mut tasks = vec![waits(lasting(&store), "before", &log).await];
    let id = put_off(&store, "/x").await;
    tokio::time::sleep(MS).await;
    for name in ["after", "at the end"] {
        tasks.push(waits(lasting(&store), name, &log).await);
    }
    held.release().await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*log.lock(), ["before", "job", "after", "at the end"]);
    assert_eq!(ended(&store, &id).await, JobState::Done);
    worker.stop().await;
}

/// The message may overtake the answer.
#[tokio::test(start_paused = true)]
async fn a_job_that_joins_before_the_first_grant_is_answered_is_not_passed() {
    // Asked for with a wait, and without one: then nobody of this process has a line.
    for wait in [SECOND, Duration::ZERO] {
        let ((store, faults), log) = (faulty(), Log::default());
        let worker = working(&store, &log).await;
        // A waiter of another lock has subscribed the process to those that join.
        let held = store.lock("z").acquire().await.unwrap();
        store.lock("z").wait(MS).acquire().await.unwrap_err();
        drop(held);
        faults.set("acquire", Fault::Slow(5 * MS), 1);
        let first = if wait.is_zero() { lasting(&store) } else { lasting(&store).wait(wait) };
        let first = crate::store::spawn(first.acquire());
        tokio::time::sleep(MS / 2).await;
        let mut expected = vec!["job", "after"];
        let mut tasks = Vec::new();
        if !wait.is_zero() {
            tasks.push(waits(lasting(&store), "before", &log).await);
            expected.insert(0, "before");
        }
        put_off(&store, "/x").await;
        let first = first.await.unwrap().unwrap();
        tasks.push(waits(lasting(&store), "after", &log).await);
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*log.lock(), expected);
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_joins_while_the_lock_is_passed_is_not_passed() {
    let ((store, faults), log) = (faulty(), Log::default());
    let worker = working(&store, &log).await;
    let request = || store.lock("x").handover_limits(1, 60 * SECOND);
    // Nothing is asked ahead.
    faults.set("still", Fault::Away, usize::MAX);
    let first = request().acquire().await.unwrap();
    let mut tasks = Vec::new();
    for name in ["first", "second"] {
        tasks.push(waits(request(), name, &log).await);
    }
    faults.set("pass", Fault::Slow(5 * MS), 1);
    // To the first by memory alone; the second one is asked for, and has it when the job joins.
    drop(first);
    while faults.left("pass") > 0 {
        tokio::time::sleep(MS / 10).await;
    }
    assert_eq!(*log.lock(), ["first"]);
    put_off(&store, "/x").await;
    // Later than by what is not known of the server's time: half of what the call takes.
    tokio::time::sleep(4 * MS).await;
    tasks.push(waits(request(), "third", &log).await);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*log.lock(), ["first", "second", "job", "third"]);
    worker.stop().await;
}
