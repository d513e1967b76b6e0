//! Runs that an operator cancels.

use std::{future::pending, sync::Arc};

use tokio::{sync::Notify, time::Instant};

use super::{
    CountingReplayer, DeferWorker, FnReplayer, SECOND, SpawnedWorker, enqueue_job,
    enqueue_with_attempts, get_job, let_tasks_settle, lock_key_of, outcome_with_status,
    wait_until_ended,
};
use crate::{
    admin::{Admin, AdminError, Operator, Permission},
    defer::ReplayOutcome,
    gate::ReplayMarker,
    store::{BackendFault, CapturedLog, FaultSchedule, JobState, Store, faulty_store},
};

fn admin_of(store: &Store) -> Admin {
    store.as_another_process().admin(Operator::new("ada", Permission::Act))
}

/// Replayer whose runs pass their lock and end as `run` says.
fn running_replayer<F>(run: impl Fn(ReplayMarker) -> F + Send + Sync + 'static) -> FnReplayer
where
    F: Future<Output = ReplayOutcome> + Send + 'static,
{
    FnReplayer::new(move |head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        run(marker)
    })
}

/// Replayer whose runs answer with this status when they are cancelled.
fn cooperative_replayer(status: u16) -> FnReplayer {
    running_replayer(move |marker| async move {
        marker.cancellation().cancelled().await;
        outcome_with_status(status)
    })
}

#[track_caller]
fn assert_not_possible(result: Result<(), AdminError>, part: &str) {
    match result {
        Err(AdminError::NotPossible(text)) => assert!(text.contains(part), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn cooperative_run_ends_as_cancelled_and_the_next_job_runs() {
    let (log, _guard) = CapturedLog::start_capture();
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, cooperative_replayer(503)));
    let id = enqueue_with_attempts(&store, "/x", 3, Vec::new()).await;
    let next = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    let before = Instant::now();
    let admin = admin_of(&store);
    let (first, second) =
        tokio::join!(admin.cancel_job(&id, "a test"), admin.cancel_job(&id, "a test"));
    first.and(second).expect("cancelled twice is cancelled once");
    assert!(before.elapsed() < SECOND, "{:?}", before.elapsed());
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Cancelled, 1), "{job:?}");
    assert_eq!(job.history.recent_runs.len(), 1);
    log.assert_contains("outcome=\"cancelled\" then=\"cancelled\"");
    assert!(!log.text().contains("run failed"), "{}", log.text());

    let_tasks_settle().await;
    assert_eq!(get_job(&store, &next).await.state, JobState::Running, "the lock is free");
    admin.cancel_job(&next, "a test").await.expect("it runs");
    admin.cancel_job(&id, "a test").await.expect("it is cancelled");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_that_ignores_its_cancellation_is_dropped_after_the_grace() {
    let store = Store::memory();
    let dropped = Arc::new(Notify::new());
    let on_drop = Arc::clone(&dropped);
    let routes = running_replayer(move |_| {
        let on_drop = NotifyOnDrop(Arc::clone(&on_drop));
        async move {
            let _on_drop = on_drop;
            pending().await
        }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let id = enqueue_with_attempts(&store, "/x", 3, Vec::new()).await;
    let_tasks_settle().await;
    let before = Instant::now();
    admin_of(&store).cancel_job(&id, "a test").await.expect("it runs");
    let elapsed = before.elapsed();
    assert!((5 * SECOND..7 * SECOND).contains(&elapsed), "{elapsed:?}");
    dropped.notified().await;
    assert_eq!(get_job(&store, &id).await.state, JobState::Cancelled);
    assert!(store.lock("x").acquire().await.is_ok(), "its lock is free");
    worker.stop().await;
}

/// Notifies when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_succeeds_before_its_grace_is_done() {
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, cooperative_replayer(200)));
    let id = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    assert_not_possible(admin_of(&store).cancel_job(&id, "a test").await, "it is done");
    assert_eq!(get_job(&store, &id).await.state, JobState::Done);
    worker.stop().await;
}

/// The second registration stands for a run that has missed the first messages.
#[tokio::test(start_paused = true)]
async fn message_is_repeated_until_the_run_has_ended() {
    let store = Store::memory();
    let routes = running_replayer(|_| pending());
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let id = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    let admin = admin_of(&store);
    let repeated = async {
        tokio::time::sleep(2 * SECOND).await;
        let late = store.wakeups().register_run(id.as_str());
        tokio::time::timeout(SECOND, late.cancelled()).await.expect("it is repeated");
    };
    let (cancelled, ()) = tokio::join!(admin.cancel_job(&id, "a test"), repeated);
    cancelled.expect("it runs");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failed_message_fails_the_action_and_a_second_one_cancels() {
    let (store, faults): (Store, FaultSchedule) = faulty_store();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, cooperative_replayer(503)));
    let id = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    faults.set("cancel_run", BackendFault::Unavailable, 1);
    let admin = admin_of(&store);
    let failed = admin.cancel_job(&id, "a test").await;
    assert!(matches!(failed, Err(AdminError::Store(_))), "{failed:?}");
    assert_eq!(get_job(&store, &id).await.state, JobState::Running);
    admin.cancel_job(&id, "a test").await.expect("it runs");
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_of_a_killed_worker_is_not_cancelled_before_its_takeover() {
    let store = Store::memory();
    let killed = DeferWorker::new(&store, running_replayer(|_| pending()));
    let killed = SpawnedWorker::spawn_worker(killed);
    let id = enqueue_with_attempts(&store, "/x", 3, Vec::new()).await;
    let_tasks_settle().await;
    killed.kill().await;
    let admin = admin_of(&store);
    assert_not_possible(admin.cancel_job(&id, "a test").await, "has not ended the run within 10 s");

    let other = store.as_another_process();
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&other, cooperative_replayer(503)));
    while get_job(&store, &id).await.attempts < 2 {
        let_tasks_settle().await;
    }
    admin.cancel_job(&id, "a test").await.expect("the other worker runs it");
    assert_eq!(get_job(&store, &id).await.state, JobState::Cancelled);
    worker.stop().await;
}

/// The lock is not left to its lease: the job would run again.
#[tokio::test(start_paused = true)]
async fn cancelled_run_keeps_its_lock_until_its_handler_is_dropped() {
    let store = Store::memory();
    let finish = Arc::new(Notify::new());
    let finished = Arc::clone(&finish);
    let routes = running_replayer(move |marker| {
        let finished = Arc::clone(&finished);
        crate::store::spawn(marker.scope(async move { finished.notified().await }));
        pending()
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let id = enqueue_with_attempts(&store, "/x", 3, Vec::new()).await;
    let_tasks_settle().await;
    assert_not_possible(admin_of(&store).cancel_job(&id, "a test").await, "within 10 s");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(get_job(&store, &id).await.state, JobState::Running);
    assert!(store.lock("x").acquire().await.is_err(), "its handler is not over");
    finish.notify_one();
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Cancelled);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_that_is_cut_off_by_a_drain_does_not_run_again() {
    let store = Store::memory();
    let worker = DeferWorker::new(&store, running_replayer(|_| pending())).drain_timeout(SECOND);
    let worker = SpawnedWorker::spawn_worker(worker);
    let id = enqueue_with_attempts(&store, "/x", 3, Vec::new()).await;
    let_tasks_settle().await;
    let admin = admin_of(&store);
    let (cancelled, ()) = tokio::join!(admin.cancel_job(&id, "a test"), worker.stop());
    cancelled.expect("it ends with its worker");
    assert_eq!(get_job(&store, &id).await.state, JobState::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn waiting_job_is_cancelled_without_a_run() {
    let store = Store::memory();
    let held = store.lock("x").acquire().await.expect("it is free");
    let id = enqueue_job(&store, "/x").await;
    admin_of(&store).cancel_job(&id, "a test").await.expect("it waits");
    let routes = CountingReplayer::default();
    let worker = SpawnedWorker::spawn_on(&store, &routes);
    held.release().await;
    let_tasks_settle().await;
    assert_eq!(
        (get_job(&store, &id).await.state, routes.run_count("/x")),
        (JobState::Cancelled, 0)
    );
    worker.stop().await;
}
