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

/// Tasks that push, one after the other each.
const PUSHER_COUNT: u64 = 3;

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TaskPayload {
    name: String,
    duration_ms: u64,
    /// So many attempts fail.
    failing_attempts: u32,
    /// So many attempts panic.
    panicking_attempts: u32,
}

/// Pushes and runs until it is told to `stop`; then it pushes no more, says so, and runs what there is until its input
/// ends.
///
/// # Panics
///
/// If the URL is wrong or the log can't be written.
pub async fn run_task_process(job: ProcessArgs) {
    // Those that are asked for are no news.
    std::panic::set_hook(Box::new(|_| {}));
    let store = Store::builder(&job.url).call_timeout(Duration::from_secs(5)).connect().await;
    let store = store.expect("the URL is right");
    let log = Arc::new(EventLog::open(&job.log_path).expect("the log can be made"));
    let (orders, seed) = (ProcessControl::from_stdin(|_| ()), job.seed);
    stall_monitor::record_own_stalls(Arc::clone(&log));
    let queue: Queue<TaskPayload> = store.queue(QUEUE_NAME).max_attempts(MAX_ATTEMPTS);
    let (runs, its) = (Arc::new(AtomicU64::new(0)), Arc::clone(&log));
    let worker = queue.worker(move |task| run_task(task, Arc::clone(&its), Arc::clone(&runs)));
    let worker = worker.concurrency(8).lease(RUN_LEASE).max_crashes(MAX_ATTEMPTS);
    let worker = worker.backoff(Duration::from_millis(100), Duration::from_secs(1));
    tokio::spawn(worker.run(std::future::pending()));
    let mut dice = SeededRng::new(seed);
    let pushers = (0..PUSHER_COUNT).map(|n| {
        let (queue, log, orders) = (queue.clone(), Arc::clone(&log), Arc::clone(&orders));
        let name = format!("{seed:x}-{n}");
        tokio::spawn(push_tasks(queue, log, orders, name, SeededRng::new(dice.next_u64())))
    });
    for pusher in pushers.collect::<Vec<_>>() {
        pusher.await.expect("no task panics");
    }
    process_control::report_idle_and_wait(true).await;
}

async fn push_tasks(
    queue: Queue<TaskPayload>,
    log: Arc<EventLog>,
    orders: Arc<ProcessControl>,
    of: String,
    mut dice: SeededRng,
) {
    for n in 0.. {
        if !orders.wait_to_continue().await {
            return;
        }
        let name = format!("{of}-{n}");
        let (fail, panic) = match dice.below(10) {
            0 => (1, 0),
            1 => (0, 1),
            _ => (0, 0),
        };
        let once = dice.chance_percent(20);
        let errand = TaskPayload {
            name: name.clone(),
            duration_ms: dice.below(60),
            failing_attempts: fail,
            panicking_attempts: panic,
        };
        log.record(&PushEvent::Requested(name.clone(), once));
        let request = queue.push(&errand);
        let request = if once { request.once() } else { request };
        let request = if dice.chance_percent(10) {
            request.delay(dice.duration_between_ms(100, 900))
        } else {
            request
        };
        match request.await {
            Ok(pushed) => log.record(&PushEvent::Stored(name, pushed.id().to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(dice.duration_between_ms(2, 30)).await;
    }
}

async fn run_task(
    task: Task<TaskPayload>,
    log: Arc<EventLog>,
    runs: Arc<AtomicU64>,
) -> Result<(), TaskFailure> {
    let run = runs.fetch_add(1, Ordering::Relaxed);
    // What nobody says to a run is that its lease is over: it is dropped then. There is no fence.
    let valid = || clock::now_ns() + duration_ns(RUN_LEASE);
    let (attempt, errand) = (task.attempt(), &task.payload);
    let id = task.id().to_string();
    let start = RunEvent::Started {
        run,
        resource: errand.name.clone(),
        job: id,
        attempt,
        fence: clock::now_ns(),
        valid_until: valid(),
    };
    let written = RunRecorder::start(&log, run, &start);
    written.work_for(errand.duration_ms, || Some(valid())).await;
    let (fails, panics) =
        (attempt <= errand.failing_attempts, attempt <= errand.panicking_attempts);
    written.finish(if fails || panics { 500 } else { 200 }, &errand.name);
    assert!(!panics, "asked to panic");
    if fails { Err(TaskFailure::new("asked to fail")) } else { Ok(()) }
}
