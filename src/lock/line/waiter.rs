//! One who waits: what it asked for, and how its wait ends.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    lock::{answer::Busy, asking::Asking, guard::LockGuard},
    store::Store,
};

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) came: Instant,
    pub(super) until: Instant,
    pub(super) asking: Asking,
    pub(super) store: Store,
    /// `None`: it has been told how its wait ends.
    tell: Option<oneshot::Sender<Waited>>,
}

impl Waiter {
    /// From now on. What it will be told comes by the other end.
    pub(super) fn new(
        store: &Store,
        asking: &Asking,
        until: Instant,
    ) -> (Self, oneshot::Receiver<Waited>) {
        let (tell, told) = oneshot::channel();
        let (came, asking, store) = (Instant::now(), asking.clone(), store.clone());
        (Self { came, until, asking, store, tell: Some(tell) }, told)
    }

    pub(super) fn still_waits(&self, now: Instant) -> bool {
        self.tell.as_ref().is_some_and(|tell| !tell.is_closed()) && self.until > now
    }

    /// How its wait ends; that is given back if it has left.
    pub(super) fn tell(&mut self, waited: Waited) -> Result<(), Waited> {
        let Some(tell) = self.tell.take() else { return Err(waited) };
        if let Waited::Granted(guard) = &waited {
            guard.await_fetch();
        }
        tell.send(waited)
    }
}

/// Those who were taken out of a line without the lock. Told, and dropped, when this is: to be made before the mutex of the
/// lines is taken, so that it is free then, since a waker may run anything, and a waiter have the last handle of its store.
#[derive(Default)]
pub(super) struct Gone(Vec<(Waiter, Busy)>);

impl Gone {
    /// From a local line of this length. If it is still there, its time is over: it is told what is known now, since its line
    /// may be gone when it looks.
    pub(super) fn add(&mut self, waiter: Waiter, busy: Option<&Busy>, length: usize) {
        let mut known = busy.cloned().unwrap_or_else(|| unknown(waiter.asking.terms.lease));
        known.line = known.line.max(length as u64);
        self.0.push((waiter, known));
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        for (mut waiter, known) in self.0.drain(..) {
            let _ = waiter.tell(Waited::TooLong(known));
        }
    }
}

/// How a wait ends.
#[derive(Debug)]
pub(crate) enum Waited {
    Granted(LockGuard),
    TooLong(Busy),
    Full(Busy),
    Fault(Error),
}

/// What is known of a lock that is busy, before anybody has said.
pub(super) fn unknown(lease: Duration) -> Busy {
    Busy { left: lease, line: 0, waited: None }
}
