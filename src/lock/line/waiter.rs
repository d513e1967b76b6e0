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
    pub(super) tell: oneshot::Sender<Waited>,
}

impl Waiter {
    pub(super) fn still_waits(&self, now: Instant) -> bool {
        !self.tell.is_closed() && self.until > now
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
