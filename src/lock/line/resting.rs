//! Locks that rest: released, and kept in this process for a while, in case it wants them again.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use super::{
    lines::Lines,
    map::{Name, Resting},
};
use crate::{
    key::Key,
    lock::{asking::Asking, guard::LockGuard},
    store::{Mode, Store},
};

impl Lines {
    /// A lock that rests here, if it can be had on these terms. If not, it goes back to the store.
    pub(in crate::lock) fn take_resting(
        self: &Arc<Self>,
        key: &Key,
        asking: &Asking,
    ) -> Option<LockGuard> {
        let name = (key.clone(), asking.terms.mode);
        // In another mode it would only be in the way.
        drop(self.rests_otherwise(&name));
        let (hold, mut turn) = {
            let mut lines = self.lines.lock();
            let line = lines.get(&name)?;
            let Resting { hold, mut turn, .. } = line.resting.take()?;
            line.ahead.bring(&hold.lease().me, &mut turn.fences);
            let word = line.word.as_ref();
            let may = hold.lease().terms == asking.terms
                && turn.fences.asked() == asking.hand_over
                && word.is_some_and(|word| {
                    !word.others_wait() && !word.good_for(&turn.fences).is_zero()
                })
                && hold.lease().bears_another_turn();
            match turn.fences.next().filter(|_| may) {
                Some(fence) => {
                    line.ahead.handed_on(&turn.fences);
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

    /// What rests of this lock in other modes than this one.
    fn rests_otherwise(&self, name: &Name) -> Vec<Resting> {
        let mut rested = Vec::new();
        let mut lines = self.lines.lock();
        if name.1 != Mode::Exclusive {
            rested.extend(lines.exclusive.get_mut(&name.0).and_then(|line| line.resting.take()));
            lines.sweep(&(name.0.clone(), Mode::Exclusive));
        }
        // Only what is had alone rests.
        rested
    }

    pub(super) fn stop_resting(
        &self,
        name: &Name,
        is_meant: impl FnOnce(&Resting) -> bool,
    ) -> Option<Resting> {
        let mut lines = self.lines.lock();
        let line = lines.get(name)?;
        let rested = line.resting.take_if(|resting| is_meant(resting));
        lines.sweep(name);
        rested
    }

    pub(super) fn next_rest(&self) -> u64 {
        self.rests.fetch_add(1, Ordering::Relaxed)
    }

    /// Not under the mutex: where nothing can be spawned the rest is over at once.
    pub(super) fn rest_over_after(
        self: &Arc<Self>,
        linger: Duration,
        store: &Store,
        name: &Name,
        number: u64,
    ) {
        let rest = Rest { lines: Arc::downgrade(self), name: name.clone(), number };
        store.spawn(async move {
            let _rest = rest;
            tokio::time::sleep(linger).await;
        });
    }
}

/// A rest, which is over when this is dropped: also with the runtime that was to end it, or the lock would be renewed for
/// ever, and the store kept by it.
struct Rest {
    lines: Weak<Lines>,
    name: Name,
    number: u64,
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.upgrade() {
            drop(lines.stop_resting(&self.name, |resting| resting.number == self.number));
        }
    }
}
