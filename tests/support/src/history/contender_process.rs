//! Process with many tasks that contend for one lock.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{AcquireError, LockRequest, ReleaseStatus};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    task::JoinSet,
};

use crate::{
    checker::locks::{LockEvent, RecordedLockMode},
    fleet::{clock, event_log::EventLog, process_control::print_line},
    redis_server::connect_with_long_timeout,
    stalls,
};

/// Tasks of one process.
pub const CONTENDER_COUNT: u64 = 334;

/// Acquisitions of each task in a round.
pub const ACQUIRES_PER_CONTENDER: u64 = 5;

/// Duration of a hold, ns: a thousand of them take longer than an enqueue, so that the order of the
/// waits can be checked.
const HOLD_NS: u64 = 300_000;

/// Longer than any correct acquire takes.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the commands of its input:
///
/// - `go`: all tasks acquire the lock `x` repeatedly and record the events. The process prints
///   `done`.
/// - `beyond`: twice the limit of waiters acquire the lock while it is held. The process prints
///   `refused` with the longest delay of a refusal in microseconds, and `served` when all others
///   were granted it.
///
/// # Panics
///
/// If the store is unavailable or the log cannot be written.
pub async fn run_contenders(url: &str, log: &Path) {
    let store = connect_with_long_timeout(url).await;
    let log = Arc::new(EventLog::open(log).expect("the log can be made"));
    let stall_log = Arc::clone(&log);
    tokio::spawn(stalls::report_process_stalls(move |since, _| {
        stall_log.record(&LockEvent::Stalled { since });
    }));
    let request = || store.lock("x").wait(ACQUIRE_TIMEOUT);
    let mut next_operation = 0;
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(command)) = commands.next_line().await {
        match &*command {
            "go" => {
                run_acquire_round(&request(), &log, next_operation).await;
                next_operation += CONTENDER_COUNT * ACQUIRES_PER_CONTENDER;
                print_line("done");
            }
            "beyond" => exceed_max_waiters(&request()).await,
            other => print_line(&format!("can't {other}")),
        }
    }
}

/// Keeps a core busy, as a handler's work does.
fn spin() {
    let end = clock::now_ns() + HOLD_NS;
    while clock::now_ns() < end {
        std::hint::spin_loop();
    }
}

async fn run_acquire_round(request: &LockRequest, log: &Arc<EventLog>, first_operation: u64) {
    let tasks = (0..CONTENDER_COUNT).map(|task| {
        let (request, log) = (request.clone(), Arc::clone(log));
        tokio::spawn(async move {
            for round in 0..ACQUIRES_PER_CONTENDER {
                let operation = first_operation + task * ACQUIRES_PER_CONTENDER + round;
                log.record(&LockEvent::Requested {
                    acquisition: operation,
                    lock: "x".to_owned(),
                    mode: RecordedLockMode::Exclusive,
                });
                let guard = request.clone().acquire().await.expect("it is served");
                let valid_until = clock::now_ns() + clock::duration_ns(guard.remaining());
                log.record(&LockEvent::Granted {
                    acquisition: operation,
                    fence: guard.fence(),
                    valid_until,
                });
                tokio::task::yield_now().await;
                spin();
                log.record(&LockEvent::Releasing { acquisition: operation });
                assert_eq!(guard.release().await, ReleaseStatus::Released);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
}

async fn exceed_max_waiters(request: &LockRequest) {
    let max_waiters = usize::try_from(CONTENDER_COUNT).expect("a number of tasks");
    let request = request.clone().max_waiters(max_waiters);
    let mut tasks = JoinSet::new();
    for _ in 0..2 * max_waiters {
        let request = request.clone();
        tasks.spawn(async move {
            let started = Instant::now();
            (request.acquire().await, started.elapsed())
        });
    }
    // One caller beside the waiters is the leader, which calls the store for them.
    let mut longest_refusal = Duration::ZERO;
    for _ in 0..max_waiters - 1 {
        match tasks.join_next().await.expect("there are more").expect("no task panics") {
            (Err(AcquireError::Busy(_)), elapsed) => longest_refusal = longest_refusal.max(elapsed),
            other => panic!("the acquire is not refused as busy: {other:?}"),
        }
    }
    print_line(&format!("refused {}", longest_refusal.as_micros()));
    let mut served = 0;
    while let Some(ended) = tasks.join_next().await {
        if let (Ok(guard), _) = ended.expect("no task panics") {
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            served += 1;
        }
    }
    assert!(served >= max_waiters, "{served}");
    print_line("served");
}
