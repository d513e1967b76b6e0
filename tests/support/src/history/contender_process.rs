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

/// How often each of them has the lock in one go.
pub const ACQUIRES_PER_CONTENDER: u64 = 5;

/// What a turn takes, ns: a thousand of them take longer than it does to be sure of standing in line, or no order would
/// be judged.
const HOLD_NS: u64 = 300_000;

/// Longer than anything takes that is not wrong.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

/// Hears `go`: all tasks take the lock `x` in turn, write that down and say `done`; and `beyond`: twice as many as may
/// wait ask for it while somebody else has it, and say in how many microseconds the last of those beyond that was `refused`,
/// and that all others were `served`.
///
/// # Panics
///
/// If the store is not there, or the log can't be written.
pub async fn run_contenders(url: &str, log: &Path) {
    let store = connect_with_long_timeout(url).await;
    let log = Arc::new(EventLog::open(log).expect("the log can be made"));
    let notes = Arc::clone(&log);
    tokio::spawn(stalls::report_process_stalls(move |since, _| {
        notes.record(&LockEvent::Stalled { since });
    }));
    let request = || store.lock("x").wait(ACQUIRE_TIMEOUT);
    let mut begun = 0;
    let mut words = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(word)) = words.next_line().await {
        match &*word {
            "go" => {
                run_acquire_round(&request(), &log, begun).await;
                begun += CONTENDER_COUNT * ACQUIRES_PER_CONTENDER;
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

async fn run_acquire_round(request: &LockRequest, log: &Arc<EventLog>, begun: u64) {
    let tasks = (0..CONTENDER_COUNT).map(|task| {
        let (request, log) = (request.clone(), Arc::clone(log));
        tokio::spawn(async move {
            for turn in 0..ACQUIRES_PER_CONTENDER {
                let op = begun + task * ACQUIRES_PER_CONTENDER + turn;
                log.record(&LockEvent::Requested {
                    acquisition: op,
                    lock: "x".to_owned(),
                    mode: RecordedLockMode::Exclusive,
                });
                let guard = request.clone().acquire().await.expect("it is served");
                let sure = clock::now_ns() + clock::duration_ns(guard.remaining());
                log.record(&LockEvent::Granted {
                    acquisition: op,
                    fence: guard.fence(),
                    valid_until: sure,
                });
                tokio::task::yield_now().await;
                spin();
                log.record(&LockEvent::Releasing { acquisition: op });
                assert_eq!(guard.release().await, ReleaseStatus::Released);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
}

async fn exceed_max_waiters(request: &LockRequest) {
    let most = usize::try_from(CONTENDER_COUNT).expect("a number of tasks");
    let request = request.clone().max_waiters(most);
    let mut all = JoinSet::new();
    for _ in 0..2 * most {
        let request = request.clone();
        all.spawn(async move {
            let asked = Instant::now();
            (request.acquire().await, asked.elapsed())
        });
    }
    // Beside those who wait there is one who asks the store for them.
    let mut longest = Duration::ZERO;
    for _ in 0..most - 1 {
        match all.join_next().await.expect("there are more").expect("no task panics") {
            (Err(AcquireError::Busy(_)), took) => longest = longest.max(took),
            other => panic!("somebody has it: {other:?}"),
        }
    }
    print_line(&format!("refused {}", longest.as_micros()));
    let mut served = 0;
    while let Some(ended) = all.join_next().await {
        if let (Ok(guard), _) = ended.expect("no task panics") {
            assert_eq!(guard.release().await, ReleaseStatus::Released);
            served += 1;
        }
    }
    assert!(served >= most, "{served}");
    print_line("served");
}
