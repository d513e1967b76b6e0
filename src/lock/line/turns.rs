//! Turns: how a grant is given to one who waits, and how a guard that ends passes it on.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    lines::Lines,
    map::Name,
    rules::{Fences, Word},
    waiter::{Gone, Waited, Waiter},
};
use crate::{
    lock::{asking::Asking, grant::Turn, guard::LockGuard},
    store::{LockHold, LossWatcher, LockMode},
};

/// What becomes of a lease when its guard has ended.
pub(in crate::lock) enum TurnEnd {
    /// The next of this process has it.
    HandedOver,
    GiveBack(LockHold),
    /// It is given back, and a keeper with this bell asks for the next in the same call.
    Pass(LockHold, Arc<Notify>),
}

impl Lines {
    /// A grant of the store: from now on newcomers of this process stand behind it.
    pub(in crate::lock) fn granted(
        self: &Arc<Self>,
        hold: LockHold,
        asking: &Asking,
        word: Word,
    ) -> LockGuard {
        let (lease, fence) = (Arc::clone(hold.lease()), hold.state().fence);
        if lease.terms.mode == LockMode::Shared {
            return LockGuard::new(hold, None);
        }
        let me: Arc<Self> = Arc::clone(self);
        let watcher: Arc<dyn LossWatcher> = me;
        hold.set_loss_watcher(Arc::downgrade(&watcher));
        let name = (lease.key.clone(), lease.terms.mode);
        let mut lines = self.lines.lock();
        let word = lines.word(&name, word);
        let line = lines.entry(&name);
        line.turns.push(lease.token.clone());
        line.word = Some(word);
        line.ahead.granted(asking.bounds());
        drop(lines);
        if lease.is_closed() {
            // Lost before anybody was told of it: nobody stands behind it.
            self.leave_turn(&lease);
        }
        let fences = Fences::after(fence, asking.bounds());
        LockGuard::new(hold, Some(Turn { lines: Arc::clone(self), fences }))
    }

    /// The keeper's grant goes to the first of the line, who asked for the same; nobody there: it is
    /// dropped, and so passes on or is given back. An exclusive lock needs no keeper then.
    pub(super) fn give(self: &Arc<Self>, name: &Name, asking: &Asking, mut guard: LockGuard) {
        loop {
            let (next, question) = {
                let mut gone = Gone::default();
                let mut lines = self.lines.lock();
                let Some(line) = lines.get(name) else { return };
                line.drop_those_who_left(&mut gone);
                let fits = |waiter: &Waiter| waiter.asking.same_grant(asking);
                let next = match line.waiters.front().is_some_and(fits) {
                    true => line.waiters.pop_front(),
                    false => None,
                };
                (next, line.question())
            };
            let Some(mut waiter) = next else { return };
            match waiter.tell(Waited::Granted(guard)) {
                Ok(()) => return self.look_ahead(&waiter.store, name, question),
                Err(Waited::Granted(back)) => guard = back,
                Err(_) => return,
            }
        }
    }

    /// A guard has ended, whose lease can be handed on.
    pub(in crate::lock) fn end_turn(self: &Arc<Self>, mut hold: LockHold, mut turn: Turn) -> TurnEnd {
        let lease = Arc::clone(hold.lease());
        let name = (lease.key.clone(), lease.terms.mode);
        loop {
            let ((mut waiter, fence), question) = {
                let mut gone = Gone::default();
                let mut lines = self.lines.lock();
                let Some(line) = lines.get(&name) else { return TurnEnd::GiveBack(hold) };
                line.drop_those_who_left(&mut gone);
                match line.next_turn(&lease, &mut turn.fences) {
                    Some(next) => (next, line.question()),
                    None => {
                        let bell = line.turn_ends(&lease.token);
                        lines.sweep(&name);
                        return match bell {
                            Some(bell) => TurnEnd::Pass(hold, bell),
                            None => TurnEnd::GiveBack(hold),
                        };
                    }
                }
            };
            let guard = match hold.hand_over(fence) {
                Ok(next) => LockGuard::new(next, Some(turn)),
                // Lost meanwhile, or at its end: this waiter is out of the line, and those behind it need not wait for it.
                Err(lost) => {
                    self.put_back(&name, waiter);
                    self.leave_turn(&lease);
                    return TurnEnd::GiveBack(lost);
                }
            };
            match waiter.tell(Waited::Granted(guard)) {
                Ok(()) => {
                    self.look_ahead(&waiter.store, &name, question);
                    return TurnEnd::HandedOver;
                }
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

    fn put_back(self: &Arc<Self>, name: &Name, waiter: Waiter) {
        self.lines.lock().entry(name).waiters.push_front(waiter);
        self.ask_for_them(name);
    }
}
