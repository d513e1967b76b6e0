//! Two processes that acquire and release locks, and the events that they record.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{AcquireError, LockGuard, Store};
use lockgate_history::{
    Guarantee, ProcessIncarnation,
    locks::{FencedRegister, LockEvent, LockHistory, RecordedLockMode},
};
use parking_lot::Mutex;

use super::{LOAD_PHASE, LOCK_COUNT, PROCESS_COUNT};

/// Time until each process has been granted each lock again: the lease of a lost release, the
/// queue, and a loaded machine.
const MAX_SERVICE_TIME: Duration = Duration::from_secs(30);

/// Grants of each process, by lock.
type GrantCounters = [[AtomicU64; LOCK_COUNT]; PROCESS_COUNT];

/// Kind of failover, and number of replicas that each grant needs.
#[derive(Clone, Copy)]
pub(super) struct FailoverPlan {
    pub(super) min_replicas: u32,
    pub(super) kills_master: bool,
}

impl FailoverPlan {
    /// Replicated grants take longer: until the master has a replica again.
    pub(super) fn request_label(self) -> &'static str {
        if self.min_replicas > 0 { "replicated grants" } else { "requests" }
    }
}

/// Register that checks fences. A read raises the fence too, so older holders cannot write any
/// more. (It is in this process and receives all operations.)
#[derive(Default)]
struct FencedValue {
    highest_fence: u64,
    value: u64,
    writes: Vec<(u64, u64)>,
}

impl FencedValue {
    fn read(&mut self, fence: u64) -> Option<u64> {
        self.highest_fence = self.highest_fence.max(fence);
        (fence == self.highest_fence).then_some(self.value)
    }

    fn write(&mut self, fence: u64, value: u64) -> Option<u64> {
        self.read(fence)?;
        self.value = value;
        self.writes.push((fence, value));
        Some(value)
    }
}

pub(super) struct LockLoad {
    pub(super) plan: FailoverPlan,
    lock_names: [String; LOCK_COUNT],
    started_at: Instant,
    pub(super) stop_requested: AtomicBool,
    /// Holders extend their holds until the lock is lost, so that the end of each hold is contested
    /// during the failover.
    pub(super) holds_are_extended: AtomicBool,
    completed_count: AtomicU64,
    pub(super) failed_count: AtomicU64,
    /// Longest answered call, and longest time until a request was served, ms.
    pub(super) longest_call_ms: AtomicU64,
    pub(super) longest_wait_ms: AtomicU64,
    registers: [Mutex<FencedValue>; LOCK_COUNT],
    grants: GrantCounters,
}

/// Events of one process, as it would log them.
#[derive(Default)]
pub(super) struct ProcessEventLog {
    events: Mutex<Vec<(u64, LockEvent)>>,
    next_operation: AtomicU64,
}

impl ProcessEventLog {
    fn record(&self, at: u64, event: LockEvent) {
        self.events.lock().push((at, event));
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl LockLoad {
    pub(super) fn new(plan: FailoverPlan, locks: [String; LOCK_COUNT]) -> Self {
        Self {
            plan,
            lock_names: locks,
            started_at: Instant::now(),
            stop_requested: AtomicBool::default(),
            holds_are_extended: AtomicBool::default(),
            completed_count: AtomicU64::default(),
            failed_count: AtomicU64::default(),
            longest_call_ms: AtomicU64::default(),
            longest_wait_ms: AtomicU64::default(),
            registers: Default::default(),
            grants: Default::default(),
        }
    }

    /// Time since the start, ns.
    fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn validity_end_ns(&self, guard: &LockGuard) -> u64 {
        // Reads the clock first, so that the reported end is never later than the guard's validity.
        self.elapsed_ns() + u64::try_from(guard.remaining().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Acquires and releases a lock repeatedly.
    pub(super) async fn run_client(
        self: Arc<Self>,
        store: Store,
        log: Arc<ProcessEventLog>,
        (process, lock): (usize, usize),
    ) {
        let mut wanted_since = Instant::now();
        while !self.stop_requested.load(Ordering::Relaxed) {
            let (id, call_start) =
                (log.next_operation.fetch_add(1, Ordering::Relaxed), Instant::now());
            log.record(
                self.elapsed_ns(),
                LockEvent::Requested {
                    acquisition: id,
                    lock: self.lock_names[lock].clone(),
                    mode: RecordedLockMode::Exclusive,
                },
            );
            let request = store
                .lock(&*self.lock_names[lock])
                .min_replicas(self.plan.min_replicas)
                .wait(LOAD_PHASE);
            let acquired = request.acquire().await;
            self.longest_call_ms.fetch_max(elapsed_ms(call_start), Ordering::Relaxed);
            match acquired {
                Ok(guard) => {
                    log.record(
                        self.elapsed_ns(),
                        LockEvent::Granted {
                            acquisition: id,
                            fence: guard.fence(),
                            valid_until: self.validity_end_ns(&guard),
                        },
                    );
                    self.longest_wait_ms.fetch_max(elapsed_ms(wanted_since), Ordering::Relaxed);
                    self.grants[process][lock].fetch_add(1, Ordering::Relaxed);
                    self.hold_lock(&log, id, lock, guard).await;
                    self.completed_count.fetch_add(1, Ordering::Relaxed);
                    wanted_since = Instant::now();
                }
                // Another client holds the lock, or the lease of a lost release has not ended.
                Err(AcquireError::Busy(_)) => {
                    log.record(self.elapsed_ns(), LockEvent::Refused { acquisition: id });
                }
                Err(_) => {
                    log.record(self.elapsed_ns(), LockEvent::Failed { acquisition: id });
                    self.failed_count.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn hold_lock(&self, log: &ProcessEventLog, id: u64, lock: usize, guard: LockGuard) {
        let read = self.registers[lock].lock().read(guard.fence());
        tokio::time::sleep(Duration::from_millis(1)).await;
        while self.holds_are_extended.load(Ordering::Relaxed) && guard.remaining() > Duration::ZERO
        {
            let renewal_interval = Duration::from_millis(10);
            if tokio::time::timeout(renewal_interval, guard.lost()).await.is_ok() {
                log.record(self.elapsed_ns(), LockEvent::LossReported { acquisition: id });
                break;
            }
            log.record(
                self.elapsed_ns(),
                LockEvent::Renewed { acquisition: id, valid_until: self.validity_end_ns(&guard) },
            );
        }
        // Writes even after a known loss: the register must reject the write.
        let write = |value| self.registers[lock].lock().write(guard.fence(), value + 1);
        if let Some(value) = read.and_then(write) {
            log.record(self.elapsed_ns(), LockEvent::Written { acquisition: id, value });
        }
        log.record(self.elapsed_ns(), LockEvent::Releasing { acquisition: id });
        log.record(
            self.elapsed_ns(),
            LockEvent::Released {
                acquisition: id,
                outcome: format!("{:?}", guard.release().await),
            },
        );
    }

    pub(super) async fn measure_rate(&self, phase: &str, phase_end: impl Future<Output = ()>) {
        let (before, started) = (self.completed_count.load(Ordering::Relaxed), Instant::now());
        phase_end.await;
        let done = self.completed_count.load(Ordering::Relaxed) - before;
        let rate = done * 1000 / elapsed_ms(started).max(1);
        println!("figure: lowest {} a second {phase} {rate}", self.plan.request_label());
    }

    /// Waits until requests are served again.
    pub(super) async fn wait_for_progress(&self) {
        let before = self.completed_count.load(Ordering::Relaxed);
        while self.completed_count.load(Ordering::Relaxed) < before + 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// L1: waits until each process has been granted each lock again.
    pub(super) async fn wait_until_all_served(&self) {
        let grants = || {
            self.grants
                .each_ref()
                .map(|counters| counters.each_ref().map(|n| n.load(Ordering::Relaxed)))
        };
        let (started, before) = (Instant::now(), grants());
        loop {
            let now = grants();
            let pairs = before.iter().flatten().zip(now.iter().flatten());
            if pairs.clone().all(|(before, now)| now > before) {
                break;
            }
            assert!(
                started.elapsed() < MAX_SERVICE_TIME,
                "not served again: {before:?} before, {now:?} now"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!(
            "figure: longest until each process has each lock again {} ms",
            elapsed_ms(started)
        );
    }

    /// Checks the history against the guarantees that hold under this failover.
    pub(super) fn check_history(&self, logs: &[Arc<ProcessEventLog>]) {
        let mut history = LockHistory::default();
        for (process, log) in logs.iter().enumerate() {
            history.add_events(
                ProcessIncarnation { process, generation: 0 },
                log.events.lock().clone(),
            );
        }
        for (lock, register) in self.lock_names.iter().zip(&self.registers) {
            let writes = register.lock().writes.clone();
            history.registers.push(FencedRegister { lock: lock.clone(), writes });
        }
        let (stats, violations) = history.check();
        let overlaps =
            violations.iter().filter(|violation| violation.guarantee == Guarantee::M1).count();
        println!("{} holds, {} grants", stats.hold_count, history.grant_count());
        let replication =
            if self.plan.min_replicas > 0 { "with a replica" } else { "without replicas" };
        println!("figure: locks with two holders {replication} {overlaps}");
        let must_hold = |check| match check {
            Guarantee::M1 => self.plan.min_replicas > 0,
            Guarantee::M2 | Guarantee::M3 => true,
            _ => false,
        };
        let unexcused: Vec<_> =
            violations.iter().filter(|violation| must_hold(violation.guarantee)).collect();
        assert!(unexcused.is_empty(), "{unexcused:#?}");
        assert!(stats.hold_count > 100, "{stats:?}");
    }
}
