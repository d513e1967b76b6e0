//! The phases of a server on tokio's stopped clock, with scripted parts.

use std::{
    future::{pending, ready},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{sync::oneshot, time::Instant};

use super::{BackgroundWorker, ServerLifecycle, StopPhase, StopSignals};
use crate::{
    queue::{Queue, Task, TaskFailure},
    store::{CapturedLog, Store},
};

const SECOND: Duration = Duration::from_secs(1);

/// Worker that runs a closure.
struct ScriptedWorker<F> {
    store: Store,
    script: F,
}

impl<F, Fut> BackgroundWorker for ScriptedWorker<F>
where
    F: FnOnce(StopSignals) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    fn store(&self) -> &Store {
        &self.store
    }

    fn run_beside_server(self, signals: StopSignals) -> BoxFuture<'static, ()> {
        Box::pin((self.script)(signals))
    }
}

fn scripted<F>(script: F) -> ScriptedWorker<F> {
    ScriptedWorker { store: Store::memory(), script }
}

/// Server that ends when this phase is reached.
fn server_until(
    lifecycle: &ServerLifecycle,
    phase: StopPhase,
) -> impl Future<Output = io::Result<()>> + use<> {
    let reached = lifecycle.signals().reached(phase);
    async move {
        reached.await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn phases_follow_the_drain_timeout_until_all_parts_have_ended() {
    let phases = [StopPhase::Draining, StopPhase::CuttingOff, StopPhase::Closing];
    for (last, ended_after) in phases.into_iter().zip([0, 5, 6]) {
        let (start, seen) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&seen);
        let mut lifecycle = ServerLifecycle::new();
        lifecycle.set_drain_timeout(5 * SECOND);
        lifecycle.set_shutdown(ready(()));
        lifecycle.add_worker(scripted(async move |signals: StopSignals| {
            for phase in phases.into_iter().filter(|phase| *phase <= last) {
                signals.reached(phase).await;
                log.lock().expect("no panic").push((phase, start.elapsed().as_secs()));
            }
        }));
        let server = server_until(&lifecycle, last);
        lifecycle.run(server).await.expect("it ends in order");
        let seen = seen.lock().expect("no panic").clone();
        let expected: Vec<_> = phases.into_iter().zip([0, 5, 6]).collect();
        assert_eq!(seen, expected[..seen.len()], "{last:?}");
        assert_eq!(seen.last(), Some(&(last, ended_after)));
        assert_eq!(start.elapsed().as_secs(), ended_after, "it waits for nothing else");
    }
}

#[tokio::test(start_paused = true)]
async fn default_drain_timeout_is_ten_seconds_and_the_whole_shutdown_is_bounded() {
    let start = Instant::now();
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.set_shutdown(ready(()));
    lifecycle.add_worker(scripted(|_: StopSignals| pending()));
    lifecycle.run(pending()).await.expect("what is stuck is given up");
    assert_eq!(start.elapsed().as_secs(), 13);
}

#[tokio::test(start_paused = true)]
async fn error_of_the_server_stops_the_workers_and_is_returned() {
    let (ended, worker_end) = oneshot::channel();
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.set_shutdown(pending());
    lifecycle.add_worker(scripted(async move |signals: StopSignals| {
        signals.reached(StopPhase::Draining).await;
        let _ = ended.send(());
    }));
    let failed = lifecycle.run(ready(Err(io::ErrorKind::AddrInUse.into()))).await;
    assert_eq!(failed.expect_err("the listener").kind(), io::ErrorKind::AddrInUse);
    worker_end.await.expect("the worker was stopped, and awaited");
}

#[tokio::test(start_paused = true)]
async fn panicking_worker_ends_the_server_with_an_error() {
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.set_shutdown(pending());
    lifecycle.add_worker(scripted(async |signals: StopSignals| {
        assert!(signals.is_stopping(), "its routes are wrong");
    }));
    let server = server_until(&lifecycle, StopPhase::Draining);
    let error = lifecycle.run(server).await.expect_err("the worker is missing");
    assert!(error.to_string().starts_with("a worker has ended early"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn worker_that_panics_when_it_starts_ends_the_server_with_an_error() {
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.set_shutdown(pending());
    lifecycle.add_worker(scripted(|signals: StopSignals| {
        assert!(signals.is_stopping(), "its settings are wrong");
        ready(())
    }));
    let server = server_until(&lifecycle, StopPhase::Draining);
    let error = lifecycle.run(server).await.expect_err("the worker is missing");
    assert!(error.to_string().starts_with("a worker has ended early"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn dropped_lifecycle_has_reached_every_phase() {
    let ((started, start), (ended, worker_end)) = (oneshot::channel(), oneshot::channel());
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.set_shutdown(pending());
    lifecycle.add_worker(scripted(async move |signals: StopSignals| {
        let _ = started.send(signals.is_stopping());
        signals.reached(StopPhase::Closing).await;
        assert!(signals.is_stopping());
        let _ = ended.send(());
    }));
    let server = tokio::spawn(lifecycle.run(pending()));
    assert_eq!(start.await, Ok(false));
    server.abort();
    worker_end.await.expect("the worker continues and ends by itself");
}

/// Worker whose runs never end. It reports the attempt of the first one.
fn blocked_worker(
    queue: &Queue<String>,
    started: oneshot::Sender<u32>,
) -> crate::queue::QueueWorker {
    let started = Mutex::new(Some(started));
    queue.worker(move |task: Task<String>| {
        if let Some(started) = started.lock().expect("no panic").take() {
            let _ = started.send(task.attempt());
        }
        pending::<Result<(), TaskFailure>>()
    })
}

#[tokio::test(start_paused = true)]
async fn task_over_the_drain_timeout_runs_in_another_worker_without_a_charged_attempt() {
    let store = Store::memory();
    let queue: Queue<String> = store.queue("texts");
    queue.push(&"one".to_owned()).await.expect("it is stored");
    for is_dropped in [false, true] {
        let (started, start) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut lifecycle = ServerLifecycle::new();
        lifecycle.set_drain_timeout(SECOND);
        lifecycle.set_shutdown(async { drop(stopped.await) });
        lifecycle.add_worker(blocked_worker(&queue, started));
        let server = server_until(&lifecycle, StopPhase::Draining);
        let server = tokio::spawn(lifecycle.run(server));
        assert_eq!(start.await, Ok(1), "no attempt was charged before");
        if is_dropped {
            server.abort();
        } else {
            drop(stop);
            server.await.expect("no panic").expect("it ends in order");
            assert_eq!(queue.stats().await.expect("it is there").running, 0);
        }
    }
    let (started, start) = oneshot::channel();
    let worker = tokio::spawn(blocked_worker(&queue, started).run(pending()));
    assert_eq!(start.await, Ok(1), "no attempt was charged before");
    worker.abort();
}

#[tokio::test(start_paused = true)]
async fn server_without_a_store_logs_how_to_name_one() {
    const WARNING: &str = "add .store(&store) to serve(..)";
    let (log, _reads) = CapturedLog::start_capture();
    let store = Store::memory();
    let mut lifecycle = ServerLifecycle::new();
    lifecycle.add_store(&store);
    lifecycle.run(ready(Ok(()))).await.expect("it ends well");
    assert!(!log.text().contains(WARNING), "{}", log.text());
    ServerLifecycle::new().run(ready(Ok(()))).await.expect("it ends well");
    log.assert_contains(WARNING);
}
