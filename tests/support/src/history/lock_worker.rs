//! Worker process: some tasks that acquire locks, write registers under them, and record their
//! events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use lockgate::{AcquireError, LockGuard, Store};

use super::lock_attempt::{LOCKS_WITH_REGISTER, LockAttempt, ReleaseMethod};
use crate::{
    checker::locks::LockEvent,
    fleet::{
        ProcessArgs, clock,
        event_log::EventLog,
        process_control::{self, ProcessControl},
        register_client::RegisterClient,
        seeded_rng::SeededRng,
    },
    stalls,
};

/// Tasks of one process.
const TASKS_PER_PROCESS: u64 = 6;

struct LockWorker {
    store: Store,
    registers: RegisterClient,
    log: EventLog,
    next_operation: AtomicU64,
    control: Arc<ProcessControl>,
}

/// Works until it is told to `stop`; then it comes to rest, says so, and ends with its input. Its setup is the URL of the
/// registers.
///
/// # Panics
///
/// If a server is not there at the start.
pub async fn run_lock_worker(job: ProcessArgs) {
    let worker = Arc::new(LockWorker {
        store: Store::connect(&job.url).await.expect("the URL is right"),
        registers: RegisterClient::connect(&job.setup).await.expect("the registers are there"),
        log: EventLog::open(&job.log_path).expect("the log can be made"),
        next_operation: AtomicU64::new(0),
        control: ProcessControl::from_stdin(|_| ()),
    });
    tokio::spawn(Arc::clone(&worker).record_stalls());
    let mut dice = SeededRng::new(job.seed);
    let tasks = (0..TASKS_PER_PROCESS).map(|_| {
        let dice = SeededRng::new(dice.next_u64());
        tokio::spawn(Arc::clone(&worker).run_attempts(dice))
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
    process_control::report_idle_and_wait(worker.store.shutdown(Duration::from_secs(10)).await)
        .await;
}

impl LockWorker {
    async fn record_stalls(self: Arc<Self>) {
        stalls::report_process_stalls(|since, _| self.log.record(&LockEvent::Stalled { since }))
            .await;
    }

    async fn run_attempts(self: Arc<Self>, mut dice: SeededRng) {
        while self.control.wait_to_continue().await {
            let turn = LockAttempt::random(&mut dice);
            self.attempt_lock(&turn).await;
            tokio::time::sleep(turn.pause_after).await;
        }
    }

    async fn attempt_lock(&self, turn: &LockAttempt) {
        let op = self.next_operation.fetch_add(1, Ordering::Relaxed);
        self.log.record(&LockEvent::Requested {
            acquisition: op,
            lock: turn.lock_name.to_owned(),
            mode: turn.mode,
        });
        let acquire = turn.lock_request(&self.store).acquire();
        let acquired = match turn.cancel_after {
            Some(after) => tokio::time::timeout(after, acquire).await,
            None => Ok(acquire.await),
        };
        match acquired {
            Ok(Ok(guard)) => {
                let (now, left) = (clock::now_ns(), guard.remaining());
                self.log.record(&LockEvent::Granted {
                    acquisition: op,
                    fence: guard.fence(),
                    valid_until: now + clock::duration_ns(left),
                });
                self.hold_lock(op, turn, &guard).await;
                self.release_lock(op, turn, guard).await;
            }
            Ok(Err(AcquireError::Busy(_))) => {
                self.log.record(&LockEvent::Refused { acquisition: op });
            }
            Ok(Err(_)) => {
                self.log.record(&LockEvent::Failed { acquisition: op });
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(_) => self.log.record(&LockEvent::Cancelled { acquisition: op }),
        }
    }

    async fn hold_lock(&self, op: u64, turn: &LockAttempt, guard: &LockGuard) {
        let fence = guard.fence();
        let read = match LOCKS_WITH_REGISTER.contains(&turn.lock_name) {
            true => {
                self.registers.read(turn.lock_name, fence).await.expect("the registers are there")
            }
            false => None,
        };
        if !turn.hold_time.is_zero() {
            tokio::select! {
                _ = guard.lost() => {}
                () = tokio::time::sleep(turn.hold_time) => {}
            }
        }
        // What any guarded write has to begin with.
        if !self.still_holds(op, guard) {
            return;
        }
        if let Some(read) = read {
            let next = read.incremented();
            let written = self.registers.write(turn.lock_name, fence, next).await;
            if written.expect("the registers are there") {
                self.log.record(&LockEvent::Written {
                    acquisition: op,
                    value: next.fenced.unsigned_abs(),
                });
            }
            self.still_holds(op, guard);
        }
    }

    fn still_holds(&self, op: u64, guard: &LockGuard) -> bool {
        let (now, left) = (clock::now_ns(), guard.remaining());
        let event = if left.is_zero() {
            LockEvent::LossReported { acquisition: op }
        } else {
            LockEvent::Renewed { acquisition: op, valid_until: now + clock::duration_ns(left) }
        };
        self.log.record(&event);
        !left.is_zero()
    }

    async fn release_lock(&self, op: u64, turn: &LockAttempt, guard: LockGuard) {
        self.log.record(&LockEvent::Releasing { acquisition: op });
        match turn.release_method {
            ReleaseMethod::Release => {
                let released = guard.release().await;
                self.log.record(&LockEvent::Released {
                    acquisition: op,
                    outcome: format!("{released:?}"),
                });
            }
            ReleaseMethod::DropGuard => drop(guard),
            ReleaseMethod::DropRelease => drop(guard.release().now_or_never()),
        }
    }
}
