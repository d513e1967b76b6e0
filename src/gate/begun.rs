//! A request that runs at once and is remembered under its `Idempotency-Key`.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    error::Error,
    key::Key,
    store::{Direct, JobId, Store},
};

/// It has begun. Dropped without an end (its client has gone, its handler has panicked) it is forgotten, in
/// the background, so that a retry runs again. If the process dies instead, a retry is told "running"
/// until the record ends with the time the lock may be held for.
#[derive(Debug)]
pub(crate) struct Begun {
    store: Store,
    /// `None` once it has ended.
    call: Option<Direct>,
    /// What it ends with.
    response: Option<Bytes>,
}

impl Begun {
    /// Takes the record, under the lock; `Err` of the job that has it if it is taken.
    pub(crate) async fn begin(store: &Store, call: Direct) -> Result<Result<Self, JobId>, Error> {
        // First: if this future is dropped, or there is no answer, the call may have done its work.
        let mut begun = Self { store: store.clone(), call: Some(call.clone()), response: None };
        Ok(match store.backend().begin_direct(call).await? {
            None => Ok(begun),
            Some(other) => {
                begun.call = None;
                Err(other)
            }
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Its id, and the lock it runs under; `None` once it has ended.
    pub(crate) fn is(&self) -> Option<(&JobId, &Key)> {
        self.call.as_ref().map(|call| (&call.id, &call.key))
    }

    /// Ends it with what it was answered, which is kept for so long, and its fingerprint if there is one.
    pub(crate) async fn keep(mut self, life: Duration, response: Bytes, print: Option<String>) {
        if let Some(call) = &mut self.call {
            (call.life, call.print) = (life, print);
        }
        self.response = Some(response);
        self.end().await;
    }

    /// Ends it as if it had never been.
    pub(crate) async fn forget(mut self) {
        self.end().await;
    }

    async fn end(&mut self) {
        let Some(call) = self.call.clone() else { return };
        let (job, response) = (call.id.clone(), self.response.clone());
        match self.store.backend().end_direct(call, response).await {
            Ok(()) => self.call = None,
            // Once more when it is dropped.
            Err(error) => {
                tracing::warn!(node = %self.store.node(), ?job, %error, "not remembered: store away");
            }
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let (store, response) = (self.store.clone(), self.response.take());
        self.store.spawn(async move {
            // If it fails, the record ends by itself.
            let _ = store.backend().end_direct(call, response).await;
        });
    }
}
