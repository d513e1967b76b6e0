//! Two processes that take locks and give them back, and what they have seen.

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

use super::{LOCKS, PHASE, PROCESSES};

/// Until each process has had each lock again: a lease whose release did not arrive, its turn, and a machine that has other
/// things to do.
const SERVED: Duration = Duration::from_secs(30);

/// Grants of each process, by lock.
type Grants = [[AtomicU64; LOCKS]; PROCESSES];

/// How a failover is made: with so many replicas that grants must have.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) replicas: u32,
    pub(super) kills: bool,
}

impl Plan {
    /// A grant that a replica must have waits longer: until there is another one.
    pub(super) fn requests(self) -> &'static str {
        if self.replicas > 0 { "replicated grants" } else { "requests" }
    }
}

/// A register under a lock that looks at fences: who reads it, too, keeps out whoever was before him. (It lies in this
/// process, so it hears all that is sent to it.)
#[derive(Default)]
struct Fenced {
    highest: u64,
    value: u64,
    writes: Vec<(u64, u64)>,
}

impl Fenced {
    fn read(&mut self, fence: u64) -> Option<u64> {
        self.highest = self.highest.max(fence);
        (fence == self.highest).then_some(self.value)
    }

    fn write(&mut self, fence: u64, value: u64) -> Option<u64> {
        self.read(fence)?;
        self.value = value;
        self.writes.push((fence, value));
        Some(value)
    }
}

pub(super) struct Load {
    pub(super) plan: Plan,
    /// The names of the locks.
    locks: [String; LOCKS],
    since: Instant,
    pub(super) stop: AtomicBool,
    /// Whoever has a lock keeps it: so its end is contested while the master is replaced.
    pub(super) keep: AtomicBool,
    done: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Of one call that was answered, and of a request until it was served, ms.
    pub(super) longest_call: AtomicU64,
    pub(super) longest: AtomicU64,
    registers: [Mutex<Fenced>; LOCKS],
    grants: Grants,
}

/// What one process has seen, as it would write it down.
#[derive(Default)]
pub(super) struct Log {
    events: Mutex<Vec<(u64, LockEvent)>>,
    last: AtomicU64,
}

impl Log {
    fn note(&self, at: u64, event: LockEvent) {
        self.events.lock().push((at, event));
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Load {
    pub(super) fn new(plan: Plan, locks: [String; LOCKS]) -> Self {
        Self {
            plan,
            locks,
            since: Instant::now(),
            stop: AtomicBool::default(),
            keep: AtomicBool::default(),
            done: AtomicU64::default(),
            refused: AtomicU64::default(),
            longest_call: AtomicU64::default(),
            longest: AtomicU64::default(),
            registers: Default::default(),
            grants: Default::default(),
        }
    }

    /// ns.
    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn valid(&self, guard: &LockGuard) -> u64 {
        // The clock is read first: what is told is never beyond what the guard is sure of.
        self.now() + u64::try_from(guard.remaining().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes a lock and gives it back, again and again.
    pub(super) async fn go_round(
        self: Arc<Self>,
        store: Store,
        log: Arc<Log>,
        (process, lock): (usize, usize),
    ) {
        let mut wanted = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let (id, asked) = (log.last.fetch_add(1, Ordering::Relaxed), Instant::now());
            log.note(
                self.now(),
                LockEvent::Requested(id, self.locks[lock].clone(), RecordedLockMode::Exclusive),
            );
            let request =
                store.lock(&*self.locks[lock]).min_replicas(self.plan.replicas).wait(PHASE);
            let acquired = request.acquire().await;
            self.longest_call.fetch_max(ms(asked), Ordering::Relaxed);
            match acquired {
                Ok(guard) => {
                    log.note(self.now(), LockEvent::Granted(id, guard.fence(), self.valid(&guard)));
                    self.longest.fetch_max(ms(wanted), Ordering::Relaxed);
                    self.grants[process][lock].fetch_add(1, Ordering::Relaxed);
                    self.hold(&log, id, lock, guard).await;
                    self.done.fetch_add(1, Ordering::Relaxed);
                    wanted = Instant::now();
                }
                // Somebody keeps it, or a release did not arrive and its lease is still on.
                Err(AcquireError::Busy(_)) => log.note(self.now(), LockEvent::Refused(id)),
                Err(_) => {
                    log.note(self.now(), LockEvent::Failed(id));
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn hold(&self, log: &Log, id: u64, lock: usize, guard: LockGuard) {
        let read = self.registers[lock].lock().read(guard.fence());
        tokio::time::sleep(Duration::from_millis(1)).await;
        while self.keep.load(Ordering::Relaxed) && guard.remaining() > Duration::ZERO {
            let beat = Duration::from_millis(10);
            if tokio::time::timeout(beat, guard.lost()).await.is_ok() {
                log.note(self.now(), LockEvent::LossReported(id));
                break;
            }
            log.note(self.now(), LockEvent::Renewed(id, self.valid(&guard)));
        }
        // As if by somebody who does not know better: the register is what keeps him out.
        let write = |value| self.registers[lock].lock().write(guard.fence(), value + 1);
        if let Some(value) = read.and_then(write) {
            log.note(self.now(), LockEvent::Written(id, value));
        }
        log.note(self.now(), LockEvent::Releasing(id));
        log.note(self.now(), LockEvent::Released(id, format!("{:?}", guard.release().await)));
    }

    pub(super) async fn rate(&self, phase: &str, time: impl Future<Output = ()>) {
        let (before, began) = (self.done.load(Ordering::Relaxed), Instant::now());
        time.await;
        let done = self.done.load(Ordering::Relaxed) - before;
        let rate = done * 1000 / ms(began).max(1);
        println!("figure: lowest {} a second {phase} {rate}", self.plan.requests());
    }

    /// Until there are some again.
    pub(super) async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        while self.done.load(Ordering::Relaxed) < before + 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// L1: until each process has had each lock since then.
    pub(super) async fn all_are_served(&self) {
        let grants =
            || self.grants.each_ref().map(|its| its.each_ref().map(|n| n.load(Ordering::Relaxed)));
        let (since, before) = (Instant::now(), grants());
        loop {
            let now = grants();
            let pairs = before.iter().flatten().zip(now.iter().flatten());
            if pairs.clone().all(|(before, now)| now > before) {
                break;
            }
            assert!(since.elapsed() < SERVED, "not served again: {before:?} before, {now:?} now");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("figure: longest until each process has each lock again {} ms", ms(since));
    }

    /// All that was seen; only what is broken by any failover, or by this one.
    pub(super) fn judge(&self, logs: &[Arc<Log>]) {
        let mut history = LockHistory::default();
        for (process, log) in logs.iter().enumerate() {
            history.add_events(
                ProcessIncarnation { process, generation: 0 },
                log.events.lock().clone(),
            );
        }
        for (lock, register) in self.locks.iter().zip(&self.registers) {
            let writes = register.lock().writes.clone();
            history.registers.push(FencedRegister { lock: lock.clone(), writes });
        }
        let (looked, found) = history.check();
        let overlaps = found.iter().filter(|wrong| wrong.guarantee == Guarantee::M1).count();
        println!("{} holds, {} grants", looked.hold_count, history.grant_count());
        let with = if self.plan.replicas > 0 { "with a replica" } else { "without replicas" };
        println!("figure: locks with two holders {with} {overlaps}");
        let must_hold = |check| match check {
            Guarantee::M1 => self.plan.replicas > 0,
            Guarantee::M2 | Guarantee::M3 => true,
            _ => false,
        };
        let wrong: Vec<_> = found.iter().filter(|wrong| must_hold(wrong.guarantee)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(looked.hold_count > 100, "{looked:?}");
    }
}
