//! What a lock needs of a request, read before anything is awaited.

use super::{
    elsewhere,
    gate::{LockGate, would_deadlock},
    held::{HeldLock, HeldLocks},
    ticket::{Ticket, Unlocked},
};
use crate::{
    gate::{Asked, KeyFault, Replay, Slot, Trying, UnderLock, View, current_replay, each_once},
    key::Key,
    reply::Reply,
    store::{Mode, Store},
};

/// What a lock needs of a request. It is moved with the future of every request, so what most don't have lies apart.
#[derive(Debug)]
pub struct LockFacts {
    pub(super) store: Store,
    /// One at least, each once.
    pub(super) keys: Vec<Key>,
    pub(super) mode: Mode,
    /// An outer layer would take the request over, and says how long to wait before.
    pub(super) slot: Option<Slot>,
    pub(super) brought: Option<Box<Brought>>,
}

/// What a request comes with that has been through other layers, or is a run of a worker.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) replay: Option<Replay>,
    /// What the request has already.
    pub(super) held: HeldLocks,
    /// It has all of these already.
    pub(super) lent: Option<Ticket>,
}

impl LockFacts {
    /// A job runs under one lock that it has alone, so what asks for anything else is not deferred.
    pub(super) fn fits_a_job(&self) -> bool {
        fits_a_job(&self.keys, self.mode)
    }

    pub(super) fn replay(&self) -> Option<&Replay> {
        self.brought.as_ref()?.replay.as_ref()
    }

    pub(super) fn held(&self) -> Option<&HeldLocks> {
        self.brought.as_ref().map(|brought| &brought.held)
    }

    pub(super) fn lent(&mut self) -> Option<Ticket> {
        self.brought.as_mut()?.lent.take()
    }

    /// All that the request has of further out.
    pub(super) fn take_held(&mut self) -> HeldLocks {
        self.brought.take().map(|brought| brought.held).unwrap_or_default()
    }
}

impl Brought {
    fn is_something(&self) -> bool {
        self.replay.is_some() || self.lent.is_some() || !self.held.is_empty()
    }
}

impl<N: ?Sized> LockGate<N> {
    /// The locks of a request, in the names that this layer gives them.
    fn keys<V: View<Native = N>>(&self, view: &mut V) -> Result<Vec<Key>, KeyFault> {
        let mut keys = self.source.read_all(view)?;
        keys.iter_mut().for_each(|key| *key = self.policy.name(key));
        each_once(&mut keys);
        Ok(keys)
    }

    pub(super) fn read<V: View<Native = N>>(&self, view: &mut V) -> Asked<LockFacts, Unlocked> {
        self.policy.clean(view);
        let Some(mode) = self.policy.mode(view.method()) else {
            return Asked::Skip;
        };
        let keys = match self.keys(view) {
            Ok(keys) => keys,
            // No route matches: there is nothing to protect, as far as is known.
            Err(KeyFault::Unmatched) => return Asked::Pass(Unlocked),
            Err(fault) => {
                return fault.answer("LockLayer").map_or(Asked::Skip, Asked::Answer);
            }
        };
        let Some(store) = self.policy.store.clone().or_else(|| view.store()) else {
            return Asked::Answer(crate::outage::no_store("LockLayer"));
        };
        // Taken out before it is filled: a request that holds the slot that holds it is never freed.
        let mut slot = Slot::arrive(view);
        // Whoever made a slot has seen that it is none.
        let replay = if slot.is_some() { None } else { current_replay(view) };
        let run = replay.as_ref().map_or(Ok(None), |replay| replay.hold_among(&store, &keys));
        let Ok(run) = run else { return Asked::Answer(given_up()) };
        let run = run.map(|facts| HeldLock::of_run(&store, facts));
        // A middleware may have rebuilt the request, or sent it to another task: one of the two is left. Or
        // it has a lock of its own, and has scoped what is further in: that is in the task alone.
        let mut held = view.get::<HeldLocks>().unwrap_or_default();
        held = held.and(HeldLocks::current().iter().cloned());
        held = held.and(self.policy.trusted(view, &store));
        let lent =
            Ticket::of_what_is_held(&store, &keys, mode, &held, run.as_ref().zip(replay.as_ref()));
        let Ok(mut lent) = lent else { return Asked::Answer(would_deadlock()) };
        if lent.is_some() && !UnderLock::is_noted(view) {
            lent = lent.map(Ticket::of_no_layer);
        }
        if lent.is_none() {
            held = held.and(run);
        }
        if let Some(found) = &slot {
            let fits = fits_a_job(&keys, mode);
            let runs = found.is_said_to_run() && elsewhere::is_believed_to_run(view);
            match found.trying() {
                Trying::For(_) => {}
                // A run that is believed to be one was put off before.
                Trying::Background if runs => found.note_seen(),
                Trying::Background if !fits => return Asked::Answer(cannot_be_put_off()),
                // Tells its layer that somebody has read the slot.
                Trying::Never | Trying::Background => found.note_seen(),
            }
            // It may still be known by its key.
            slot = slot.filter(|slot| !runs && (fits || slot.remembers()));
        }
        let brought = Brought { replay, held, lent };
        let brought = brought.is_something().then(|| Box::new(brought));
        Asked::Enter(LockFacts { store, keys, mode, slot, brought })
    }
}

fn fits_a_job(keys: &[Key], mode: Mode) -> bool {
    keys.len() == 1 && mode == Mode::Exclusive
}

/// Nobody reads it: the worker has gone on without this run.
fn given_up() -> Reply {
    tracing::debug!(
        "a run was stopped before its handler: its worker has given it up, or has lost its lock"
    );
    Reply::store_away()
}

fn cannot_be_put_off() -> Reply {
    crate::throttle::throttled!(
        error,
        layer = "LockLayer",
        "request refused: the DeferLayer further out is set to `defer_always`, and this lock is shared, a \
         permit or several keys, under which nothing is deferred"
    );
    Reply::wiring_fault()
}
