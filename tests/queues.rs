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

/// Works for as long as that takes.
async fn run_with_workers<T>(workers: Vec<QueueWorker>, test: impl Future<Output = T>) -> T {
    let mut stops = Vec::new();
    let mut ends = Vec::new();
    for worker in workers {
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        ends.push(tokio::spawn(worker.run(async {
            let _ = stopped.await;
        })));
    }
    let answer = pin!(test).await;
    drop(stops);
    for end in ends {
        end.await.expect("it ends well");
    }
    answer
}

async fn unique_key_is_reserved_for_its_window(case: TestCase) {
    let queue = text_queue(&case).await;
    let push = |key: &str, window| queue.push(&"x".to_owned()).unique_for(key, window);
    let first = push("long", HOUR).await.expect("there is room").into_id();
    assert_eq!(
        push("long", HOUR).await.expect("there is room"),
        PushedTask::Duplicate(first.clone())
    );
    // Whatever has become of the task.
    assert_eq!(queue.cancel(&first).await.expect("it is there"), Some(TaskState::Waiting));
    assert_eq!(push("long", HOUR).await.expect("there is room"), PushedTask::Duplicate(first));
    // And no longer, though it waits still.
    let moment = Duration::from_millis(1);
    let brief = push("brief", moment).await.expect("there is room").into_id();
    eventually("the key to be free", async || {
        matches!(push("brief", moment).await.expect("there is room"), PushedTask::New(_))
    })
    .await;
    let info = queue.get(&brief).await.expect("it is there").expect("it waits");
    assert_eq!(info.state, TaskState::Waiting);
}

async fn scheduled_task_runs_at_its_time(case: TestCase) {
    let queue = text_queue(&case).await;
    let push = |text: &str, at| queue.push(&text.to_owned()).run_at(at);
    let now = SystemTime::now();
    let later = push("later", now + HOUR).await.expect("there is room").into_id();
    let past = push("past", now - HOUR).await.expect("there is room").into_id();
    let info = queue.get(&later).await.expect("it is there").expect("it waits");
    assert!(HOUR / 2 < info.due_in && info.due_in <= HOUR, "{info:?}");
    let decade = HOUR * 24 * 3650;
    let far = push("far", now + decade).await.expect("there is room").into_id();
    let info = queue.get(&far).await.expect("it is there").expect("it waits");
    assert!(decade - HOUR < info.due_in && info.due_in <= decade, "{info:?}");
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ran);
    let worker = queue.worker(move |task: Task<String>| {
        noted.lock().push(task.payload);
        async { Ok::<(), TaskFailure>(()) }
    });
    run_with_workers(vec![worker], async {
        eventually("it to run", async || queue.get(&past).await.expect("it is there").is_none())
            .await;
    })
    .await;
    assert_eq!(*ran.lock(), ["past"]);
}

/// Each handler asks the store meanwhile, so that others would have all the time to begin.
async fn queue_concurrency_of_one_holds_across_workers(case: TestCase) {
    let (one, other) = (text_queue(&case).await, text_queue(&case).await);
    for n in 0..12 {
        let _ = one.push(&n.to_string()).await.expect("there is room");
    }
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let worker = |queue: &Queue<String>| {
        let (running, most, queue) = (Arc::clone(&running), Arc::clone(&most), queue.clone());
        let handler = queue.clone().worker(move |_| {
            let (running, most, queue) = (Arc::clone(&running), Arc::clone(&most), queue.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
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
    run_with_workers(vec![worker(&one), worker(&other)], async {
        eventually("all to run", async || one.stats().await.expect("it is there").done == 12).await;
    })
    .await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "at once");
}

async fn waiting_payload_bytes_are_limited(case: TestCase) {
    let queue = text_queue(&case).await.capacity_bytes(1_500);
    let kilobyte = "x".repeat(1_000);
    let first = queue.push(&kilobyte).await.expect("there is room").into_id();
    assert!(matches!(queue.push(&kilobyte).await, Err(PushError::Full)));
    let _ = queue.push(&"x".to_owned()).await.expect("there is room for a little");
    let _ = queue.cancel(&first).await.expect("it is there");
    let _ = queue.push(&kilobyte).await.expect("there is room again");
}

/// As JSON, so with the quotation marks. What is too long leaves nothing behind, not even its unique key.
async fn payload_size_is_limited(case: TestCase) {
    let usual = text_queue(&case).await;
    for (queue, limit) in [(usual.clone(), 256 * 1024), (usual.payload_limit(1_000), 1_000)] {
        let before = queue.stats().await.expect("it is there");
        let longest = "x".repeat(limit - 2);
        let refused = queue.push(&format!("{longest}x")).unique("one").await;
        let Err(error @ PushError::TooLarge { .. }) = refused else { panic!("{refused:?}") };
        let said = format!("the payload has {} bytes; the queue takes at most {limit}", limit + 1);
        assert_eq!(error.to_string(), said);
        assert_eq!(queue.stats().await.expect("it is there"), before);
        let pushed = queue.push(&longest).unique("one").await.expect("it fits");
        assert!(matches!(pushed, PushedTask::New(_)), "{pushed:?}");
        assert_eq!(queue.purge_waiting().await.expect("it is there"), 1);
    }
}

async fn dead_letter_bytes_are_limited(case: TestCase) {
    let queue = text_queue(&case).await.once();
    for _ in 0..3 {
        let _ = queue.push(&"x".repeat(1_000)).await.expect("there is room");
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
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let worker = queue.worker(move |task: Task<String>| {
        noted.lock().push((task.attempt(), task.is_last_attempt(), task.pushed_at()));
        async { Err(TaskFailure::new("as it should")) }
    });
    let id = queue.push(&"x".to_owned()).await.expect("there is room").into_id();
    let pushed = queue.get(&id).await.expect("it is there").expect("it waits").pushed_at;
    let moment = Duration::from_millis(1);
    run_with_workers(vec![worker.backoff(moment, moment)], async {
        eventually("it to die", async || {
            let info = queue.get(&id).await.expect("it is there").expect("it is kept");
            info.state == TaskState::Dead
        })
        .await;
    })
    .await;
    assert_eq!(*seen.lock(), [(1, false, pushed), (2, true, pushed)]);
}

/// The pages' places go through text, as in an address.
async fn purge_waiting_keeps_dead_letters(case: TestCase) {
    let queue = text_queue(&case).await.once();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(queue.push(&"x".to_owned()).await.expect("there is room").into_id());
    }
    let worker = queue.worker(|_| async { Err(TaskFailure::dead_letter("hopeless")) });
    run_with_workers(vec![worker.concurrency(1)], async {
        eventually("them to die", async || {
            queue.stats().await.expect("it is there").dead_letters == 3
        })
        .await;
    })
    .await;
    let _ = queue.push(&"now".to_owned()).await.expect("there is room");
    let _ = queue.push(&"later".to_owned()).delay(HOUR).await.expect("there is room");
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
    let (one, other) = (case.new_store().await, case.new_store().await.with_keyring(ring()));
    let (without, queue): (Queue<String>, Queue<String>) =
        (one.queue("texts"), other.queue("texts"));
    let id = queue.push(&"secret".to_owned()).await.expect("there is room").into_id();
    assert!(without.payload(&id).await.is_err(), "it is sealed");
    let payload = queue.payload(&id).await.expect("it is there");
    assert_eq!(payload.as_deref(), Some("secret"));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ran);
    let worker = queue.worker(move |task: Task<String>| {
        noted.lock().push(task.payload);
        async { Ok::<(), TaskFailure>(()) }
    });
    run_with_workers(vec![worker], async {
        eventually("it to run", async || queue.get(&id).await.expect("it is there").is_none())
            .await;
    })
    .await;
    assert_eq!(*ran.lock(), ["secret"]);
}
