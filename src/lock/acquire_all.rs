//! Acquire of several locks in one call, if each is free and has no waiters. Otherwise nothing is
//! acquired, and [`lock_set`](super::lock_set) acquires them one by one.

use super::{
    guard::LockGuard,
    request::LockRequest,
    wait_queue::{LocalQueues, QueueSnapshot},
};
use crate::{
    error::Error,
    key::Key,
    store::{AcquireReply, GrantAttempt},
};

/// Most locks in one call, because it delays all other calls at the server.
const MAX_ACQUIRE_ALL_KEYS: usize = 32;

impl LockRequest {
    /// Acquires all of these locks in one call, if each is free and has no waiters. Returns a guard
    /// for each, with the number of its key.
    ///
    /// Returns `None` if nothing was acquired and they are to be acquired one by one.
    pub(super) async fn try_acquire_all(
        &self,
        keys: &[(usize, &Key)],
    ) -> Result<Option<Vec<(usize, LockGuard)>>, Error> {
        // Replica acknowledgements are awaited after each grant, for its own shard.
        if !(2..=MAX_ACQUIRE_ALL_KEYS).contains(&keys.len()) || self.options.replicas > 0 {
            return Ok(None);
        }
        let lines = self.store.extension::<LocalQueues>();
        let terms = &self.options.terms;
        // The store would refuse such a call: this process holds a lock or waits for it.
        if lines.is_any_occupied(keys.iter().map(|(_, key)| *key), terms.mode) {
            return Ok(None);
        }
        let lease = terms.initial_lease();
        let attempt = |(_, key): &(usize, &Key)| GrantAttempt::new(&self.store, key, terms.mode);
        let mut attempts = Vec::from_iter(keys.iter().map(attempt));
        let calls =
            Vec::from_iter(attempts.iter().map(|attempt| attempt.try_acquire_command(lease)));
        let call = || self.store.backend().acquire_all(&calls);
        let granted = GrantAttempt::send_all(&mut attempts, lease, call).await?;
        let Some(granted) = granted else {
            attempts.into_iter().for_each(GrantAttempt::mark_refused);
            return Ok(None);
        };
        let mut guards = Vec::with_capacity(keys.len());
        for ((mut attempt, (place, _)), granted) in attempts.into_iter().zip(keys).zip(granted) {
            // A grant that is not held, or not certain any more, is released when it is dropped, as
            // are the others.
            if let AcquireReply::Granted { fence, contenders: others, server_us: now, .. } = granted
            {
                let word = QueueSnapshot::new(attempt.sent_at(), now, others);
                let hold = match attempt.accept_grant(fence, terms.clone()) {
                    Ok(hold) => hold,
                    // The answer came too late: a request with a wait acquires them one by one.
                    Err(_) if self.has_wait() => return Ok(None),
                    Err(error) => return Err(error),
                };
                guards.push((*place, lines.register_grant(hold, &self.options, word)));
            }
        }
        Ok(Some(guards).filter(|guards| guards.len() == keys.len()))
    }
}
