//! All local lines of a store handle, and what is decided under their mutex.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use super::{
    keeper::{Keeper, Looked, Place, Start},
    rules::{Fences, Word},
    waiter::{Asking, Waited, Waiter, unknown},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{
        guard::{LockGuard, Turn},
        request::Busy,
    },
    store::{Hold, Joined, Lease, LossWatcher, Mode, Store, Token},
};

/// Most waiters of all locks in one process: bounds the memory that a flood of requests can take.
const MAX_WAITERS_IN_ALL: usize = 16 * 1024;

/// A lock in one mode: what has a line of its own.
pub(super) type Name = (Key, Mode);

/// All local lines of a store handle.
pub(in crate::lock) struct Lines {
    lines: Mutex<Map>,
    room: Arc<Semaphore>,
    /// Set once the store tells of those who join.
    listens: OnceLock<()>,
}

/// Nearly all are exclusive; a word about a lock has to find all of its lines.
#[derive(Default)]
struct Map {
    exclusive: HashMap<Key, Line>,
    others: HashMap<Name, Line>,
}

/// One of them. It is there exactly while a guard, a keeper or a waiter is.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// The leases of this process that can be handed on.
    turns: Vec<Token>,
    /// Somebody asks the store for this process; rung when a waiter leaves.
    keeper: Option<Arc<Notify>>,
    word: Option<Word>,
    /// What the store said last of who has it.
    busy: Option<Busy>,
    /// A lease that nobody uses, for a while.
    resting: Option<Resting>,
}

/// A lock that was released, and is kept until somebody wants it.
struct Resting {
    hold: Hold,
    turn: Turn,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiters.is_empty()
            && self.turns.is_empty()
            && self.keeper.is_none()
            && self.resting.is_none()
    }

    /// Whether a newcomer stands behind others of this process, who are or will be served.
    fn has_a_line(&self, mode: Mode) -> bool {
        let mine = mode == Mode::Exclusive && !self.turns.is_empty();
        mine || self.keeper.is_some() || !self.waiters.is_empty()
    }

    fn drop_those_who_left(&mut self) {
        let now = Instant::now();
        while self.waiters.front().is_some_and(|waiter| !waiter.still_waits(now)) {
            self.waiters.pop_front();
        }
    }
}

impl Map {
    fn get(&mut self, name: &Name) -> Option<&mut Line> {
        match name.1 {
            Mode::Exclusive => self.exclusive.get_mut(&name.0),
            _ => self.others.get_mut(name),
        }
    }

    fn entry(&mut self, name: &Name) -> &mut Line {
        match name.1 {
            Mode::Exclusive => self.exclusive.entry(name.0.clone()).or_default(),
            _ => self.others.entry(name.clone()).or_default(),
        }
    }

    fn sweep(&mut self, name: &Name) {
        if self.get(name).is_some_and(|line| line.is_empty()) {
            match name.1 {
                Mode::Exclusive => drop(self.exclusive.remove(&name.0)),
                _ => drop(self.others.remove(name)),
            }
        }
    }
}

impl Default for Lines {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_WAITERS_IN_ALL));
        Self { lines: Mutex::default(), room, listens: OnceLock::new() }
    }
}

/// The first of a line, on whose behalf the store is asked.
pub(super) struct Front {
    pub(super) asking: Asking,
    /// When it came, in the server's time, as a sequence; 0 if that is not known.
    pub(super) came: u64,
    /// How long the last of the line will wait.
    pub(super) last: Instant,
    pub(super) number: usize,
}

/// How a newcomer goes on.
enum Way {
    /// Ask the store, on behalf of all who come meanwhile.
    Ask(Opening),
    Wait(Waiting),
    Done(Waited),
}

/// A place in the local line.
struct Waiting {
    told: oneshot::Receiver<Waited>,
    bell: Option<Arc<Notify>>,
    _room: OwnedSemaphorePermit,
}

/// Rings the keeper when the waiter leaves without the lock, so that its place is not kept for nobody.
impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
    }
}

impl Lines {
    /// Acquires, or waits in line. Dropping the future leaves it.
    pub(in crate::lock) async fn acquire(
        self: &Arc<Self>,
        store: &Store,
        key: &Key,
        asking: &Asking,
        until: Instant,
    ) -> Waited {
        let name = (key.clone(), asking.terms.mode);
        let waiting = match self.enter(store, &name, asking, until) {
            Way::Done(waited) => return waited,
            Way::Wait(waiting) => waiting,
            Way::Ask(opening) => match opening.ask(asking, until).await {
                Way::Done(waited) => return waited,
                Way::Wait(waiting) => waiting,
                Way::Ask(_) => unreachable!("it has asked"),
            },
        };
        self.wait(waiting, &name, asking, until).await
    }

    fn enter(self: &Arc<Self>, store: &Store, name: &Name, asking: &Asking, until: Instant) -> Way {
        let mut lines = self.lines.lock();
        let line = lines.entry(name);
        if line.has_a_line(name.1) {
            return self.line_up(line, store, asking, until, VecDeque::push_back);
        }
        let bell = Arc::new(Notify::new());
        line.keeper = Some(Arc::clone(&bell));
        drop(lines);
        let lines = Arc::clone(self);
        Way::Ask(Opening { lines, store: store.clone(), name: name.clone(), bell, done: false })
    }

    fn line_up(
        self: &Arc<Self>,
        line: &mut Line,
        store: &Store,
        asking: &Asking,
        until: Instant,
        push: fn(&mut VecDeque<Waiter>, Waiter),
    ) -> Way {
        let full = || {
            let known = line.busy.clone();
            Way::Done(Waited::Full(known.unwrap_or_else(|| unknown(asking.terms.lease))))
        };
        if line.waiters.len() >= asking.max_waiters {
            return full();
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return full();
        };
        self.listen(store);
        let (tell, told) = oneshot::channel();
        let (came, asking, store) = (Instant::now(), asking.clone(), store.clone());
        push(&mut line.waiters, Waiter { came, until, asking, store, tell });
        Way::Wait(Waiting { told, bell: line.keeper.clone(), _room: room })
    }

    /// Also where nobody asks the store: who joins there has to be heard of.
    fn listen(self: &Arc<Self>, store: &Store) {
        let hints = store.hints();
        self.listens.get_or_init(|| {
            let me: Arc<Self> = Arc::clone(self);
            let me: Arc<dyn Joined> = me;
            hints.tell_of_lines(Arc::downgrade(&me));
        });
    }

    async fn wait(
        &self,
        mut waiting: Waiting,
        name: &Name,
        asking: &Asking,
        until: Instant,
    ) -> Waited {
        match tokio::time::timeout_at(until, &mut waiting.told).await {
            Ok(Ok(waited)) => {
                waiting.bell = None;
                waited
            }
            // The keeper's runtime ended under it. (Or it has looked at the clock a moment before.)
            Ok(Err(_)) if Instant::now() < until => {
                Waited::Fault(Error::new(ErrorKind::Unavailable, "wait"))
            }
            Ok(Err(_)) | Err(_) => {
                let mut lines = self.lines.lock();
                let line = lines.get(name);
                let length = line.as_ref().map_or(0, |line| line.waiters.len());
                let known = line.and_then(|line| line.busy.clone());
                let mut busy = known.unwrap_or_else(|| unknown(asking.terms.lease));
                busy.line = busy.line.max(length as u64);
                Waited::TooLong(busy)
            }
        }
    }

    /// A grant of the store: from now on newcomers of this process stand behind it.
    pub(in crate::lock) fn granted(
        self: &Arc<Self>,
        hold: Hold,
        asking: &Asking,
        word: Word,
    ) -> LockGuard {
        let (lease, fence) = (Arc::clone(hold.lease()), hold.facts().fence);
        if lease.terms.mode == Mode::Shared {
            return LockGuard::new(hold, None);
        }
        let me: Arc<Self> = Arc::clone(self);
        let watcher: Arc<dyn LossWatcher> = me;
        hold.watched_by(Arc::downgrade(&watcher));
        if !asking.linger.is_zero() {
            self.listen(hold.store());
        }
        let mut lines = self.lines.lock();
        let line = lines.entry(&(lease.key.clone(), lease.terms.mode));
        line.turns.push(lease.me.clone());
        line.word = Some(word);
        drop(lines);
        let fences = Fences::after(fence, asking.hand_over);
        let linger = asking.linger;
        LockGuard::new(hold, Some(Turn { lines: Arc::clone(self), fences, linger }))
    }

    /// The keeper's grant goes to the first of the line, who asked for the same; nobody there: it is
    /// dropped, and so passes on or is given back. An exclusive lock needs no keeper then.
    pub(super) fn give(&self, name: &Name, mut guard: LockGuard) {
        loop {
            let next = {
                let mut lines = self.lines.lock();
                let Some(line) = lines.get(name) else { return };
                line.drop_those_who_left();
                let terms = guard.lease().map(|lease| &lease.terms);
                let fits = |waiter: &Waiter| terms == Some(&waiter.asking.terms);
                match line.waiters.front().is_some_and(fits) {
                    true => line.waiters.pop_front(),
                    false => None,
                }
            };
            let Some(waiter) = next else { return };
            match waiter.tell.send(Waited::Granted(guard)) {
                Ok(()) => return,
                Err(Waited::Granted(back)) => guard = back,
                Err(_) => return,
            }
        }
    }

    /// Nobody asks for the line any more. If somebody has to, who does is found here: an exclusive lock
    /// that this process has comes to those who wait when the guard ends.
    pub(super) fn keeper_ends(self: &Arc<Self>, name: &Name) {
        let served = {
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name) else { return };
            line.keeper = None;
            name.1 == Mode::Exclusive && !line.turns.is_empty()
        };
        if !served {
            self.ask_for_them(name);
        }
    }

    /// What the first who still waits asked for, how long the last one will, and how many they are. If
    /// there is none the keeper has ended by this call: whoever comes next asks for itself.
    pub(super) fn front(&self, name: &Name) -> Option<Front> {
        let mut lines = self.lines.lock();
        let line = lines.get(name)?;
        let now = Instant::now();
        line.waiters.retain(|waiter| waiter.still_waits(now));
        let last = line.waiters.iter().map(|waiter| waiter.until).max();
        match (line.waiters.front(), last) {
            (Some(first), Some(last)) => Some(Front {
                asking: first.asking.clone(),
                came: line.word.as_ref().map_or(0, |word| word.server_time(first.came)),
                last,
                number: line.waiters.len(),
            }),
            _ => {
                line.keeper = None;
                lines.sweep(name);
                None
            }
        }
    }

    pub(super) fn note_busy(&self, name: &Name, busy: Busy) {
        if let Some(line) = self.lines.lock().get(name) {
            line.busy = Some(busy);
        }
    }

    /// All who wait are told that the store is away.
    pub(super) fn fail(&self, name: &Name, kind: ErrorKind) {
        let waiters = {
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name) else { return };
            line.keeper = None;
            let waiters = std::mem::take(&mut line.waiters);
            lines.sweep(name);
            waiters
        };
        for waiter in waiters {
            let _ = waiter.tell.send(Waited::Fault(Error::new(kind, "wait")));
        }
    }

    /// Somebody has to ask for those who wait, if there are any and nobody does.
    fn ask_for_them(self: &Arc<Self>, name: &Name) {
        let (store, bell) = {
            let mut lines = self.lines.lock();
            let Some(line) = lines.get(name) else { return };
            line.drop_those_who_left();
            let Some(first) = line.waiters.front().filter(|_| line.keeper.is_none()) else {
                return lines.sweep(name);
            };
            let (store, bell) = (first.store.clone(), Arc::new(Notify::new()));
            line.keeper = Some(Arc::clone(&bell));
            (store, bell)
        };
        Keeper::spawn(self, &store, name, bell, Start::Fresh);
    }

    /// A guard has ended, whose lease can be handed on.
    pub(in crate::lock) fn end_turn(self: &Arc<Self>, mut hold: Hold, mut turn: Turn) -> TurnEnd {
        let lease = Arc::clone(hold.lease());
        let name = (lease.key.clone(), lease.terms.mode);
        loop {
            let (waiter, fence) = {
                let mut lines = self.lines.lock();
                let Some(line) = lines.get(&name) else { return TurnEnd::GiveBack(hold) };
                line.drop_those_who_left();
                match line.next_turn(&lease, &mut turn.fences) {
                    Some(next) => next,
                    None if line.may_rest(&lease, &turn) => {
                        self.rest_over_after(turn.linger, hold.store(), &name, &lease.me);
                        line.turns.clear();
                        line.resting = Some(Resting { hold, turn });
                        return TurnEnd::HandedOver;
                    }
                    None => {
                        let bell = line.turn_ends(&lease.me);
                        lines.sweep(&name);
                        return match bell {
                            Some(bell) => TurnEnd::Pass(hold, bell),
                            None => TurnEnd::GiveBack(hold),
                        };
                    }
                }
            };
            let guard = match hold.hand_on(fence) {
                Ok(next) => LockGuard::new(next, Some(turn)),
                // Lost meanwhile: the watcher has seen to the line, but this waiter is out of it.
                Err(lost) => {
                    self.put_back(&name, waiter);
                    return TurnEnd::GiveBack(lost);
                }
            };
            match waiter.tell.send(Waited::Granted(guard)) {
                Ok(()) => return TurnEnd::HandedOver,
                Err(Waited::Granted(back)) => match back.into_parts() {
                    Ok((back, Some(again))) => (hold, turn) = (back, again),
                    Ok((back, None)) => return TurnEnd::GiveBack(back),
                    // It has never been anybody's, so nobody shares it; whoever does will end it.
                    Err(_) => return TurnEnd::HandedOver,
                },
                Err(_) => return TurnEnd::HandedOver,
            }
        }
    }

    /// A lock that rests here, if it can be had on these terms. If not, it goes back to the store.
    pub(in crate::lock) fn take_resting(
        self: &Arc<Self>,
        key: &Key,
        asking: &Asking,
    ) -> Option<LockGuard> {
        let name = (key.clone(), asking.terms.mode);
        let (hold, mut turn) = {
            let mut lines = self.lines.lock();
            let line = lines.get(&name)?;
            let Resting { hold, mut turn } = line.resting.take()?;
            let word = line.word.as_ref();
            let may = hold.lease().terms == asking.terms
                && word.is_some_and(|word| word.allows(Instant::now(), &turn.fences))
                && hold.lease().bears_another_turn();
            match turn.fences.next().filter(|_| may) {
                Some(fence) => {
                    line.turns.push(hold.lease().me.clone());
                    (hold.hand_on(fence), turn)
                }
                None => {
                    lines.sweep(&name);
                    (Err(hold), turn)
                }
            }
        };
        turn.linger = asking.linger;
        match hold {
            Ok(hold) => Some(LockGuard::new(hold, Some(turn))),
            Err(hold) => {
                self.leave_turn(hold.lease());
                None
            }
        }
    }

    fn stop_resting(&self, name: &Name, me: Option<&Token>) -> Option<Resting> {
        let mut lines = self.lines.lock();
        let line = lines.get(name)?;
        let is_meant = |resting: &mut Resting| me.is_none_or(|me| resting.hold.lease().me == *me);
        let rested = line.resting.take_if(is_meant);
        lines.sweep(name);
        rested
    }

    fn rest_over_after(self: &Arc<Self>, linger: Duration, store: &Store, name: &Name, me: &Token) {
        let (lines, name, me) = (Arc::downgrade(self), name.clone(), me.clone());
        store.spawn(async move {
            tokio::time::sleep(linger).await;
            if let Some(lines) = lines.upgrade() {
                drop(lines.stop_resting(&name, Some(&me)));
            }
        });
    }

    fn put_back(self: &Arc<Self>, name: &Name, waiter: Waiter) {
        self.lines.lock().entry(name).waiters.push_front(waiter);
        self.ask_for_them(name);
    }
}

impl Line {
    /// The next waiter and its fence, if the lock may be handed over to it.
    fn next_turn(&mut self, lease: &Lease, fences: &mut Fences) -> Option<(Waiter, u64)> {
        let first = self.waiters.front()?;
        let word = self.word.as_ref()?;
        let may = self.turns.contains(&lease.me)
            && first.asking.terms == lease.terms
            && word.allows(first.came, fences)
            && lease.bears_another_turn();
        let fence = if may { fences.next()? } else { return None };
        Some((self.waiters.pop_front()?, fence))
    }

    /// Whether the lock may stay here although nobody of this process wants it now.
    fn may_rest(&self, lease: &Lease, turn: &Turn) -> bool {
        let quiet = self.word.as_ref().is_some_and(|word| !word.others_wait());
        quiet
            && !turn.linger.is_zero()
            && self.waiters.is_empty()
            && self.keeper.is_none()
            && self.turns == [lease.me.clone()]
            && lease.bears_another_turn()
    }

    /// The turn is over, and nobody was handed it. A bell for the keeper, if one is needed: those who
    /// wait have nobody who asks for them.
    fn turn_ends(&mut self, me: &Token) -> Option<Arc<Notify>> {
        self.turns.retain(|turn| turn != me);
        if self.waiters.is_empty() || self.keeper.is_some() {
            return None;
        }
        let bell = Arc::new(Notify::new());
        self.keeper = Some(Arc::clone(&bell));
        Some(bell)
    }
}

/// What becomes of a lease when its guard has ended.
pub(in crate::lock) enum TurnEnd {
    /// The next of this process has it.
    HandedOver,
    GiveBack(Hold),
    /// It is given back, and a keeper with this bell asks for the next in the same call.
    Pass(Hold, Arc<Notify>),
}

impl Lines {
    #[cfg(test)]
    pub(in crate::lock) fn is_empty(&self) -> bool {
        let lines = self.lines.lock();
        lines.exclusive.is_empty() && lines.others.is_empty()
    }

    /// The lease is not to be handed on any more; those who wait behind it ask the store.
    pub(in crate::lock) fn leave_turn(self: &Arc<Self>, lease: &Lease) {
        let name = (lease.key.clone(), lease.terms.mode);
        if let Some(line) = self.lines.lock().get(&name) {
            line.turns.retain(|turn| *turn != lease.me);
        }
        self.ask_for_them(&name);
    }
}

impl LossWatcher for Lines {
    fn lost(self: Arc<Self>, lease: &Lease) {
        let name = (lease.key.clone(), lease.terms.mode);
        drop(self.stop_resting(&name, Some(&lease.me)));
        // They need not wait for what the loser still does.
        self.leave_turn(lease);
    }
}

impl Joined for Lines {
    fn joined(&self, key: &Key, seq: u64) {
        let mut rested = Vec::new();
        let mut lines = self.lines.lock();
        let Map { exclusive, others } = &mut *lines;
        let others = others.iter_mut().filter(|((other, _), _)| other == key);
        for line in exclusive.get_mut(key).into_iter().chain(others.map(|(_, line)| line)) {
            if let Some(word) = &mut line.word {
                word.joined(seq);
            }
            rested.extend(line.resting.take());
        }
        lines.sweep(&(key.clone(), Mode::Exclusive));
        drop(lines);
        // Given back by being dropped, and not under the mutex.
        drop(rested);
    }

    fn drain(&self) {
        let mut lines = self.lines.lock();
        let Map { exclusive, others } = &mut *lines;
        let all = exclusive.values_mut().chain(others.values_mut());
        let rested: Vec<_> = all.filter_map(|line| line.resting.take()).collect();
        exclusive.retain(|_, line| !line.is_empty());
        others.retain(|_, line| !line.is_empty());
        drop(lines);
        drop(rested);
    }
}

/// The first who asks: it does so itself, and whoever comes meanwhile stands behind it.
struct Opening {
    lines: Arc<Lines>,
    store: Store,
    name: Name,
    bell: Arc<Notify>,
    done: bool,
}

impl Opening {
    async fn ask(mut self, asking: &Asking, until: Instant) -> Way {
        let place = Place::new(&self.store, &self.name);
        let front = Front { asking: asking.clone(), came: 0, last: until, number: 1 };
        match place.look(&front).await {
            Looked::Held(hold, word, _) => {
                let guard = self.lines.granted(hold, asking, word);
                Way::Done(Waited::Granted(guard))
            }
            Looked::Busy(place, busy) => self.stand_in_line(place, busy, asking, until),
            Looked::Failed(_, error) => Way::Done(Waited::Fault(error)),
        }
    }

    /// From here on a keeper looks after the place.
    fn stand_in_line(&mut self, place: Place, busy: Busy, asking: &Asking, until: Instant) -> Way {
        let pause = busy.left;
        let way = {
            let mut lines = self.lines.lines.lock();
            let line = lines.entry(&self.name);
            line.busy = Some(busy);
            // It came before all who came while it asked.
            self.lines.line_up(line, &self.store, asking, until, VecDeque::push_front)
        };
        if matches!(way, Way::Wait(_)) {
            self.done = true;
            let (store, bell) = (&self.store, Arc::clone(&self.bell));
            Keeper::spawn(&self.lines, store, &self.name, bell, Start::At(place, pause));
        }
        way
    }
}

/// It has been answered, or its future was dropped: those who came meanwhile go on.
impl Drop for Opening {
    fn drop(&mut self) {
        if !self.done {
            self.lines.keeper_ends(&self.name);
        }
    }
}
