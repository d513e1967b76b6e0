//! A process that pushes tasks and runs those of all.

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

use super::{LEASE, Line, MOST, QUEUE};
use crate::{
    checker::deferred::RunEvent,
    fleet::{
        Job,
        clock::{self, ns},
        dice::Dice,
        log::Log,
        orders::{self, Orders},
        run::Run,
        stall,
    },
};

/// Tasks that push, one after the other each.
const PUSHERS: u64 = 3;

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Errand {
    name: String,
    ms: u64,
    /// So many attempts fail.
    fail: u32,
    /// So many attempts panic.
    panic: u32,
}

/// Pushes and runs until it is told to `stop`; then it pushes no more, says so, and runs what there is until its input
/// ends.
///
/// # Panics
///
/// If the URL is wrong or the log can't be written.
pub async fn tasks(job: Job) {
    // Those that are asked for are no news.
    std::panic::set_hook(Box::new(|_| {}));
    let store = Store::builder(&job.url).call_timeout(Duration::from_secs(5)).connect().await;
    let store = store.expect("the URL is right");
    let log = Arc::new(Log::open(&job.log).expect("the log can be made"));
    let (orders, seed) = (Orders::follow(|_| ()), job.seed);
    stall::note_own(Arc::clone(&log));
    let queue: Queue<Errand> = store.queue(QUEUE).max_attempts(MOST);
    let (runs, its) = (Arc::new(AtomicU64::new(0)), Arc::clone(&log));
    let worker = queue.worker(move |task| run(task, Arc::clone(&its), Arc::clone(&runs)));
    let worker = worker.concurrency(8).lease(LEASE).max_crashes(MOST);
    let worker = worker.backoff(Duration::from_millis(100), Duration::from_secs(1));
    tokio::spawn(worker.run(std::future::pending()));
    let mut dice = Dice::new(seed);
    let pushers = (0..PUSHERS).map(|n| {
        let (queue, log, orders) = (queue.clone(), Arc::clone(&log), Arc::clone(&orders));
        let name = format!("{seed:x}-{n}");
        tokio::spawn(push(queue, log, orders, name, Dice::new(dice.roll())))
    });
    for pusher in pushers.collect::<Vec<_>>() {
        pusher.await.expect("no task panics");
    }
    orders::quiet(true).await;
}

async fn push(
    queue: Queue<Errand>,
    log: Arc<Log>,
    orders: Arc<Orders>,
    of: String,
    mut dice: Dice,
) {
    for n in 0.. {
        if !orders.go_on().await {
            return;
        }
        let name = format!("{of}-{n}");
        let (fail, panic) = match dice.below(10) {
            0 => (1, 0),
            1 => (0, 1),
            _ => (0, 0),
        };
        let once = dice.percent(20);
        let errand = Errand { name: name.clone(), ms: dice.below(60), fail, panic };
        log.note(&Line::Push(name.clone(), once));
        let request = queue.push(&errand);
        let request = if once { request.once() } else { request };
        let request = if dice.percent(10) { request.delay(dice.ms(100, 900)) } else { request };
        match request.await {
            Ok(pushed) => log.note(&Line::Pushed(name, pushed.id().to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        tokio::time::sleep(dice.ms(2, 30)).await;
    }
}

async fn run(task: Task<Errand>, log: Arc<Log>, runs: Arc<AtomicU64>) -> Result<(), TaskFailure> {
    let run = runs.fetch_add(1, Ordering::Relaxed);
    // What nobody says to a run is that its lease is over: it is dropped then. There is no fence.
    let valid = || clock::now() + ns(LEASE);
    let (attempt, errand) = (task.attempt(), &task.payload);
    let id = task.id().to_string();
    let start = RunEvent::Started(run, errand.name.clone(), id, attempt, clock::now(), valid());
    let written = Run::start(&log, run, &start);
    written.works(errand.ms, || Some(valid())).await;
    let (fails, panics) = (attempt <= errand.fail, attempt <= errand.panic);
    written.end(if fails || panics { 500 } else { 200 }, &errand.name);
    assert!(!panics, "asked to panic");
    if fails { Err(TaskFailure::new("asked to fail")) } else { Ok(()) }
}
