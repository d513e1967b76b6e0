//! Workers that stop or die during runs, and failing runs.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    CountingReplayer, FnReplayer, SECOND, SpawnedWorker, enqueue_job, enqueue_with_attempts,
    get_job, let_tasks_settle, lock_key_of, outcome_with_status, wait_until_ended,
};
use crate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, tests::DeferWorker},
    gate::{
        Gate as _, GateRequest as _, InitialVerdict, KeySource, ReplayMarker,
        fake_request::FakeGateRequest,
    },
    lock::LockLayer,
    store::{JobState, Store},
};

/// Replayer that never answers; runs of `/../begun` have passed their lock.
fn hanging_replayer() -> FnReplayer {
    FnReplayer::new(|head, marker| async move {
        if head.target.ends_with("/begun") {
            marker.pass_own_lock(&lock_key_of(&head.target));
        }
        std::future::pending().await
    })
}

#[tokio::test(start_paused = true)]
async fn drain_requeues_unstarted_runs_and_fails_others() {
    let store = Store::memory();
    let worker = SpawnedWorker::spawn_worker(
        DeferWorker::new(&store, hanging_replayer()).drain_timeout(SECOND),
    );
    let waiting = enqueue_job(&store, "/a").await;
    let started_run = enqueue_job(&store, "/b/begun").await;
    let repeatable = enqueue_with_attempts(&store, "/c/begun", 3, Vec::new()).await;
    let_tasks_settle().await;
    worker.stop().await;
    for id in [&waiting, &repeatable] {
        let job = get_job(&store, id).await;
        assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    }
    let job = get_job(&store, &started_run).await;
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Dead, Some("drained, may have run")));
}

/// An intermediate layer has answered, for example after a timeout, while the handler continues in
/// its own task.
#[tokio::test(start_paused = true)]
async fn run_ends_when_its_handler_ends() {
    let store = Store::memory();
    let finish = Arc::new(Notify::new());
    let finished = Arc::clone(&finish);
    let routes = FnReplayer::new(move |head, marker| {
        marker.pass_own_lock(&lock_key_of(&head.target));
        let finished = Arc::clone(&finished);
        crate::store::spawn(marker.scope(async move { finished.notified().await }));
        async { outcome_with_status(200) }
    });
    let worker = SpawnedWorker::spawn_worker(DeferWorker::new(&store, routes));
    let (first, second) = (enqueue_job(&store, "/x").await, enqueue_job(&store, "/x").await);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(get_job(&store, &first).await.state, JobState::Running);
    assert_eq!(get_job(&store, &second).await.state, JobState::Queued);
    for id in [&first, &second] {
        finish.notify_one();
        assert_eq!(wait_until_ended(&store, id).await, JobState::Done);
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honored_and_failures_are_distinguished() {
    let store = Store::memory();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&runs);
    let routes = FnReplayer::new(move |head, marker| {
        let mut runs = runs.lock();
        runs.push(Instant::now());
        marker.pass_own_lock(&lock_key_of(&head.target));
        let retry = vec![("retry-after".to_owned(), b"20".to_vec())];
        let body = ReplayBody::TooLong;
        let ran = match runs.len() {
            1 => ReplayOutcome::Answered(ReplayResponse { status: 503, headers: retry, body }),
            2 => ReplayOutcome::Panicked,
            3 => ReplayOutcome::Failed,
            _ => outcome_with_status(200),
        };
        async { ran }
    });
    let worker = DeferWorker::new(&store, routes).backoff(SECOND, 2 * SECOND);
    let worker = SpawnedWorker::spawn_worker(worker);
    let id = enqueue_with_attempts(&store, "/x", 5, Vec::new()).await;
    assert_eq!(wait_until_ended(&store, &id).await, JobState::Done);
    let runs = recorded.lock().clone();
    let waited = runs[1] - runs[0];
    assert!((20 * SECOND..22 * SECOND).contains(&waited), "{waited:?}");
    assert!(runs[3] - runs[1] < 5 * SECOND);
    let past = get_job(&store, &id).await.history;
    let outcomes: Vec<_> =
        past.recent_runs.iter().filter_map(|run| run.split(' ').nth(3)).collect();
    assert_eq!(outcomes, ["failed", "panicked", "error", "done"]);
    worker.stop().await;
}

/// Replayer with handlers on another thread, as in actix-web: the future that awaits the answer
/// does not run the handler.
fn marker_collecting_replayer(runs: &Arc<Mutex<Vec<ReplayMarker>>>) -> FnReplayer {
    let runs = Arc::clone(runs);
    FnReplayer::new(move |head, marker| {
        if head.target.ends_with("/begun") {
            marker.pass_own_lock(&lock_key_of(&head.target));
        }
        runs.lock().push(marker);
        std::future::pending()
    })
}

#[tokio::test(start_paused = true)]
async fn requeued_run_cannot_start_later() {
    let (store, runs) = (Store::memory(), Arc::default());
    let worker = SpawnedWorker::spawn_worker(
        DeferWorker::new(&store, marker_collecting_replayer(&runs)).drain_timeout(SECOND),
    );
    let id = enqueue_job(&store, "/x").await;
    let_tasks_settle().await;
    worker.stop().await;
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    // The thread becomes free after the job was requeued.
    let marker = runs.lock().pop().expect("it was sent there");
    for name in ["x", "another"] {
        let source = KeySource::<()>::function(|()| Some(name.to_owned()));
        let mut view = FakeGateRequest::new("POST");
        view.insert_extension(marker.clone());
        let verdict = LockLayer::by(source).store(&store).inspect(&mut view);
        assert!(matches!(verdict, InitialVerdict::Answer(_)), "{name}: {verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_is_requeued_only_after_its_handler_is_dropped() {
    let (store, runs) = (Store::memory(), Arc::default());
    let worker = SpawnedWorker::spawn_worker(
        DeferWorker::new(&store, marker_collecting_replayer(&runs)).drain_timeout(SECOND),
    );
    let id = enqueue_with_attempts(&store, "/x/begun", 3, Vec::new()).await;
    let_tasks_settle().await;
    let marker = runs.lock().pop().expect("it was sent there");
    let handler = crate::store::spawn(marker.scope(tokio::time::sleep(1_500 * SECOND / 1_000)));
    let stopping = crate::store::spawn(worker.stop());
    tokio::time::sleep(1_400 * SECOND / 1_000).await;
    assert_eq!(get_job(&store, &id).await.state, JobState::Running, "its handler is not over");
    handler.await.expect("it ends well");
    stopping.await.expect("it ends well");
    let job = get_job(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
}

/// A handler that can be neither ended nor awaited is treated like a crash: its lock is not
/// released before the lease ends.
#[tokio::test(start_paused = true)]
async fn stuck_handler_keeps_its_lock_for_one_lease() {
    for is_killed in [false, true] {
        let (store, runs) = (Store::memory(), Arc::default());
        let (repeatable, once) = ("/x/begun", "/y/begun");
        let routes = marker_collecting_replayer(&runs);
        let worker = SpawnedWorker::spawn_worker(
            DeferWorker::new(&store, routes).drain_timeout(SECOND).lease(5 * SECOND),
        );
        let repeatable = enqueue_with_attempts(&store, repeatable, 3, Vec::new()).await;
        let once = enqueue_job(&store, once).await;
        let_tasks_settle().await;
        let scopes: Vec<_> = runs.lock().drain(..).map(|run| run.scope(async {})).collect();
        if is_killed {
            worker.kill().await;
        } else {
            let before = Instant::now();
            worker.stop().await;
            assert!(before.elapsed() < 3 * SECOND, "{:?}", before.elapsed());
        }
        let_tasks_settle().await;
        for id in [&repeatable, &once] {
            assert_eq!(get_job(&store, id).await.state, JobState::Running);
        }
        for key in ["x", "y"] {
            assert!(store.lock(key).acquire().await.is_err(), "its handler is not over");
        }
        drop(scopes);
        let before = Instant::now();
        let routes = CountingReplayer::default();
        let worker = SpawnedWorker::spawn_on(&store.as_another_process(), &routes);
        assert_eq!(wait_until_ended(&store, &repeatable).await, JobState::Done);
        assert_eq!(wait_until_ended(&store, &once).await, JobState::Dead);
        assert_eq!((routes.run_count("/x/begun"), routes.run_count("/y/begun")), (1, 0));
        assert!(before.elapsed() < 20 * SECOND, "{:?}", before.elapsed());
        worker.stop().await;
    }
}
