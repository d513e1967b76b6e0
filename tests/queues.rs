//! Task queues as an application configures them, on the embedded store and on Redis: each setting
//! takes effect. The tests of the store show its meaning.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use lockgate::{
    Keyring,
    queue::{
        DeadLetterCursor, PushError, PushedTask, Queue, QueueWorker, Task, TaskFailure, TaskState,
    },
};
use lockgate_tests::{TestCase, eventually, on_both_stores};
use parking_lot::Mutex;
use tokio::sync::oneshot;

const HOUR: Duration = Duration::from_secs(3600);

on_both_stores!(
    unique_key_is_reserved_for_its_window,
    scheduled_task_runs_at_its_time,
    queue_concurrency_of_one_holds_across_workers,
    waiting_payload_bytes_are_limited,
    payload_size_is_limited,
    dead_letter_bytes_are_limited,
    handler_sees_attempt_number,
    purge_waiting_keeps_dead_letters,
    sealed_task_runs_only_with_its_key,
);

async fn text_queue(case: &TestCase) -> Queue<String> {
    case.new_store().await.queue("texts")
}

/// Runs the workers until the test has ended.
async fn run_with_workers<T>(workers: Vec<QueueWorker>, test: impl Future<Output = T>) -> T {
    let mut stops = Vec::new();
    let mut workers_ended = Vec::new();
    for worker in workers {
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        workers_ended.push(tokio::spawn(worker.run(async {
            let _ = stopped.await;
        })));
    }
    let output = pin!(test).await;
    drop(stops);
    for worker_ended in workers_ended {
        worker_ended.await.expect("it ends well");
    }
    output
}

async fn unique_key_is_reserved_for_its_window(case: TestCase) {
    let queue = text_queue(&case).await;
    let push = |key: &str, window| queue.push(&"x".to_owned()).unique_for(key, window);
    let first = push("long", HOUR).await.expect("the queue accepts the task").into_id();
    assert_eq!(
        push("long", HOUR).await.expect("the queue accepts the task"),
        PushedTask::Duplicate(first.clone())
    );
    // The unique key stays reserved after its task was cancelled.
    assert_eq!(queue.cancel(&first).await.expect("it is there"), Some(TaskState::Waiting));
    assert_eq!(
        push("long", HOUR).await.expect("the queue accepts the task"),
        PushedTask::Duplicate(first)
    );
    // The window has ended, so the key is free although its task still waits.
    let moment = Duration::from_millis(1);
    let brief = push("brief", moment).await.expect("the queue accepts the task").into_id();
    eventually("the key to be free", async || {
        matches!(
            push("brief", moment).await.expect("the queue accepts the task"),
            PushedTask::New(_)
        )
    })
    .await;
    let info = queue.get(&brief).await.expect("it is there").expect("it waits");
    assert_eq!(info.state, TaskState::Waiting);
}

async fn scheduled_task_runs_at_its_time(case: TestCase) {
    let queue = text_queue(&case).await;
    let push = |text: &str, time| queue.push(&text.to_owned()).run_at(time);
    let now = SystemTime::now();
    let later = push("later", now + HOUR).await.expect("the queue accepts the task").into_id();
    let past = push("past", now - HOUR).await.expect("the queue accepts the task").into_id();
    let info = queue.get(&later).await.expect("it is there").expect("it waits");
    assert!(HOUR / 2 < info.due_in && info.due_in <= HOUR, "{info:?}");
    let decade = HOUR * 24 * 3650;
    let distant = push("far", now + decade).await.expect("the queue accepts the task").into_id();
    let info = queue.get(&distant).await.expect("it is there").expect("it waits");
    assert!(decade - HOUR < info.due_in && info.due_in <= decade, "{info:?}");
    let completed = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&completed);
    let worker = queue.worker(move |task: Task<String>| {
        recorded.lock().push(task.payload);
        async { Ok::<(), TaskFailure>(()) }
    });
    run_with_workers(vec![worker], async {
        eventually("it to run", async || queue.get(&past).await.expect("it is there").is_none())
            .await;
    })
    .await;
    assert_eq!(*completed.lock(), ["past"]);
}

/// Each handler calls the store while it runs, so that a second run would have time to start.
async fn queue_concurrency_of_one_holds_across_workers(case: TestCase) {
    let (first_queue, second_queue) = (text_queue(&case).await, text_queue(&case).await);
    for n in 0..12 {
        let _ = first_queue.push(&n.to_string()).await.expect("the queue accepts the task");
    }
    let (running, max_running) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let worker = |queue: &Queue<String>| {
        let (running, max_running, queue) =
            (Arc::clone(&running), Arc::clone(&max_running), queue.clone());
        let handler = queue.clone().worker(move |_| {
            let (running, max_running, queue) =
                (Arc::clone(&running), Arc::clone(&max_running), queue.clone());
            async move {
                max_running.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                for _ in 0..5 {
                    let _ = queue.stats().await;
                    tokio::task::yield_now().await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<(), TaskFailure>(())
            }
        });
        handler.concurrency(16).queue_concurrency(1)
    };
    run_with_workers(vec![worker(&first_queue), worker(&second_queue)], async {
        eventually("all to run", async || {
            first_queue.stats().await.expect("it is there").done == 12
        })
        .await;
    })
    .await;
    assert_eq!(max_running.load(Ordering::SeqCst), 1, "at once");
}

async fn waiting_payload_bytes_are_limited(case: TestCase) {
    let queue = text_queue(&case).await.capacity_bytes(1_500);
    let kilobyte = "x".repeat(1_000);
    let first = queue.push(&kilobyte).await.expect("the queue accepts the task").into_id();
    assert!(matches!(queue.push(&kilobyte).await, Err(PushError::Full)));
    let _ = queue.push(&"x".to_owned()).await.expect("the queue accepts a small task");
    let _ = queue.cancel(&first).await.expect("it is there");
    let _ = queue.push(&kilobyte).await.expect("the queue accepts a large task again");
}

/// Payloads are measured as JSON, with the quotation marks. An oversized push stores nothing, not
/// even its unique key.
async fn payload_size_is_limited(case: TestCase) {
    let default_queue = text_queue(&case).await;
    for (queue, limit) in
        [(default_queue.clone(), 256 * 1024), (default_queue.payload_limit(1_000), 1_000)]
    {
        let before = queue.stats().await.expect("it is there");
        let largest_payload = "x".repeat(limit - 2);
        let refused = queue.push(&format!("{largest_payload}x")).unique("one").await;
        let Err(error @ PushError::TooLarge { .. }) = refused else { panic!("{refused:?}") };
        let expected =
            format!("the payload has {} bytes; the queue takes at most {limit}", limit + 1);
        assert_eq!(error.to_string(), expected);
        assert_eq!(queue.stats().await.expect("it is there"), before);
        let pushed = queue.push(&largest_payload).unique("one").await.expect("it fits");
        assert!(matches!(pushed, PushedTask::New(_)), "{pushed:?}");
        assert_eq!(queue.purge_waiting().await.expect("it is there"), 1);
    }
}

async fn dead_letter_bytes_are_limited(case: TestCase) {
    let queue = text_queue(&case).await.once();
    for _ in 0..3 {
        let _ = queue.push(&"x".repeat(1_000)).await.expect("the queue accepts the task");
    }
    let worker = queue.worker(|_| async { Err(TaskFailure::dead_letter("hopeless")) });
    run_with_workers(vec![worker.concurrency(1).max_dead_bytes(2_500)], async {
        eventually("the oldest to go", async || {
            let stats = queue.stats().await.expect("it is there");
            (stats.dead, stats.trimmed, stats.dead_letters) == (3, 1, 2)
        })
        .await;
    })
    .await;
}

async fn handler_sees_attempt_number(case: TestCase) {
    let queue = text_queue(&case).await.max_attempts(2);
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&attempts);
    let worker = queue.worker(move |task: Task<String>| {
        recorded.lock().push((task.attempt(), task.is_last_attempt(), task.pushed_at()));
        async { Err(TaskFailure::new("as it should")) }
    });
    let id = queue.push(&"x".to_owned()).await.expect("the queue accepts the task").into_id();
    let pushed = queue.get(&id).await.expect("it is there").expect("it waits").pushed_at;
    let backoff = Duration::from_millis(1);
    run_with_workers(vec![worker.backoff(backoff, backoff)], async {
        eventually("it to die", async || {
            let info = queue.get(&id).await.expect("it is there").expect("it is stored");
            info.state == TaskState::Dead
        })
        .await;
    })
    .await;
    assert_eq!(*attempts.lock(), [(1, false, pushed), (2, true, pushed)]);
}

/// Cursors pass through text, as in a URL.
async fn purge_waiting_keeps_dead_letters(case: TestCase) {
    let queue = text_queue(&case).await.once();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(queue.push(&"x".to_owned()).await.expect("the queue accepts the task").into_id());
    }
    let worker = queue.worker(|_| async { Err(TaskFailure::dead_letter("hopeless")) });
    run_with_workers(vec![worker.concurrency(1)], async {
        eventually("them to die", async || {
            queue.stats().await.expect("it is there").dead_letters == 3
        })
        .await;
    })
    .await;
    let _ = queue.push(&"now".to_owned()).await.expect("the queue accepts the task");
    let _ = queue.push(&"later".to_owned()).delay(HOUR).await.expect("the queue accepts the task");
    assert_eq!(queue.purge_waiting().await.expect("it is there"), 2);
    let (mut after, mut dead) = (None, Vec::new());
    loop {
        let page = queue.dead_letters(after, 1).await.expect("it is there");
        dead.extend(page.tasks.into_iter().map(|task| task.id));
        let Some(next) = page.next else { break };
        let text = next.to_string();
        after = Some(text.parse().expect("a cursor"));
        assert_eq!(after, Some(next));
    }
    assert_eq!(dead, ids);
    assert!("x".parse::<DeadLetterCursor>().is_err());
}

async fn sealed_task_runs_only_with_its_key(case: TestCase) {
    let ring = || Keyring::new("one", [7; 32]).require_sealed();
    let (store, sealing_store) =
        (case.new_store().await, case.new_store().await.with_keyring(ring()));
    let (queue_without_key, queue): (Queue<String>, Queue<String>) =
        (store.queue("texts"), sealing_store.queue("texts"));
    let id = queue.push(&"secret".to_owned()).await.expect("the queue accepts the task").into_id();
    assert!(queue_without_key.payload(&id).await.is_err(), "it is sealed");
    let payload = queue.payload(&id).await.expect("it is there");
    assert_eq!(payload.as_deref(), Some("secret"));
    let completed = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&completed);
    let worker = queue.worker(move |task: Task<String>| {
        recorded.lock().push(task.payload);
        async { Ok::<(), TaskFailure>(()) }
    });
    run_with_workers(vec![worker], async {
        eventually("it to run", async || queue.get(&id).await.expect("it is there").is_none())
            .await;
    })
    .await;
    assert_eq!(*completed.lock(), ["secret"]);
}
