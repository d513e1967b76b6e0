//! A worker process: a few tasks that take locks, change registers under them, and write down what they see.

use std::{
    io::{BufRead as _, Write as _},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use lockgate::{LockGuard, NotAcquired, Store};
use lockgate_history::locks::Event;
use tokio::runtime::Handle;

use super::{
    clock,
    dice::Dice,
    log::Log,
    register::{Registers, Values},
    turn::{End, REGISTERS, Turn},
};
use crate::{gauge, stalls};

/// Tasks of one process.
const TASKS: u64 = 6;

/// What a worker is told on its command line.
#[derive(Debug, Clone)]
pub struct Job {
    /// The server of the locks.
    pub locks: String,
    /// The server of the registers.
    pub registers: String,
    /// Where it writes.
    pub log: PathBuf,
    /// Of its choices.
    pub seed: u64,
}

impl Job {
    /// From the words of a command line.
    #[must_use]
    pub fn parse(words: &[String]) -> Option<Self> {
        let [locks, registers, log, seed] = words else { return None };
        let (locks, registers) = (locks.clone(), registers.clone());
        Some(Self { locks, registers, log: log.into(), seed: seed.parse().ok()? })
    }

    /// Its words on a command line.
    #[must_use]
    pub fn words(&self) -> [String; 4] {
        let log = self.log.display().to_string();
        [self.locks.clone(), self.registers.clone(), log, self.seed.to_string()]
    }
}

struct Worker {
    store: Store,
    registers: Registers,
    log: Log,
    ops: AtomicU64,
    stop: AtomicBool,
    /// Nothing is begun.
    rests: AtomicBool,
}

/// Works until it is told to `stop`; then it comes to rest, says so, and ends with its input.
///
/// # Panics
///
/// If a server is not there at the start.
pub async fn work(job: Job) {
    let worker = Arc::new(Worker {
        store: Store::connect(&job.locks).await.expect("the URL is right"),
        registers: Registers::open(&job.registers).await.expect("the registers are there"),
        log: Log::open(&job.log).expect("the log can be made"),
        ops: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        rests: AtomicBool::new(false),
    });
    worker.stop_when_told();
    tokio::spawn(Arc::clone(&worker).tick());
    let mut dice = Dice::new(job.seed);
    let tasks = (0..TASKS).map(|_| {
        let dice = Dice::new(dice.roll());
        tokio::spawn(Arc::clone(&worker).go_round(dice))
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
    let clean = worker.store.shutdown(Duration::from_secs(10)).await;
    println!("quiet {clean}");
    let _ = std::io::stdout().flush();
    std::future::pending::<()>().await;
}

impl Worker {
    /// A thread of its own: the end of the input is the end of the process, whatever its runtime does.
    fn stop_when_told(self: &Arc<Self>) {
        let (worker, runtime) = (Arc::clone(self), Handle::current());
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                match line.as_str() {
                    "rest" => worker.rests.store(true, Ordering::Relaxed),
                    "go" => worker.rests.store(false, Ordering::Relaxed),
                    "gauge" => gauge::tell(&runtime),
                    _ => worker.stop.store(true, Ordering::Relaxed),
                }
            }
            std::process::exit(0);
        });
    }

    async fn tick(self: Arc<Self>) {
        stalls::watch(|since, _| self.log.note(&Event::Stall(since))).await;
    }

    async fn go_round(self: Arc<Self>, mut dice: Dice) {
        while !self.stop.load(Ordering::Relaxed) {
            if self.rests.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            let turn = Turn::draw(&mut dice);
            self.take(&turn).await;
            tokio::time::sleep(turn.pause).await;
        }
    }

    async fn take(&self, turn: &Turn) {
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        self.log.note(&Event::Ask(op, turn.lock.to_owned(), turn.mode));
        let acquire = turn.request(&self.store).acquire();
        let acquired = match turn.gives_up {
            Some(after) => tokio::time::timeout(after, acquire).await,
            None => Ok(acquire.await),
        };
        match acquired {
            Ok(Ok(guard)) => {
                let (now, left) = (clock::now(), guard.remaining());
                self.log.note(&Event::Got(op, guard.fence(), now + clock::ns(left)));
                self.hold(op, turn, &guard).await;
                self.end(op, turn, guard).await;
            }
            Ok(Err(NotAcquired::Busy(_))) => self.log.note(&Event::Busy(op)),
            Ok(Err(_)) => {
                self.log.note(&Event::Fault(op));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(_) => self.log.note(&Event::Gone(op)),
        }
    }

    async fn hold(&self, op: u64, turn: &Turn, guard: &LockGuard) {
        let fence = guard.fence();
        let read = match REGISTERS.contains(&turn.lock) {
            true => self.registers.read(turn.lock, fence).await.expect("the registers are there"),
            false => None,
        };
        if !turn.work.is_zero() {
            tokio::select! {
                _ = guard.lost() => {}
                () = tokio::time::sleep(turn.work) => {}
            }
        }
        // What any guarded write has to begin with.
        if !self.still_holds(op, guard) {
            return;
        }
        if let Some(Values { fenced, plain }) = read {
            let next = Values { fenced: fenced + 1, plain: plain + 1 };
            let written = self.registers.write(turn.lock, fence, next).await;
            if written.expect("the registers are there") {
                self.log.note(&Event::Wrote(op, next.fenced.unsigned_abs()));
            }
            self.still_holds(op, guard);
        }
    }

    fn still_holds(&self, op: u64, guard: &LockGuard) -> bool {
        let (now, left) = (clock::now(), guard.remaining());
        let event =
            if left.is_zero() { Event::Lost(op) } else { Event::Holds(op, now + clock::ns(left)) };
        self.log.note(&event);
        !left.is_zero()
    }

    async fn end(&self, op: u64, turn: &Turn, guard: LockGuard) {
        self.log.note(&Event::Letting(op));
        match turn.end {
            End::Release => {
                let released = guard.release().await;
                self.log.note(&Event::Let(op, format!("{released:?}")));
            }
            End::Drop => drop(guard),
            End::DropRelease => drop(guard.release().now_or_never()),
        }
    }
}
