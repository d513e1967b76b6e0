//! Outcomes of tasks.

use std::{future::pending, time::Duration};

use super::{
    SECOND, SpawnedQueueWorker, TaskFailure, TaskRunLog, push_text, scripted_worker, task_state,
    text_queue, wait_until_idle,
};
use crate::{
    queue::{PushError, PushedTask, Queue, Task, TaskFault, TaskState},
    store::{CapturedLog, Store},
};

#[tokio::test(start_paused = true)]
async fn failed_task_is_retried_with_backoff_then_dead_lettered() {
    let (lines, _reads) = CapturedLog::start_capture();
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let worker =
        SpawnedQueueWorker::start(scripted_worker(&queue, &log).backoff(SECOND, SECOND * 3));
    let id = push_text(&queue.clone().max_attempts(4), "fail").await;
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(log.attempts(), [1, 2, 3, 4]);
    let text = lines.text();
    let failures: Vec<_> = text.lines().filter(|line| line.contains("task failed")).collect();
    assert_eq!(failures.len(), 4, "{text}");
    let is_retried = |line: &&str| line.contains("then=\"retry\" retry_in_ms=");
    assert!(failures[..3].iter().all(is_retried), "{failures:#?}");
    let is_last = |line: &str| line.contains("then=\"dead letter\"") && !line.contains("retry_in");
    assert!(is_last(failures[3]), "{failures:#?}");
    assert!(failures[0].contains(&format!("task={} ", id.log_prefix())), "{failures:#?}");
    let times = log.start_times();
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (pause, longest) in pauses.iter().zip([1, 2, 3]) {
        assert!(*pause <= SECOND * longest + SECOND / 50, "{pauses:?}");
    }
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!((info.state, info.attempts, info.history.len()), (TaskState::Dead, 4, 4));
    assert_eq!(info.history[3].reason, "requested by the test");
    assert_eq!(queue.payload(&id).await.unwrap().as_deref(), Some("fail"));
    assert!(queue.redrive(&id).await.unwrap());
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(log.attempts(), [1, 2, 3, 4, 1, 2, 3, 4]);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn handler_error_can_set_a_delay_or_dead_letter() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    let dead = push_text(&queue, "dead").await;
    wait_until_idle().await;
    assert_eq!(task_state(&queue, &dead).await, Some(TaskState::Dead));
    push_text(&queue, "later").await;
    tokio::time::sleep(SECOND * 101).await;
    worker.stop().await;
    assert_eq!(log.attempts(), [1, 1, 2]);
    let times = log.start_times();
    let pause = times[2] - times[1];
    assert!(pause >= SECOND * 100 && pause < SECOND * 100 + SECOND / 100, "{pause:?}");
}

#[tokio::test(start_paused = true)]
async fn panics_are_caught_and_counted_separately() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).max_attempts(1);
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log));
    let ids = [push_text(&queue, "panic").await, push_text(&queue, "panic outside").await];
    push_text(&queue, "fine").await;
    wait_until_idle().await;
    worker.stop().await;
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.panicked, stats.failed, stats.crashed), (2, 0, 0));
    assert_eq!((stats.dead, stats.done), (2, 1));
    let info = queue.get(&ids[0]).await.unwrap().unwrap();
    assert_eq!(info.history[0].fault, TaskFault::Panicked);
    assert_eq!(info.history[0].reason, "requested by the test");
}

/// A task that an old worker cannot decode is returned uncharged, whether or not it may run again,
/// but not forever.
#[tokio::test(start_paused = true)]
async fn undecodable_task_is_returned_for_an_hour_then_fails() {
    for (delay, once) in [(0, true), (0, false), (7200, true)] {
        let store = Store::memory();
        let (texts, numbers): (Queue<String>, Queue<u64>) = (store.queue("x"), store.queue("x"));
        let task = texts.push(&"seven".to_owned()).delay(SECOND * delay).unique("u");
        let task = if once { task.once() } else { task };
        let id = task.await.unwrap().into_id();
        let unread = numbers.worker(async |_| Ok::<(), TaskFailure>(()));
        let working = SpawnedQueueWorker::start(unread.backoff(SECOND, SECOND));
        tokio::time::sleep(SECOND * (delay + 3500)).await;
        let info = texts.get(&id).await.unwrap().unwrap();
        assert_eq!((info.state, info.attempts), (TaskState::Waiting, 0), "{info:?}");
        tokio::time::sleep(SECOND * 200).await;
        let info = texts.get(&id).await.unwrap().unwrap();
        // From then on each attempt fails.
        assert_eq!((info.state, info.history.len()), (TaskState::Dead, if once { 1 } else { 5 }));
        for failed in &info.history {
            assert_eq!((failed.fault, &failed.reason[..]), (TaskFault::Undecodable, "undecodable"));
        }
        working.stop().await;
        // A newer worker can decode it.
        assert!(texts.redrive(&id).await.unwrap());
        let log = TaskRunLog::default();
        let working = SpawnedQueueWorker::start(scripted_worker(&texts, &log));
        wait_until_idle().await;
        working.stop().await;
        assert_eq!(log.payloads(), ["seven"]);
    }
}

/// As in a deployment that takes some minutes.
#[tokio::test(start_paused = true)]
async fn undecodable_task_runs_at_a_newer_worker_later() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let (texts, numbers): (Queue<String>, Queue<u64>) = (store.queue("x"), store.queue("x"));
    push_text(&texts.clone().once(), "seven").await;
    let old = SpawnedQueueWorker::start(numbers.worker(async |_| Ok::<(), TaskFailure>(())));
    tokio::time::sleep(SECOND * 600).await;
    let newer = SpawnedQueueWorker::start(scripted_worker(&texts, &log));
    old.stop().await;
    tokio::time::sleep(SECOND * 61).await;
    newer.stop().await;
    assert_eq!((log.payloads(), log.attempts()), (vec!["seven".to_owned()], vec![1]));
}

/// Both workers run, as in every deployment. The older one must not be the first again when the
/// task is due.
#[tokio::test(start_paused = true)]
async fn undecodable_task_runs_at_a_concurrent_newer_worker() {
    for older_first in [true, false] {
        let (store, log) = (Store::memory(), TaskRunLog::default());
        let (texts, numbers): (Queue<String>, Queue<u64>) = (store.queue("x"), store.queue("x"));
        let older =
            || SpawnedQueueWorker::start(numbers.worker(async |_| Ok::<(), TaskFailure>(())));
        let mut old = older_first.then(older);
        tokio::time::sleep(SECOND).await;
        let newer = SpawnedQueueWorker::start(scripted_worker(&texts, &log));
        tokio::time::sleep(SECOND).await;
        let old = old.take().unwrap_or_else(older);
        tokio::time::sleep(SECOND).await;
        // The older worker does not delay all due tasks one after the other.
        for n in 0..500 {
            push_text(&texts, &format!("sleep {n}")).await;
        }
        tokio::time::sleep(SECOND * 60).await;
        assert_eq!(log.payloads().len(), 500, "{older_first}");
        for n in 0..20 {
            push_text(&texts, &n.to_string()).await;
            tokio::time::sleep(SECOND * 7).await;
        }
        // Strings, as a newer producer pushes them; the number queue cannot decode them.
        assert_eq!(log.payloads().len(), 520, "{older_first}");
        old.stop().await;
        newer.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_over_max_run_time_fails() {
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store).once();
    let worker = SpawnedQueueWorker::start(scripted_worker(&queue, &log).max_run_time(SECOND * 60));
    let id = push_text(&queue, "sleep 70000").await;
    push_text(&queue, "sleep 50000").await;
    tokio::time::sleep(SECOND * 65).await;
    worker.stop().await;
    let info = queue.get(&id).await.unwrap().unwrap();
    assert_eq!(
        (info.state, info.history[0].reason.as_str()),
        (TaskState::Dead, "it ran for too long")
    );
    assert_eq!(queue.stats().await.unwrap().done, 1);
}

/// Panics when it is dropped, like a destructor that blocks on a runtime. The payload of that panic
/// panics again when it is dropped.
struct PanicOnDrop(bool);

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if self.0 && !std::thread::panicking() {
            std::panic::panic_any(Self(false));
        }
        assert!(self.0 || std::thread::panicking(), "requested by the test");
    }
}

#[tokio::test(start_paused = true)]
async fn handler_panic_on_drop_dead_letters_the_task() {
    // With a concurrency of one, the run starts in the worker's own task.
    for concurrency in [1, 2] {
        check_panic_on_drop(concurrency).await;
    }
}

async fn check_panic_on_drop(concurrency: usize) {
    let store = Store::memory();
    let queue = text_queue(&store).once();
    let worker = queue.worker(|task: Task<String>| async move {
        let _bomb = PanicOnDrop(task.payload == "bomb");
        assert!(task.payload != "at once", "requested by the test");
        if task.payload == "at once, twice" {
            drop(PanicOnDrop(true));
        }
        if task.payload == "bomb" {
            pending::<()>().await;
        }
        Ok::<(), TaskFailure>(())
    });
    let worker = SpawnedQueueWorker::start(worker.max_run_time(SECOND).concurrency(concurrency));
    for payload in ["bomb", "at once", "at once, twice"] {
        let id = push_text(&queue, payload).await;
        tokio::time::sleep(SECOND * 3).await;
        let info = queue.get(&id).await.unwrap().unwrap();
        assert_eq!((info.state, info.history[0].fault), (TaskState::Dead, TaskFault::Panicked));
    }
    assert_eq!(queue.stats().await.unwrap().panicked, 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn push_reports_duplicate_full_and_encode_errors() {
    let store = Store::memory();
    let queue = text_queue(&store).capacity(2);
    let text = "x".to_owned();
    let id = queue.push(&text).unique("k").await.unwrap().into_id();
    let duplicate = queue.push(&text).unique("k").await.unwrap();
    assert_eq!(duplicate, PushedTask::Duplicate(id));
    push_text(&queue, "y").await;
    assert!(matches!(queue.push(&text).await, Err(PushError::Full)));
    assert_eq!(queue.purge_waiting().await.unwrap(), 2);
    let unwritable: Queue<std::collections::HashMap<(u8, u8), u8>> = store.queue("z");
    let pushed = unwritable.push(&[((1, 2), 3)].into()).await;
    assert!(matches!(pushed, Err(PushError::Encode(_))));
}

#[tokio::test(start_paused = true)]
async fn debug_output_hides_payloads() {
    let store = Store::memory();
    let queue: Queue<String> = store.queue("texts");
    let request = queue.push(&"secret".to_owned());
    assert!(!format!("{request:?}").contains("secret"));
    let id = request.await.unwrap().into_id();
    let output = std::sync::Arc::new(parking_lot::Mutex::new(String::new()));
    let handler_output = std::sync::Arc::clone(&output);
    let worker = SpawnedQueueWorker::start(queue.worker(move |task: Task<String>| {
        *handler_output.lock() = format!("{task:?}");
        async { Err(TaskFailure::dead_letter("no")) }
    }));
    wait_until_idle().await;
    worker.stop().await;
    assert!(output.lock().starts_with("Task") && !output.lock().contains("secret"));
    let listed = format!("{:?} {:?}", queue.get(&id).await, queue.dead_letters(None, 10).await);
    assert!(listed.contains("Dead") && !listed.contains("secret"));
}

/// Durations beyond the range of the clock are capped.
#[tokio::test(start_paused = true)]
async fn maximum_durations_are_accepted() {
    const MOST: Duration = Duration::MAX;
    let (store, log) = (Store::memory(), TaskRunLog::default());
    let queue = text_queue(&store);
    let worker = scripted_worker(&queue, &log).lease(MOST).max_run_time(MOST).drain_timeout(MOST);
    let worker = worker.backoff(MOST, MOST).dead_retention(MOST, 10).queue_rate(u64::MAX, SECOND);
    let worker = SpawnedQueueWorker::start(worker);
    for payload in ["done", "dead", "dead", "fail"] {
        push_text(&queue, payload).await;
    }
    queue.push(&"late".to_owned()).delay(MOST).await.unwrap();
    queue.push(&"alone".to_owned()).unique_for("key", MOST).await.unwrap();
    wait_until_idle().await;
    assert_eq!(log.payloads(), ["done", "dead", "dead", "fail", "alone"]);
    worker.stop().await;
    assert_eq!(queue.redrive_all(MOST).await.unwrap(), 2);
    let stats = queue.stats().await.unwrap();
    assert_eq!((stats.waiting, stats.due, stats.done, stats.dead_letters), (4, 1, 2, 0));
}
