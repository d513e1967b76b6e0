//! The end of a request that runs at once and is remembered, and its delivery when the caller has gone.

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Store,
    agent::{GiveBack, Undo},
    attempt::{HEALTHY, copies_since},
    backend::{Backend, Began, Direct, GaveBack, Mode},
};
use crate::error::{Error, ErrorKind};

/// Outcome of a run, as its record keeps it.
#[derive(Debug, Clone)]
pub(crate) enum DirectEnd {
    /// As if it had never been: a retry runs.
    Forgotten,
    /// It has this stored response.
    Done(Bytes),
    /// It is unknown how far it came, for this reason.
    Dead(&'static str),
}

impl DirectEnd {
    /// False if nothing of the run was there any more.
    pub(crate) async fn send(self, backend: &dyn Backend, call: Direct) -> Result<bool, Error> {
        match self {
            Self::Forgotten => backend.end_direct(call, None).await,
            Self::Done(response) => backend.end_direct(call, Some(response)).await,
            Self::Dead(reason) => backend.bury_direct(call, reason).await,
        }
    }
}

/// Ends a record that a request has taken, or is about to take.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) call: Direct,
    pub(crate) end: DirectEnd,
    sent: Instant,
    /// When the record has ended by itself.
    until: Instant,
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
    /// Of a call that is about to be sent.
    pub(crate) fn of(store: &Store, call: Direct) -> Self {
        let now = Instant::now();
        let until = now + call.life;
        let silences = store.backend().silences();
        let (end, sent, heard, taken) = (DirectEnd::Forgotten, now, false, 1);
        let (doubtful, known) = (false, true);
        Self { call, end, sent, until, silences, heard, taken, doubtful, known }
    }

    /// What the call came to. False if nothing of it is in the store, or will be.
    pub(crate) fn heard(&mut self, store: &Store, answer: &Result<Began, Error>) -> bool {
        // Where a way was left meanwhile, this may be the answer to a second copy.
        let copies = copies_since(self.silences, store.backend().silences());
        let copied = copies > 0;
        (self.heard, self.doubtful, self.taken) = (true, copied, 1 + copies);
        match answer.as_ref().map_err(Error::kind) {
            Ok(Began::Begun) => true,
            Ok(Began::Taken(_) | Began::Lost | Began::TooManyKeys(_)) => {
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

    /// True if a copy of the call may take the record after the store has taken its end. An end that is kept prevents that.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubtful && matches!(self.end, DirectEnd::Forgotten)
    }

    /// The store has taken its end.
    pub(crate) fn ended(&mut self) {
        self.known = false;
    }

    pub(super) async fn send(&self, backend: &dyn Backend) -> Result<GaveBack, Error> {
        let stood = self.end.clone().send(backend, self.call.clone()).await?;
        Ok(if stood { GaveBack::Released } else { GaveBack::Nothing })
    }

    /// The agent sees to it, until the store has answered, or the record has ended by itself.
    pub(crate) fn hand_over(self: Box<Self>, store: &Store) {
        // The lock is given back now, or ends with its lease: of a call that comes later nothing comes. Twice, since a
        // renewal may be under way.
        let comes = Instant::now() + 2 * self.call.lease;
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
