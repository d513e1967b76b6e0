//! What a lock needs of a request, read before anything is awaited.

use std::mem;

use super::{
    elsewhere,
    gate::{LockGate, would_deadlock},
    held::{HeldLock, HeldLocks},
    ticket::{Ticket, Unlocked},
};
use crate::{
    error::Error,
    gate::{
        Asked, KeyFault, RememberedRun, Replay, Slot, Trying, UnderLock, View, current_replay,
        each_once,
    },
    key::Key,
    reply::Reply,
    store::{LockMode, Store},
};

/// What a lock needs of a request. It is moved with the future of every request, so what most don't have lies apart.
#[derive(Debug)]
pub struct LockFacts {
    pub(super) store: Store,
    /// One at least, each once.
    pub(super) keys: Vec<Key>,
    pub(super) mode: LockMode,
    /// An outer layer would take the request over, and says how long to wait before.
    pub(super) slot: Option<Slot>,
    pub(super) brought: Option<Box<Brought>>,
}

/// What a request comes with that has been through other layers, or is a run of a worker.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) replay: Option<Replay>,
    /// The remembered run of an outer layer that it belongs to.
    pub(super) run: Option<RememberedRun>,
    /// What the request has already.
    pub(super) held: HeldLocks,
    /// It has all of these already.
    pub(super) lent: Option<Ticket>,
    /// A layer further out has let it pass.
    pub(super) is_noted: bool,
    /// The store has not been connected yet, so it is open whether the request has its locks already.
    pub(super) is_undecided: bool,
}

impl LockFacts {
    /// A job runs under one lock that it has alone, so what asks for anything else is not deferred.
    pub(super) fn fits_a_job(&self) -> bool {
        fits_a_job(&self.keys, self.mode)
    }

    pub(super) fn replay(&self) -> Option<&Replay> {
        self.brought.as_ref()?.replay.as_ref()
    }

    pub(super) fn run(&self) -> Option<&RememberedRun> {
        self.brought.as_ref()?.run.as_ref()
    }

    pub(super) fn held(&self) -> Option<&HeldLocks> {
        self.brought.as_ref().map(|brought| &brought.held)
    }

    pub(super) fn lent(&mut self) -> Option<Ticket> {
        self.brought.as_mut()?.lent.take()
    }

    /// Decides whether the request has its locks already, where that had to wait for a connection.
    pub(super) async fn decide(&mut self) -> Result<(), Undecided> {
        let Self { store, keys, mode, brought, .. } = self;
        let Some(brought) = brought.as_mut() else { return Ok(()) };
        brought.identify(store, keys).await?;
        brought.decide(store, keys, *mode)?;
        brought.is_undecided = false;
        Ok(())
    }

    pub(super) fn is_undecided(&self) -> bool {
        self.brought.as_ref().is_some_and(|brought| brought.is_undecided)
    }

    /// All that the request has of further out.
    pub(super) fn take_held(&mut self) -> HeldLocks {
        let held = self.brought.take().map(|brought| brought.held).unwrap_or_default();
        // Before the store's first connection a delegation could have been for another one.
        held.without_delegations_elsewhere(&self.store)
    }
}

/// Why it could not be decided whether a request has its locks already, or what it is told instead.
pub(super) enum Undecided {
    Answer(Reply),
    Fault(Error),
}

impl From<Reply> for Undecided {
    fn from(reply: Reply) -> Self {
        Self::Answer(reply)
    }
}

impl From<Error> for Undecided {
    fn from(error: Error) -> Self {
        Self::Fault(error)
    }
}

impl Brought {
    fn is_something(&self) -> bool {
        self.replay.is_some() || self.run.is_some() || self.lent.is_some() || !self.held.is_empty()
    }

    /// Returns true if it is known whether the locks that the request has are in this store.
    fn is_identified(&self, store: &Store, keys: &[Key]) -> bool {
        let of_replay = |replay: &Replay| {
            !replay.names_one_of(keys) || replay.store().is_same_as(store).is_some()
        };
        self.replay.as_ref().is_none_or(of_replay) && self.held.are_identified(store, keys)
    }

    async fn identify(&self, store: &Store, keys: &[Key]) -> Result<(), Error> {
        if let Some(replay) = self.replay.as_ref().filter(|replay| replay.names_one_of(keys)) {
            replay.store().identify().await?;
            store.identify().await?;
        }
        self.held.identify(store, keys).await
    }

    /// Decides whether the request has all of these locks already.
    fn decide(&mut self, store: &Store, keys: &[Key], mode: LockMode) -> Result<(), Reply> {
        let run = match &self.replay {
            Some(replay) => replay.hold_among(store, keys).map_err(|_| given_up())?,
            None => None,
        };
        let run = run.map(|facts| HeldLock::of_run(store, facts));
        let lent = Ticket::of_what_is_held(
            store,
            keys,
            mode,
            &self.held,
            run.as_ref().zip(self.replay.as_ref()),
        );
        let lent = lent.map_err(|_| would_deadlock())?;
        self.lent = if self.is_noted { lent } else { lent.map(Ticket::of_no_layer) };
        if self.lent.is_none() {
            self.held = mem::take(&mut self.held).and(run);
        }
        Ok(())
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
        // A middleware may have rebuilt the request, or sent it to another task: one of the two is left. Or
        // it has a lock of its own, and has scoped what is further in: that is in the task alone.
        let mut held = view.get::<HeldLocks>().unwrap_or_default();
        held = held.and(HeldLocks::current().iter().cloned());
        held = held.and(self.policy.trusted(view, &store));
        let is_noted = UnderLock::is_noted(view);
        let run = RememberedRun::of(view);
        let mut brought = Brought { replay, run, held, lent: None, is_noted, is_undecided: false };
        if brought.is_identified(&store, &keys) {
            if let Err(reply) = brought.decide(&store, &keys, mode) {
                return Asked::Answer(reply);
            }
        } else {
            brought.is_undecided = true;
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
        let brought = brought.is_something().then(|| Box::new(brought));
        Asked::Enter(LockFacts { store, keys, mode, slot, brought })
    }
}

fn fits_a_job(keys: &[Key], mode: LockMode) -> bool {
    keys.len() == 1 && mode == LockMode::Exclusive
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
