//! A worker process: a few tasks that take locks, change registers under them, and write down what they see.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use lockgate::{AcquireError, LockGuard, Store};

use super::turn::{End, REGISTERS, Turn};
use crate::{
    checker::locks::LockEvent,
    fleet::{
        Job, clock,
        dice::Dice,
        log::Log,
        orders::{self, Orders},
        register::Registers,
    },
    stalls,
};

/// Tasks of one process.
const TASKS: u64 = 6;

struct Worker {
    store: Store,
    registers: Registers,
    log: Log,
    ops: AtomicU64,
    orders: Arc<Orders>,
}

/// Works until it is told to `stop`; then it comes to rest, says so, and ends with its input. Its setup is the URL of the
/// registers.
///
/// # Panics
///
/// If a server is not there at the start.
pub async fn work(job: Job) {
    let worker = Arc::new(Worker {
        store: Store::connect(&job.url).await.expect("the URL is right"),
        registers: Registers::open(&job.setup).await.expect("the registers are there"),
        log: Log::open(&job.log).expect("the log can be made"),
        ops: AtomicU64::new(0),
        orders: Orders::follow(|_| ()),
    });
    tokio::spawn(Arc::clone(&worker).tick());
    let mut dice = Dice::new(job.seed);
    let tasks = (0..TASKS).map(|_| {
        let dice = Dice::new(dice.roll());
        tokio::spawn(Arc::clone(&worker).go_round(dice))
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
    orders::quiet(worker.store.shutdown(Duration::from_secs(10)).await).await;
}

impl Worker {
    async fn tick(self: Arc<Self>) {
        stalls::watch(|since, _| self.log.note(&LockEvent::Stalled(since))).await;
    }

    async fn go_round(self: Arc<Self>, mut dice: Dice) {
        while self.orders.go_on().await {
            let turn = Turn::draw(&mut dice);
            self.take(&turn).await;
            tokio::time::sleep(turn.pause).await;
        }
    }

    async fn take(&self, turn: &Turn) {
        let op = self.ops.fetch_add(1, Ordering::Relaxed);
        self.log.note(&LockEvent::Requested(op, turn.lock.to_owned(), turn.mode));
        let acquire = turn.request(&self.store).acquire();
        let acquired = match turn.gives_up {
            Some(after) => tokio::time::timeout(after, acquire).await,
            None => Ok(acquire.await),
        };
        match acquired {
            Ok(Ok(guard)) => {
                let (now, left) = (clock::now(), guard.remaining());
                self.log.note(&LockEvent::Granted(op, guard.fence(), now + clock::ns(left)));
                self.hold(op, turn, &guard).await;
                self.end(op, turn, guard).await;
            }
            Ok(Err(AcquireError::Busy(_))) => self.log.note(&LockEvent::Refused(op)),
            Ok(Err(_)) => {
                self.log.note(&LockEvent::Failed(op));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(_) => self.log.note(&LockEvent::Cancelled(op)),
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
        if let Some(read) = read {
            let next = read.next();
            let written = self.registers.write(turn.lock, fence, next).await;
            if written.expect("the registers are there") {
                self.log.note(&LockEvent::Written(op, next.fenced.unsigned_abs()));
            }
            self.still_holds(op, guard);
        }
    }

    fn still_holds(&self, op: u64, guard: &LockGuard) -> bool {
        let (now, left) = (clock::now(), guard.remaining());
        let event = if left.is_zero() {
            LockEvent::LossReported(op)
        } else {
            LockEvent::Renewed(op, now + clock::ns(left))
        };
        self.log.note(&event);
        !left.is_zero()
    }

    async fn end(&self, op: u64, turn: &Turn, guard: LockGuard) {
        self.log.note(&LockEvent::Releasing(op));
        match turn.end {
            End::Release => {
                let released = guard.release().await;
                self.log.note(&LockEvent::Released(op, format!("{released:?}")));
            }
            End::Drop => drop(guard),
            End::DropRelease => drop(guard.release().now_or_never()),
        }
    }
}
