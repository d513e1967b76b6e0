//! The local line: those of this process who wait for a lock, in the order they came.
//!
//! A process has one place in the store's line, whoever of its tasks will get the lock. One task per
//! waited-for lock keeps that place: it joins, looks again when it is told to or when a timer says so,
//! and hands what it is granted to the first of the line who still waits. So a waiter's future holds
//! nothing but the end of a channel, and dropping it leaves nothing behind.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{ACCEPT_WINDOW, Acquire, Acquired, Attempt, Hold, SPARE_FENCES, Store, Terms},
};

/// Most waiters of one lock in one process; beyond it the answer is "busy" at once.
const MAX_WAITERS: usize = 1024;

/// Longest time between two looks at the store, whatever the lease says: bounds a lost message, and
/// what a dead process before this one costs beyond its accept window.
const LOOK: Duration = ACCEPT_WINDOW;

/// How long the line keeps trying while the store is away. Requests get an answer soon, not late.
const OUTAGE: Duration = Duration::from_millis(500);

/// Most waiters of all locks in one process: bounds the memory that a flood of requests can take.
const MAX_WAITERS_IN_ALL: usize = 16 * 1024;

/// All local lines of a store handle.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Mutex<HashMap<Key, (Arc<Notify>, VecDeque<Waiter>)>>,
    room: Semaphore,
}

impl Default for Lines {
    fn default() -> Self {
        Self { lines: Mutex::default(), room: Semaphore::new(MAX_WAITERS_IN_ALL) }
    }
}

#[derive(Debug)]
struct Waiter {
    until: Instant,
    terms: Terms,
    tell: oneshot::Sender<Waited>,
}

/// How a wait ends.
#[derive(Debug)]
pub(super) enum Waited {
    Granted(Hold),
    TooLong,
    Full,
    Fault(Error),
}

/// Rings the line's bell when a waiter leaves without the lock, so that its place is not kept for nobody.
struct Leaves(Option<Arc<Notify>>);

impl Drop for Leaves {
    fn drop(&mut self) {
        if let Some(bell) = &self.0 {
            bell.notify_one();
        }
    }
}

impl Lines {
    pub(super) fn is_waited_for(&self, key: &Key) -> bool {
        self.lines.lock().contains_key(key)
    }

    /// Waits in line. Dropping the future leaves it.
    pub(super) async fn wait(
        self: &Arc<Self>,
        store: &Store,
        key: &Key,
        terms: &Terms,
        until: Instant,
    ) -> Waited {
        let Ok(_room) = self.room.try_acquire() else {
            return Waited::Full;
        };
        let (tell, told) = oneshot::channel();
        let (starts, bell) = {
            let mut lines = self.lines.lock();
            // A line is there exactly while its keeper is.
            let starts = !lines.contains_key(key);
            let (bell, line) = lines.entry(key.clone()).or_default();
            if line.len() >= MAX_WAITERS {
                return Waited::Full;
            }
            line.push_back(Waiter { until, terms: terms.clone(), tell });
            (starts, Arc::clone(bell))
        };
        let mut leaves = Leaves(Some(Arc::clone(&bell)));
        if starts {
            tracing::debug!(node = %store.node(), lock = %key.hashed(), "waiting in line");
            let keeper = Keeper {
                lines: Arc::clone(self),
                store: store.clone(),
                key: key.clone(),
                done: false,
            };
            store.spawn(keeper.run(bell));
        }
        match tokio::time::timeout_at(until, told).await {
            Ok(Ok(waited)) => {
                leaves.0 = None;
                waited
            }
            // The keeper has looked at the clock a moment before this task did.
            Ok(Err(_)) if Instant::now() >= until => Waited::TooLong,
            // The keeper's runtime ended under it.
            Ok(Err(_)) => Waited::Fault(Error::new(ErrorKind::Unavailable, "wait")),
            Err(_) => Waited::TooLong,
        }
    }

    /// The first who still waits, and how long the last one will; takes the line away if there is none.
    fn front(&self, key: &Key) -> Option<(Terms, Instant)> {
        let mut lines = self.lines.lock();
        let (_, line) = lines.get_mut(key)?;
        let now = Instant::now();
        line.retain(|waiter| !waiter.tell.is_closed() && waiter.until > now);
        let last = line.iter().map(|waiter| waiter.until).max();
        match (line.front(), last) {
            (Some(first), Some(last)) => Some((first.terms.clone(), last)),
            _ => {
                lines.remove(key);
                None
            }
        }
    }

    /// Gives a hold to the first who still waits, on the terms that one asked for; nobody there: it is
    /// dropped, and so given back.
    fn hand_over(&self, key: &Key, mut hold: Hold) {
        loop {
            // The lock on the map is not held over the send: a refused hold may be dropped in it.
            let next = self.lines.lock().get_mut(key).and_then(|(_, line)| line.pop_front());
            let Some(Waiter { terms, tell, .. }) = next else {
                return;
            };
            match tell.send(Waited::Granted(hold.on_terms(terms))) {
                Ok(()) => return,
                Err(Waited::Granted(back)) => hold = back,
                Err(_) => return,
            }
        }
    }

    fn fail(&self, key: &Key, kind: ErrorKind) {
        let (_, line) = self.lines.lock().remove(key).unwrap_or_default();
        for waiter in line {
            let _ = waiter.tell.send(Waited::Fault(Error::new(kind, "wait")));
        }
    }
}

/// Keeps the process's place in the line of one lock.
struct Keeper {
    lines: Arc<Lines>,
    store: Store,
    key: Key,
    /// The line was taken away; one that has begun since then has its own keeper.
    done: bool,
}

impl Keeper {
    async fn run(mut self, bell: Arc<Notify>) {
        let mut place: Option<Place> = None;
        let mut away_since: Option<Instant> = None;
        while let Some((terms, last)) = self.lines.front(&self.key) {
            let rung = bell.notified();
            let mut mine = place
                .take()
                .unwrap_or_else(|| Place::new(Attempt::new(&self.store, &self.key, terms.mode)));
            let offered = self.store.hints().place(&mine.attempt.me);
            let pause = match self.look(&mut mine, &terms, last).await {
                Ok(Acquired::Held { fence, .. }) => {
                    away_since = None;
                    self.lines.hand_over(&self.key, mine.attempt.granted(fence, terms));
                    continue;
                }
                Ok(Acquired::Busy { left, .. }) => {
                    away_since = None;
                    left.min(LOOK) + self.jitter()
                }
                Ok(Acquired::Known) => unreachable!("no record was asked for"),
                Err(error) => {
                    let since = *away_since.get_or_insert_with(Instant::now);
                    if error.kind() == ErrorKind::Config || since.elapsed() > OUTAGE {
                        // The place is given back as `mine` is dropped.
                        self.lines.fail(&self.key, error.kind());
                        break;
                    }
                    Duration::from_millis(50)
                }
            };
            place = Some(mine);
            tokio::select! {
                () = rung => {}
                () = offered.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.done = true;
    }

    async fn look(
        &self,
        place: &mut Place,
        terms: &Terms,
        last: Instant,
    ) -> Result<Acquired, Error> {
        let lease = terms.for_the_first_time();
        let call = Acquire {
            key: self.key.clone(),
            me: place.attempt.me.clone(),
            mode: terms.mode,
            lease,
            spare: SPARE_FENCES,
            wait: Some(last.saturating_duration_since(Instant::now())),
            old_seq: place.old_seq,
            record: None,
        };
        let answer = place.attempt.send(lease, self.store.backend().acquire(call)).await;
        if let Ok(Acquired::Busy { seq, joined, .. }) = &answer {
            place.joined(*seq, *joined);
        }
        answer
    }

    /// Processes whose timers were set by the same lease should not all look at once.
    fn jitter(&self) -> Duration {
        let byte = self.store.node().as_str().bytes().fold(0u8, u8::wrapping_add);
        Duration::from_millis(u64::from(byte % 32))
    }
}

/// The process's place in the store's line.
struct Place {
    attempt: Attempt,
    /// Where it comes back to if an offer lapsed before it was confirmed; 0 = at the tail.
    old_seq: u64,
    joins: u32,
}

impl Place {
    fn new(attempt: Attempt) -> Self {
        Self { attempt, old_seq: 0, joins: 0 }
    }

    /// Coming back to the old place is for a slow process, once: a second time would let a process that
    /// never confirms keep everybody behind it waiting.
    fn joined(&mut self, seq: u64, joined: bool) {
        self.joins += u32::from(joined);
        self.old_seq = if self.joins < 2 { seq } else { 0 };
    }
}

/// If the runtime drops the task, its waiters' channels must not stay in the map for ever.
impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.done {
            self.lines.fail(&self.key, ErrorKind::Unavailable);
        }
    }
}
