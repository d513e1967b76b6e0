//! Worker process: tasks that acquire and release locks of one contender in a closed loop. All
//! contenders use the same runtime with two threads.

use std::{
    io::{self, Write as _},
    mem, process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use crate::{
    acquire_event::{AcquireEvent, EventsHeader},
    bench_result::BenchResult,
    clock,
    lock_contender::{ContenderVisitor, LockContender, dispatch_contender},
    runner_commands::RunnerCommands,
    simulated_work,
    worker_plan::{LockKeys, WorkerPlan},
};

/// Longer than any window, so that it ends only a process that hangs.
const MAX_RUN_TIME: Duration = Duration::from_secs(120);

/// Longer than the connect timeouts of all contenders.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn main(plan: &str) -> BenchResult<()> {
    let plan: WorkerPlan = serde_json::from_str(plan)?;
    dispatch_contender(plan.contender.kind, LockWorker { plan })
}

/// Creates the runtime of every measured process, with the number of threads that tokio chooses on
/// two cores.
pub(crate) fn worker_runtime() -> BenchResult<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

struct LockWorker {
    plan: WorkerPlan,
}

/// Events of one task. Only the task itself uses it, and the main thread at the end of the window.
struct TaskRecorder {
    events: Mutex<Vec<AcquireEvent>>,
    /// Start of the current acquire in nanoseconds; zero between acquires.
    waiting_since: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// Initial capacity for events. Reallocation while a lock is held would be measured.
const EVENT_CAPACITY: usize = 1 << 15;

impl TaskRecorder {
    fn new() -> Self {
        Self {
            events: Mutex::new(Vec::with_capacity(EVENT_CAPACITY)),
            waiting_since: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first_error: Mutex::new(None),
        }
    }

    fn record_acquire(&self, event: AcquireEvent) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    fn record_failure(&self, message: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut first_error = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
        first_error.get_or_insert_with(|| message.to_owned());
    }
}

impl ContenderVisitor for LockWorker {
    fn run_with<C: LockContender>(self) -> BenchResult<()> {
        let plan = self.plan;
        let commands = RunnerCommands::listen(plan.contender, MAX_RUN_TIME);
        let runtime = worker_runtime()?;
        let contender = runtime.block_on(connect_contender::<C>(&plan))?;
        let contender = Arc::new(contender);
        let locks: Vec<_> = (0..plan.scenario.tasks_per_process)
            .map(|task| lock_names(&plan, task).map(|name| contender.prepare_lock(&name)).collect())
            .collect();
        let start = commands.await_start()?;
        let mut recorders = Vec::new();
        for (task, locks) in (0..).zip(locks) {
            let recorder = Arc::new(TaskRecorder::new());
            let contender = Arc::clone(&contender);
            runtime.spawn(run_task(
                contender,
                locks,
                plan.scenario.work_iterations,
                task,
                Arc::clone(&recorder),
            ));
            recorders.push(recorder);
        }
        let end = start + clock::duration_nanos(plan.window);
        clock::sleep_until(end);
        send_events(&recorders, start, end)?;
        // The tasks still run, and the runtime of some peers does not shut down.
        process::exit(0)
    }
}

/// Connects the contender. The timeout names a peer that hangs long before `MAX_RUN_TIME` ends the
/// process.
async fn connect_contender<C: LockContender>(plan: &WorkerPlan) -> BenchResult<C> {
    let WorkerPlan { contender, redis_port: port, .. } = plan;
    let connected =
        tokio::time::timeout(CONNECT_TIMEOUT, C::connect(*port, contender.retry_delay)).await;
    connected.map_err(|_| format!("{contender} did not connect within {CONNECT_TIMEOUT:?}"))?
}

fn lock_names(plan: &WorkerPlan, task: u32) -> impl Iterator<Item = String> {
    let process = plan.process_index;
    let own_count = match plan.scenario.keys {
        LockKeys::Hot => 0,
        LockKeys::Own(count) => count,
    };
    let hot_key = (own_count == 0).then(|| "hot".to_owned());
    hot_key.into_iter().chain((0..own_count).map(move |key| format!("own-{process}-{task}-{key}")))
}

/// Acquires and releases the locks of one task in turn, forever.
async fn run_task<C: LockContender>(
    contender: Arc<C>,
    locks: Vec<C::Lock>,
    work_iterations: u64,
    task: u32,
    recorder: Arc<TaskRecorder>,
) {
    for lock in locks.iter().cycle() {
        let acquire_start = clock::now();
        recorder.waiting_since.store(acquire_start, Ordering::Relaxed);
        let guard = contender.acquire(lock).await;
        let acquired_at = clock::now();
        recorder.waiting_since.store(0, Ordering::Relaxed);
        let result = match guard {
            Ok(guard) => {
                if work_iterations > 0 {
                    simulated_work::run_iterations(work_iterations);
                }
                let held_for = clock::now() - acquired_at;
                recorder.record_acquire(AcquireEvent {
                    acquired_at,
                    wait: acquired_at - acquire_start,
                    held_for,
                    task,
                });
                contender.release(guard).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            recorder.record_failure(&error.to_string());
            // A call that fails at once must not turn this into a busy loop.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Sends the events from `start` to `end`: the header as one line of JSON, then the bytes.
fn send_events(recorders: &[Arc<TaskRecorder>], start: u64, end: u64) -> BenchResult<()> {
    let mut header = EventsHeader::default();
    let mut bytes = Vec::new();
    // Waits first, because encoding the events takes long enough to end some of them.
    for recorder in recorders {
        let since = recorder.waiting_since.load(Ordering::Relaxed);
        if since != 0 && since < end {
            header.longest_open_wait = header.longest_open_wait.max(end - since);
        }
    }
    for recorder in recorders {
        let events =
            mem::take(&mut *recorder.events.lock().unwrap_or_else(PoisonError::into_inner));
        for event in events.iter().filter(|event| (start..end).contains(&event.acquired_at)) {
            event.encode(&mut bytes);
        }
        header.errors += recorder.errors.load(Ordering::Relaxed);
        let first_error =
            recorder.first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        header.first_error = header.first_error.or(first_error);
    }
    header.event_count = bytes.len() / AcquireEvent::ENCODED_SIZE;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&header)?)?;
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}
