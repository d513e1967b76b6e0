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

/// Works until the command `stop`, then reports that it is idle and ends with its input. The setup
/// is the URL of the registers.
///
/// # Panics
///
/// If a server is unavailable at the start.
pub async fn run_lock_worker(args: ProcessArgs) {
    let worker = Arc::new(LockWorker {
        store: Store::connect(&args.url).await.expect("the URL is right"),
        registers: RegisterClient::connect(&args.setup).await.expect("the registers are there"),
        log: EventLog::open(&args.log_path).expect("the log can be made"),
        next_operation: AtomicU64::new(0),
        control: ProcessControl::from_stdin(|_| ()),
    });
    tokio::spawn(Arc::clone(&worker).record_stalls());
    let mut rng = SeededRng::new(args.seed);
    let tasks = (0..TASKS_PER_PROCESS).map(|_| {
        let rng = SeededRng::new(rng.next_u64());
        tokio::spawn(Arc::clone(&worker).run_attempts(rng))
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

    async fn run_attempts(self: Arc<Self>, mut rng: SeededRng) {
        while self.control.wait_to_continue().await {
            let attempt = LockAttempt::random(&mut rng);
            self.attempt_lock(&attempt).await;
            tokio::time::sleep(attempt.pause_after).await;
        }
    }

    async fn attempt_lock(&self, attempt: &LockAttempt) {
        let operation = self.next_operation.fetch_add(1, Ordering::Relaxed);
        self.log.record(&LockEvent::Requested {
            acquisition: operation,
            lock: attempt.lock_name.to_owned(),
            mode: attempt.mode,
        });
        let acquire = attempt.lock_request(&self.store).acquire();
        let acquired = match attempt.cancel_after {
            Some(after) => tokio::time::timeout(after, acquire).await,
            None => Ok(acquire.await),
        };
        match acquired {
            Ok(Ok(guard)) => {
                let (now, remaining) = (clock::now_ns(), guard.remaining());
                self.log.record(&LockEvent::Granted {
                    acquisition: operation,
                    fence: guard.fence(),
                    valid_until: now + clock::duration_ns(remaining),
                });
                self.hold_lock(operation, attempt, &guard).await;
                self.release_lock(operation, attempt, guard).await;
            }
            Ok(Err(AcquireError::Busy(_))) => {
                self.log.record(&LockEvent::Refused { acquisition: operation });
            }
            Ok(Err(_)) => {
                self.log.record(&LockEvent::Failed { acquisition: operation });
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(_) => self.log.record(&LockEvent::Cancelled { acquisition: operation }),
        }
    }

    async fn hold_lock(&self, operation: u64, attempt: &LockAttempt, guard: &LockGuard) {
        let fence = guard.fence();
        let values = match LOCKS_WITH_REGISTER.contains(&attempt.lock_name) {
            true => self
                .registers
                .read(attempt.lock_name, fence)
                .await
                .expect("the registers are there"),
            false => None,
        };
        if !attempt.hold_time.is_zero() {
            tokio::select! {
                _ = guard.lost() => {}
                () = tokio::time::sleep(attempt.hold_time) => {}
            }
        }
        // Each guarded write must check the lock first.
        if !self.still_holds(operation, guard) {
            return;
        }
        if let Some(values) = values {
            let next = values.incremented();
            let written = self.registers.write(attempt.lock_name, fence, next).await;
            if written.expect("the registers are there") {
                self.log.record(&LockEvent::Written {
                    acquisition: operation,
                    value: next.fenced.unsigned_abs(),
                });
            }
            self.still_holds(operation, guard);
        }
    }

    fn still_holds(&self, operation: u64, guard: &LockGuard) -> bool {
        let (now, remaining) = (clock::now_ns(), guard.remaining());
        let event = if remaining.is_zero() {
            LockEvent::LossReported { acquisition: operation }
        } else {
            LockEvent::Renewed {
                acquisition: operation,
                valid_until: now + clock::duration_ns(remaining),
            }
        };
        self.log.record(&event);
        !remaining.is_zero()
    }

    async fn release_lock(&self, operation: u64, attempt: &LockAttempt, guard: LockGuard) {
        self.log.record(&LockEvent::Releasing { acquisition: operation });
        match attempt.release_method {
            ReleaseMethod::Release => {
                let released = guard.release().await;
                self.log.record(&LockEvent::Released {
                    acquisition: operation,
                    outcome: format!("{released:?}"),
                });
            }
            ReleaseMethod::DropGuard => drop(guard),
            ReleaseMethod::DropRelease => drop(guard.release().now_or_never()),
        }
    }
}
