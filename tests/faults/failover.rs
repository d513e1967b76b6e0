//! A master that sentinels watch over is killed, or stands still, while two processes contest locks; and what they
//! saw is judged by the checker.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::{
    LockGuard, NotAcquired, Store,
    testing::history::{
        Check, Life,
        locks::{Event, History, Mode, Register},
    },
};
use lockgate_tests::Sentinels;
use parking_lot::Mutex;
use tokio::task::JoinSet;

/// Processes, and tasks of each: as many as there are locks, so each lock is contested.
const PROCESSES: usize = 2;
const LOCKS: [&str; 4] = ["a", "b", "c", "d"];
const PHASE: Duration = Duration::from_secs(2);

/// Until the sentinels agree, have promoted the replica and told of it, and, where replicas are asked for, the old
/// master is one, on a machine that has other things to do.
const AWAY: Duration = Duration::from_secs(60);

/// How a failover is made: with so many replicas that grants must have.
#[derive(Clone, Copy)]
struct Plan {
    replicas: u32,
    kills: bool,
}

impl Plan {
    /// A grant that a replica must have waits longer: until there is another one.
    fn requests(self) -> &'static str {
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

struct Load {
    plan: Plan,
    since: Instant,
    stop: AtomicBool,
    /// Whoever has a lock keeps it: so its end is contested while the master is replaced.
    keep: AtomicBool,
    done: AtomicU64,
    refused: AtomicU64,
    /// Of one call that was answered, and of a request until it was served, ms.
    longest_call: AtomicU64,
    longest: AtomicU64,
    registers: [Mutex<Fenced>; LOCKS.len()],
}

/// What one process has seen, as it would write it down.
#[derive(Default)]
struct Log {
    events: Mutex<Vec<(u64, Event)>>,
    last: AtomicU64,
}

impl Log {
    fn note(&self, at: u64, event: Event) {
        self.events.lock().push((at, event));
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Load {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            since: Instant::now(),
            stop: AtomicBool::default(),
            keep: AtomicBool::default(),
            done: AtomicU64::default(),
            refused: AtomicU64::default(),
            longest_call: AtomicU64::default(),
            longest: AtomicU64::default(),
            registers: Default::default(),
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
    async fn go_round(self: Arc<Self>, store: Store, log: Arc<Log>, lock: usize) {
        let mut wanted = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let (id, asked) = (log.last.fetch_add(1, Ordering::Relaxed), Instant::now());
            log.note(self.now(), Event::Ask(id, LOCKS[lock].to_owned(), Mode::Exclusive));
            let request = store.lock(LOCKS[lock]).replicas(self.plan.replicas).wait(PHASE);
            let acquired = request.acquire().await;
            self.longest_call.fetch_max(ms(asked), Ordering::Relaxed);
            match acquired {
                Ok(guard) => {
                    log.note(self.now(), Event::Got(id, guard.fence(), self.valid(&guard)));
                    self.longest.fetch_max(ms(wanted), Ordering::Relaxed);
                    self.hold(&log, id, lock, guard).await;
                    self.done.fetch_add(1, Ordering::Relaxed);
                    wanted = Instant::now();
                }
                // Somebody keeps it, or a release did not arrive and its lease is still on.
                Err(NotAcquired::Busy(_)) => log.note(self.now(), Event::Busy(id)),
                Err(_) => {
                    log.note(self.now(), Event::Fault(id));
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
                log.note(self.now(), Event::Lost(id));
                break;
            }
            log.note(self.now(), Event::Holds(id, self.valid(&guard)));
        }
        // As if by somebody who does not know better: the register is what keeps him out.
        let write = |value| self.registers[lock].lock().write(guard.fence(), value + 1);
        if let Some(value) = read.and_then(write) {
            log.note(self.now(), Event::Wrote(id, value));
        }
        log.note(self.now(), Event::Letting(id));
        log.note(self.now(), Event::Let(id, format!("{:?}", guard.release().await)));
    }

    async fn rate(&self, phase: &str, time: impl Future<Output = ()>) {
        let (before, began) = (self.done.load(Ordering::Relaxed), Instant::now());
        time.await;
        let done = self.done.load(Ordering::Relaxed) - before;
        let rate = done * 1000 / ms(began).max(1);
        println!("figure: lowest {} a second {phase} {rate}", self.plan.requests());
    }

    /// Until there are some again.
    async fn goes_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        while self.done.load(Ordering::Relaxed) < before + 16 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// All that was seen; only what is broken by any failover, or by this one.
    fn judge(&self, logs: &[Arc<Log>]) {
        let mut history = History::default();
        for (process, log) in logs.iter().enumerate() {
            history.add(Life { process, number: 0 }, log.events.lock().clone());
        }
        for (lock, register) in LOCKS.iter().zip(&self.registers) {
            let writes = register.lock().writes.clone();
            history.registers.push(Register { lock: (*lock).to_owned(), writes });
        }
        let (looked, found) = history.check();
        let overlaps = found.iter().filter(|wrong| wrong.check == Check::M1).count();
        println!("{} holds, {} grants", looked.holds, history.grants());
        let with = if self.plan.replicas > 0 { "with a replica" } else { "without replicas" };
        println!("figure: locks with two holders {with} {overlaps}");
        let must_hold = |check| match check {
            Check::M1 => self.plan.replicas > 0,
            Check::M2 | Check::M3 => true,
            _ => false,
        };
        let wrong: Vec<_> = found.iter().filter(|wrong| must_hold(wrong.check)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(looked.holds > 100, "{looked:?}");
    }
}

async fn fault(load: &Load, all: &mut Sentinels) {
    load.keep.store(true, Ordering::Relaxed);
    // Whoever has a lock now has it when the master goes.
    tokio::time::sleep(Duration::from_millis(50)).await;
    if load.plan.kills {
        all.master.kill();
    } else {
        all.master.pause();
    }
    while !all.all_left_the_old_one().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It comes back as a replica, whom the next grants are to have.
    if load.plan.kills {
        all.master.restart().await;
    } else {
        all.master.resume();
    }
    // Those who wait would have had it by now, and those who keep it have heard if it is lost.
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.keep.store(false, Ordering::Relaxed);
    load.goes_on().await;
}

async fn fails_over(plan: Plan) {
    let mut all = Sentinels::start().await;
    let (load, mut tasks, mut logs) = (Arc::new(Load::new(plan)), JoinSet::new(), Vec::new());
    for _ in 0..PROCESSES {
        let store = Store::connect(&all.url("x")).await.expect("the URL is right");
        let log = Arc::<Log>::default();
        for lock in 0..LOCKS.len() {
            tasks.spawn(Arc::clone(&load).go_round(store.clone(), Arc::clone(&log), lock));
        }
        logs.push(log);
    }
    load.goes_on().await;
    load.rate("before", tokio::time::sleep(PHASE)).await;
    let gone = Instant::now();
    let back = tokio::time::timeout(AWAY, load.rate("during", fault(&load, &mut all)));
    back.await.expect("another one is promoted");
    let away = gone.elapsed();
    println!("figure: no {} for {} ms", plan.requests(), away.as_millis());
    load.rate("after", tokio::time::sleep(PHASE)).await;
    load.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let [call, longest] = [&load.longest_call, &load.longest].map(|of| of.load(Ordering::Relaxed));
    println!("figure: longest call {call} ms");
    println!("figure: longest of {} {longest} ms", plan.requests());
    load.judge(&logs);
    assert!(load.refused.load(Ordering::Relaxed) > 0, "nobody has noticed");
    // Nobody waits for a server that is away; a wait in line is 2 s, and a call in it 250 ms.
    assert!(call < 4000, "{call} ms");
    // Who asks again is served when there is somebody to serve; before that, a lease may have to end.
    let most = away + Duration::from_secs(12);
    assert!(longest < u64::try_from(most.as_millis()).unwrap(), "{longest} ms, away for {away:?}");
}

#[tokio::test]
async fn a_master_that_is_killed_is_left_for_the_one_that_is_promoted() {
    fails_over(Plan { replicas: 0, kills: true }).await;
}

#[tokio::test]
async fn a_master_that_stands_still_is_left_for_the_one_that_is_promoted() {
    fails_over(Plan { replicas: 0, kills: false }).await;
}

#[tokio::test]
async fn with_a_replica_no_two_hold_a_lock_while_their_master_is_killed() {
    fails_over(Plan { replicas: 1, kills: true }).await;
}

#[tokio::test]
async fn with_a_replica_no_two_hold_a_lock_while_their_master_stands_still() {
    fails_over(Plan { replicas: 1, kills: false }).await;
}
