//! Coming in: behind those of this process, or by asking the store on behalf of all who come meanwhile.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, oneshot},
    time::{Instant, error::Elapsed, timeout_at},
};

use super::{
    keeper::{Keeper, Start},
    lines::{Front, Lines},
    map::{Map, Name},
    place::{Looked, Place},
    waiter::{Gone, Waited, Waiter, unknown},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lock::{answer::Busy, asking::Asking},
    store::{OFFER_TIMEOUT, Store},
};

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
    /// Who asks for it, if that is another one who came, in his own future.
    opening: Option<Arc<Notify>>,
    lines: Arc<Lines>,
    name: Name,
    /// It has the lock, or nobody is to hear of its leaving.
    served: bool,
    _room: OwnedSemaphorePermit,
}

/// Rings the keeper when the waiter leaves without the lock, so that its place is not kept for nobody: whoever keeps it
/// now, which need not be who did when this one came.
impl Drop for Waiting {
    fn drop(&mut self) {
        // Before the bell: whoever hears it must not count this one any more.
        self.told.close();
        if !self.served {
            let keeper =
                self.lines.lines.lock().get(&self.name).and_then(|line| line.keeper.clone());
            if let Some(bell) = keeper {
                bell.notify_one();
            }
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
        loop {
            let waiting = match self.enter(store, &name, asking, until) {
                Way::Done(waited) => return waited,
                Way::Wait(waiting) => waiting,
                Way::Ask(opening) => match opening.ask(asking, until).await {
                    Way::Done(waited) => return waited,
                    Way::Wait(waiting) => waiting,
                    #[expect(
                        clippy::unreachable,
                        reason = "an opening that has asked opens nothing"
                    )]
                    Way::Ask(_) => unreachable!("it has asked"),
                },
            };
            match self.wait(waiting, &name, asking, until).await {
                // It has ended before this future was polled: nobody is let in by it, and who may still wait does.
                Waited::Granted(guard) if !guard.fetch() => {}
                waited => return waited,
            }
            if Instant::now() >= until {
                return Waited::TooLong(unknown(asking.terms.lease));
            }
        }
    }

    fn enter(self: &Arc<Self>, store: &Store, name: &Name, asking: &Asking, until: Instant) -> Way {
        let mut gone = Gone::default();
        let mut lines = self.lines.lock();
        let line = lines.entry(name);
        if !line.has_a_line(name.1) {
            let bell = Arc::new(Notify::new());
            (line.keeper, line.opens) = (Some(Arc::clone(&bell)), true);
            drop(lines);
            let lines = Arc::clone(self);
            let (store, name) = (store.clone(), name.clone());
            return Way::Ask(Opening { lines, store, name, bell, done: false });
        }
        let way =
            self.line_up(&mut lines, (store, name), asking, until, VecDeque::push_back, &mut gone);
        let question = lines.entry(name).question();
        drop(lines);
        self.look_ahead(store, name, question);
        way
    }

    fn line_up(
        self: &Arc<Self>,
        lines: &mut Map,
        (store, name): (&Store, &Name),
        asking: &Asking,
        until: Instant,
        push: fn(&mut VecDeque<Waiter>, Waiter),
        gone: &mut Gone,
    ) -> Way {
        let has_room = |lines: &mut Map| lines.waiting(&name.0) < asking.max_waiters;
        if !has_room(lines) {
            // Those who left are mostly dropped when their turn comes; here they would keep others out.
            lines.drop_all_who_left(&name.0, gone);
        }
        let room = has_room(lines).then(|| Arc::clone(&self.room).try_acquire_owned());
        let line = lines.entry(name);
        let Some(Ok(room)) = room else {
            let known = line.busy.clone();
            return Way::Done(Waited::Full(known.unwrap_or_else(|| unknown(asking.terms.lease))));
        };
        self.listen(store);
        let (waiter, told) = Waiter::new(store, asking, until);
        push(&mut line.waiters, waiter);
        let opening = line.keeper.clone().filter(|_| line.opens);
        let (lines, name) = (Arc::clone(self), name.clone());
        Way::Wait(Waiting { told, opening, lines, name, served: false, _room: room })
    }

    /// How the wait has ended, by then.
    async fn told(
        self: &Arc<Self>,
        waiting: &mut Waiting,
        until: Instant,
    ) -> Result<Result<Waited, oneshot::error::RecvError>, Elapsed> {
        let soon = Instant::now() + OFFER_TIMEOUT;
        if let Some(opening) = waiting.opening.take().filter(|_| soon < until) {
            if let Ok(told) = timeout_at(soon, &mut waiting.told).await {
                return Ok(told);
            }
            self.ask_without(&waiting.name, &opening);
        }
        timeout_at(until, &mut waiting.told).await
    }

    async fn wait(
        self: &Arc<Self>,
        mut waiting: Waiting,
        name: &Name,
        asking: &Asking,
        until: Instant,
    ) -> Waited {
        match self.told(&mut waiting, until).await {
            // Perhaps not by the keeper, whose place may be kept for nobody now.
            Ok(Ok(waited @ Waited::TooLong(_))) => waited,
            Ok(Ok(waited)) => {
                waiting.served = true;
                waited
            }
            // Whoever takes it out of the line tells it: somebody has panicked.
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
        // Who may not wait takes no place that it would have to leave.
        let may_wait = asking.max_waiters > 0;
        let looked = if may_wait { place.look(&front).await } else { place.try_once(&front).await };
        match looked {
            Looked::Held(hold, word, _) => {
                self.lines.note_time(&self.name, word);
                let guard = self.lines.granted(hold, asking, word);
                Way::Done(Waited::Granted(guard))
            }
            Looked::Busy(place, busy) => self.stand_in_line(place, busy, asking, until),
            // It waits, so it is asked for again: by the keeper, which gives up when that has been so for a while.
            Looked::Overdue(place, _) if may_wait => {
                let busy = Busy { left: Duration::ZERO, ..unknown(asking.terms.lease) };
                self.stand_in_line(place, busy, asking, until)
            }
            Looked::Overdue(_, error) | Looked::Failed(_, error) => Way::Done(Waited::Fault(error)),
        }
    }

    /// From here on a keeper looks after the place, if anybody waits for it: those who came while this one asked may have
    /// left it no room.
    fn stand_in_line(&mut self, place: Place, busy: Busy, asking: &Asking, until: Instant) -> Way {
        let has_place = asking.max_waiters > 0;
        let pause = if has_place { busy.left } else { Duration::ZERO };
        let (way, asks) = {
            let mut gone = Gone::default();
            let mut lines = self.lines.lines.lock();
            let line = lines.entry(&self.name);
            line.busy = Some(busy);
            let push = VecDeque::push_front;
            let to = (&self.store, &self.name);
            // There may be another one by now, or none.
            let keeps = line.goes_on_with(&self.bell, self.name.1);
            let way = self.lines.line_up(&mut lines, to, asking, until, push, &mut gone);
            (way, keeps && !lines.entry(&self.name).waiters.is_empty())
        };
        if asks {
            self.done = true;
            let (store, bell) = (&self.store, Arc::clone(&self.bell));
            Keeper::spawn(&self.lines, store, &self.name, bell, Start::At(place, pause));
        } else if !has_place {
            place.attempt.mark_refused();
        }
        way
    }
}

/// It has been answered, or its future was dropped: those who came meanwhile go on.
impl Drop for Opening {
    fn drop(&mut self) {
        if !self.done {
            self.lines.opening_ends(&self.name, &self.bell);
        }
    }
}
