//! A request that runs at once and is remembered under its `Idempotency-Key`.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    error::Error,
    key::Key,
    store::{Began, Direct, Ending, JobId, Store},
};

/// It has begun. Dropped without an end (its client has gone, its handler has panicked) it is forgotten, in
/// the background, so that a retry runs again. A store that is away, or silent, is told when it is there again. If the
/// process dies instead, a retry is told "running" until the record ends with the time the lock may be held for.
#[derive(Debug)]
pub(crate) struct Begun {
    store: Store,
    /// `None` once it has ended.
    ending: Option<Box<Ending>>,
}

/// What asking for the record comes to.
pub(crate) enum Begin {
    Begun(Begun),
    /// Another request has it.
    Taken,
    /// The lock it is to run under was lost before.
    Lost,
}

impl Begun {
    /// Takes the record, under a lock of this lease.
    pub(crate) async fn begin(
        store: &Store,
        call: Direct,
        lease: Duration,
    ) -> Result<Begin, Error> {
        // First: if this future is dropped, or there is no answer, the call may have done its work.
        let ending = Some(Box::new(Ending::of(store, call.clone(), lease)));
        let mut begun = Self { store: store.clone(), ending };
        let answer = store.backend().begin_direct(call).await;
        let is_there = begun.ending.as_mut().is_some_and(|ending| ending.heard(store, &answer));
        begun.ending = begun.ending.take().filter(|_| is_there);
        Ok(match answer? {
            Began::Begun => Begin::Begun(begun),
            Began::Taken(job) => {
                tracing::debug!(node = %store.node(), ?job, "not begun: its record is taken");
                Begin::Taken
            }
            Began::Lost => Begin::Lost,
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Its id, and the lock it runs under; `None` once it has ended.
    pub(crate) fn is(&self) -> Option<(&JobId, &Key)> {
        self.ending.as_ref().map(|ending| (&ending.call.id, &ending.call.key))
    }

    /// Ends it with what it was answered, which is kept for so long, and its fingerprint if there is one.
    pub(crate) async fn keep(mut self, life: Duration, response: Bytes, print: Option<String>) {
        if let Some(ending) = &mut self.ending {
            (ending.call.life, ending.call.print) = (life, print);
            ending.response = Some(response);
        }
        self.end().await;
    }

    /// Ends it as if it had never been.
    pub(crate) async fn forget(mut self) {
        self.end().await;
    }

    async fn end(&mut self) {
        let Some(ending) = &self.ending else { return };
        let (call, response) = (ending.call.clone(), ending.response.clone());
        let job = call.id.clone();
        match self.store.backend().end_direct(call, response).await {
            Ok(_) => {
                self.ending = self.ending.take().filter(|ending| ending.is_in_doubt());
                if let Some(ending) = &mut self.ending {
                    ending.ended();
                }
            }
            // Again when it is dropped.
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    node = %self.store.node(), ?job, %error, "not remembered yet: store away"
                );
            }
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(ending) = self.ending.take() {
            ending.hand_over(&self.store);
        }
    }
}

#[cfg(test)]
mod tests;
