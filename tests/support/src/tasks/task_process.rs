//! Process that pushes tasks, and runs those of all processes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate::{
    Store,
    queue::{Queue, Task, TaskFailure},
};
use serde::{Deserialize, Serialize};

use super::{MAX_ATTEMPTS, PushEvent, QUEUE_NAME, RUN_LEASE};
use crate::{
    checker::deferred::RunEvent,
    fleet::{
        ProcessArgs,
        clock::{self, duration_ns},
        event_log::EventLog,
        process_control::{self, ProcessControl},
        run_recorder::RunRecorder,
        seeded_rng::SeededRng,
        stall_monitor,
    },
};

/// Concurrent pushers.
const PUSHER_COUNT: u64 = 3;

/// Payload of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TaskPayload {
    name: String,
    duration_ms: u64,
    /// Number of attempts that fail.
    failing_attempts: u32,
    /// Number of attempts that panic.
    panicking_attempts: u32,
}

/// Pushes and runs tasks until the command `stop`. It then stops pushing, reports that, and runs
/// tasks until its input ends.
///
/// # Panics
///
/// If the URL is invalid or the log cannot be written.
pub async fn run_task_process(args: ProcessArgs) {
    // Suppresses the output of instructed panics.
    std::panic::set_hook(Box::new(|_| {}));
    let store = Store::builder(&args.url).call_timeout(Duration::from_secs(5)).connect().await;
    let store = store.expect("the URL is right");
    let log = Arc::new(EventLog::open(&args.log_path).expect("the log can be made"));
    let (control, seed) = (ProcessControl::from_stdin(|_| ()), args.seed);
    stall_monitor::record_own_stalls(Arc::clone(&log));
    let queue: Queue<TaskPayload> = store.queue(QUEUE_NAME).max_attempts(MAX_ATTEMPTS);
    let (runs, task_log) = (Arc::new(AtomicU64::new(0)), Arc::clone(&log));
    let worker = queue.worker(move |task| run_task(task, Arc::clone(&task_log), Arc::clone(&runs)));
    let worker = worker.concurrency(8).lease(RUN_LEASE).max_crashes(MAX_ATTEMPTS);
    let worker = worker.backoff(Duration::from_millis(100), Duration::from_secs(1));
    tokio::spawn(worker.run(std::future::pending()));
    let mut rng = SeededRng::new(seed);
    let pushers = (0..PUSHER_COUNT).map(|n| {
        let (queue, log, control) = (queue.clone(), Arc::clone(&log), Arc::clone(&control));
        let name = format!("{seed:x}-{n}");
        tokio::spawn(push_tasks(queue, log, control, name, SeededRng::new(rng.next_u64())))
    });
    for pusher in pushers.collect::<Vec<_>>() {
        pusher.await.expect("no task panics");
    }
    process_control::report_idle_and_wait(true).await;
}

async fn push_tasks(
    queue: Queue<TaskPayload>,
    log: Arc<EventLog>,
    control: Arc<ProcessControl>,
    name_prefix: String,
    mut rng: SeededRng,
) {
    for n in 0.. {
        if !control.wait_to_continue().await {
            return;
        }
        let name = format!("{name_prefix}-{n}");
        let (fail, panic) = match rng.below(10) {
            0 => (1, 0),
            1 => (0, 1),
            _ => (0, 0),
        };
        let once = rng.chance_percent(20);
        let payload = TaskPayload {
            name: name.clone(),
            duration_ms: rng.below(60),
            failing_attempts: fail,
            panicking_attempts: panic,
        };
        log.record(&PushEvent::Requested(name.clone(), once));
        let request = queue.push(&payload);
        let request = if once { request.once() } else { request };
        let request = if rng.chance_percent(10) {
            request.delay(rng.duration_between_ms(100, 900))
        } else {
            request
        };
        match request.await {
            Ok(pushed) => log.record(&PushEvent::Stored(name, pushed.id().to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(rng.duration_between_ms(2, 30)).await;
    }
}

async fn run_task(
    task: Task<TaskPayload>,
    log: Arc<EventLog>,
    runs: Arc<AtomicU64>,
) -> Result<(), TaskFailure> {
    let run = runs.fetch_add(1, Ordering::Relaxed);
    // A run is dropped when its lease ends, without a notice, and it has no fence.
    let validity_end = || clock::now_ns() + duration_ns(RUN_LEASE);
    let (attempt, payload) = (task.attempt(), &task.payload);
    let id = task.id().to_string();
    let start = RunEvent::Started {
        run,
        resource: payload.name.clone(),
        job: id,
        attempt,
        fence: clock::now_ns(),
        valid_until: validity_end(),
    };
    let recorder = RunRecorder::start(&log, run, &start);
    recorder.work_for(payload.duration_ms, || Some(validity_end())).await;
    let (fails, panics) =
        (attempt <= payload.failing_attempts, attempt <= payload.panicking_attempts);
    recorder.finish(if fails || panics { 500 } else { 200 }, &payload.name);
    assert!(!panics, "asked to panic");
    if fails { Err(TaskFailure::new("asked to fail")) } else { Ok(()) }
}
