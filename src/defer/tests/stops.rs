//! Workers that stop or die in the middle, and runs that fail.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    Function, Routes, SECOND, Working, answered, ended, key_of, look, put_off, put_off_with,
    settled,
};
use crate::{
    defer::{DeferWorker, ReplayBody, ReplayOutcome, ReplayResponse},
    gate::{Gate as _, GateRequest as _, InitialVerdict, KeySource, ReplayMarker, fake::FakeView},
    lock::LockGate,
    store::{JobState, Store},
};

/// Routes that never answer; those of `/../begun` have passed their lock.
fn endless() -> Function {
    Function::new(|head, marker| async move {
        if head.target.ends_with("/begun") {
            marker.pass(&key_of(&head.target));
        }
        std::future::pending().await
    })
}

#[tokio::test(start_paused = true)]
async fn a_drain_hands_back_what_has_not_begun_and_buries_what_may_have_run() {
    let store = Store::memory();
    let worker = Working::with(DeferWorker::new(&store, endless()).drain_timeout(SECOND));
    let waiting = put_off(&store, "/a").await;
    let begun = put_off(&store, "/b/begun").await;
    let again = put_off_with(&store, "/c/begun", 3, Vec::new()).await;
    settled().await;
    worker.stop().await;
    for id in [&waiting, &again] {
        let job = look(&store, id).await;
        assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    }
    let job = look(&store, &begun).await;
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Dead, Some("drained, may have run")));
}

/// A layer in between has answered, say with a time-out, for a handler that goes on in a task of its own.
#[tokio::test(start_paused = true)]
async fn a_run_is_over_when_its_handler_is() {
    let store = Store::memory();
    let goes_on = Arc::new(Notify::new());
    let until = Arc::clone(&goes_on);
    let routes = Function::new(move |head, marker| {
        marker.pass(&key_of(&head.target));
        let until = Arc::clone(&until);
        crate::store::spawn(marker.scope(async move { until.notified().await }));
        async { answered(200) }
    });
    let worker = Working::with(DeferWorker::new(&store, routes));
    let (first, second) = (put_off(&store, "/x").await, put_off(&store, "/x").await);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(look(&store, &first).await.state, JobState::Running);
    assert_eq!(look(&store, &second).await.state, JobState::Queued);
    for id in [&first, &second] {
        goes_on.notify_one();
        assert_eq!(ended(&store, id).await, JobState::Done);
    }
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_waited_for_and_failures_are_told_apart() {
    let store = Store::memory();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&runs);
    let routes = Function::new(move |head, marker| {
        let mut runs = runs.lock();
        runs.push(Instant::now());
        marker.pass(&key_of(&head.target));
        let retry = vec![("retry-after".to_owned(), b"20".to_vec())];
        let body = ReplayBody::TooLong;
        let ran = match runs.len() {
            1 => ReplayOutcome::Answered(ReplayResponse { status: 503, headers: retry, body }),
            2 => ReplayOutcome::Panicked,
            3 => ReplayOutcome::Failed,
            _ => answered(200),
        };
        async { ran }
    });
    let worker = DeferWorker::new(&store, routes).backoff(SECOND, 2 * SECOND);
    let worker = Working::with(worker);
    let id = put_off_with(&store, "/x", 5, Vec::new()).await;
    assert_eq!(ended(&store, &id).await, JobState::Done);
    let runs = told.lock().clone();
    let waited = runs[1] - runs[0];
    assert!((20 * SECOND..22 * SECOND).contains(&waited), "{waited:?}");
    assert!(runs[3] - runs[1] < 5 * SECOND);
    let past = look(&store, &id).await.history;
    let outcomes: Vec<_> =
        past.recent_runs.iter().filter_map(|run| run.split(' ').nth(3)).collect();
    assert_eq!(outcomes, ["failed", "panicked", "error", "done"]);
    worker.stop().await;
}

/// Routes in another thread, as actix has them: whoever waits for an answer is not who runs.
fn elsewhere(runs: &Arc<Mutex<Vec<ReplayMarker>>>) -> Function {
    let runs = Arc::clone(runs);
    Function::new(move |head, marker| {
        if head.target.ends_with("/begun") {
            marker.pass(&key_of(&head.target));
        }
        runs.lock().push(marker);
        std::future::pending()
    })
}

#[tokio::test(start_paused = true)]
async fn what_has_been_handed_back_begins_no_more_wherever_it_waits() {
    let (store, runs) = (Store::memory(), Arc::default());
    let worker = Working::with(DeferWorker::new(&store, elsewhere(&runs)).drain_timeout(SECOND));
    let id = put_off(&store, "/x").await;
    settled().await;
    worker.stop().await;
    let job = look(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
    // The thread that it waited for comes free.
    let marker = runs.lock().pop().expect("it was sent there");
    for name in ["x", "another"] {
        let source = KeySource::<()>::function(|()| Some(name.to_owned()));
        let mut view = FakeView::new("POST");
        view.insert_extension(marker.clone());
        let asked = LockGate::new(source).store(&store).inspect(&mut view);
        assert!(matches!(asked, InitialVerdict::Answer(_)), "{name}: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_back_when_its_handler_has_been_dropped_and_not_before() {
    let (store, runs) = (Store::memory(), Arc::default());
    let worker = Working::with(DeferWorker::new(&store, elsewhere(&runs)).drain_timeout(SECOND));
    let id = put_off_with(&store, "/x/begun", 3, Vec::new()).await;
    settled().await;
    let marker = runs.lock().pop().expect("it was sent there");
    let handler = crate::store::spawn(marker.scope(tokio::time::sleep(1_500 * SECOND / 1_000)));
    let stopping = crate::store::spawn(worker.stop());
    tokio::time::sleep(1_400 * SECOND / 1_000).await;
    assert_eq!(look(&store, &id).await.state, JobState::Running, "its handler is not over");
    handler.await.expect("it ends well");
    stopping.await.expect("it ends well");
    let job = look(&store, &id).await;
    assert_eq!((job.state, job.attempts), (JobState::Queued, 0), "{job:?}");
}

/// What can be neither ended nor waited for is as if its process had died: the lock is not given away beside it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_let_go_keeps_its_lock_for_a_lease() {
    for dies in [false, true] {
        let (store, runs) = (Store::memory(), Arc::default());
        let (again, once) = ("/x/begun", "/y/begun");
        let routes = elsewhere(&runs);
        let worker =
            Working::with(DeferWorker::new(&store, routes).drain_timeout(SECOND).lease(5 * SECOND));
        let again = put_off_with(&store, again, 3, Vec::new()).await;
        let once = put_off(&store, once).await;
        settled().await;
        let scopes: Vec<_> = runs.lock().drain(..).map(|run| run.scope(async {})).collect();
        if dies {
            worker.die().await;
        } else {
            let before = Instant::now();
            worker.stop().await;
            assert!(before.elapsed() < 3 * SECOND, "{:?}", before.elapsed());
        }
        settled().await;
        for id in [&again, &once] {
            assert_eq!(look(&store, id).await.state, JobState::Running);
        }
        for key in ["x", "y"] {
            assert!(store.lock(key).acquire().await.is_err(), "its handler is not over");
        }
        drop(scopes);
        let before = Instant::now();
        let routes = Routes::default();
        let worker = Working::on(&store.as_another_process(), &routes);
        assert_eq!(ended(&store, &again).await, JobState::Done);
        assert_eq!(ended(&store, &once).await, JobState::Dead);
        assert_eq!((routes.runs("/x/begun"), routes.runs("/y/begun")), (1, 0));
        assert!(before.elapsed() < 20 * SECOND, "{:?}", before.elapsed());
        worker.stop().await;
    }
}
