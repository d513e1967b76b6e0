//! The end of a request that runs at once and is remembered, and what gives it when its caller has gone.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Store,
    agent::{GiveBack, Undo},
    attempt::{HEALTHY, copies_since},
    backend::{Backend, Began, Direct, GaveBack, Mode},
};
use crate::error::{Error, ErrorKind};

/// What ends a record that a request has taken, or is about to take: with its response, or as if it had never been.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) call: Direct,
    /// `None`: it is forgotten.
    pub(crate) response: Option<Bytes>,
    sent: Instant,
    /// When the record has ended by itself.
    until: Instant,
    /// Of the lock.
    lease: Duration,
    /// How often ways to the store had been left when the record was asked for.
    silences: u64,
    /// It was answered.
    heard: bool,
    /// How many calls may each have taken it.
    taken: u32,
    /// One of them may come yet.
    doubtful: bool,
    /// As far as is known, something of it is in the store.
    known: bool,
}

impl Ending {
    /// Of a call that is about to be sent, under a lock of this lease.
    pub(crate) fn of(store: &Store, call: Direct, lease: Duration) -> Self {
        let now = Instant::now();
        let until = now + call.life;
        let silences = store.backend().silences();
        let (response, sent, heard, taken) = (None, now, false, 1);
        let (doubtful, known) = (false, true);
        Self { call, response, sent, until, lease, silences, heard, taken, doubtful, known }
    }

    /// What the call came to. False if nothing of it is in the store, or will be.
    pub(crate) fn heard(&mut self, store: &Store, answer: &Result<Began, Error>) -> bool {
        // Where a way was left meanwhile, this may be the answer to a second copy.
        let copies = copies_since(self.silences, store.backend().silences());
        let copied = copies > 0;
        (self.heard, self.doubtful, self.taken) = (true, copied, 1 + copies);
        match answer.as_ref().map_err(Error::kind) {
            Ok(Began::Begun) => true,
            Ok(Began::Taken(_) | Began::Lost) => {
                self.known = false;
                copied
            }
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => false,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => {
                self.doubtful = true;
                true
            }
        }
    }

    /// Whether something of it may come when the store has taken its end. What has ended with its response is there, and
    /// keeps it off.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubtful && self.response.is_none()
    }

    /// The store has taken its end.
    pub(crate) fn ended(&mut self) {
        self.known = false;
    }

    pub(super) async fn send(&self, backend: &dyn Backend) -> Result<GaveBack, Error> {
        let stood = backend.end_direct(self.call.clone(), self.response.clone()).await?;
        Ok(if stood { GaveBack::Released } else { GaveBack::Nothing })
    }

    /// The agent sees to it, until the store has answered, or the record has ended by itself.
    pub(crate) fn hand_over(self: Box<Self>, store: &Store) {
        // The lock is given back now, or ends with its lease: of a call that comes later nothing comes. Twice, since a
        // renewal may be under way.
        let comes = Instant::now() + 2 * self.lease;
        store.agent().give_back(GiveBack {
            key: self.call.key.clone(),
            me: self.call.me.clone(),
            mode: Mode::Exclusive,
            until: self.until,
            finds: self.taken,
            doubtful: self.is_in_doubt() || (!self.heard && self.sent.elapsed() > HEALTHY),
            silences: (!self.heard).then_some(self.silences),
            is_known: self.known,
            tell: None,
            undo: Undo::End(self, comes),
        });
    }
}
