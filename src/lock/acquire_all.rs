//! Acquire of several locks in one call, if each is free and has no waiters. Otherwise nothing is
//! acquired, and [`LockSetRequest`](super::LockSetRequest) acquires them one by one.

use super::{
    local_wait_queue::{LocalQueues, QueueSnapshot},
    lock_guard::LockGuard,
    lock_request::LockRequest,
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
        let local_queues = self.store.extension::<LocalQueues>();
        let terms = &self.options.terms;
        // The store would refuse such a call: this process holds a lock or waits for it.
        if local_queues.is_any_occupied(keys.iter().map(|(_, key)| *key), terms.mode) {
            return Ok(None);
        }
        let lease = terms.initial_lease();
        let new_attempt =
            |(_, key): &(usize, &Key)| GrantAttempt::new(&self.store, key, terms.mode);
        let mut attempts = Vec::from_iter(keys.iter().map(new_attempt));
        let commands =
            Vec::from_iter(attempts.iter().map(|attempt| attempt.try_acquire_command(lease)));
        let send = || self.store.backend().acquire_all(&commands);
        let replies = GrantAttempt::send_all(&mut attempts, lease, send).await?;
        let Some(replies) = replies else {
            attempts.into_iter().for_each(GrantAttempt::mark_refused);
            return Ok(None);
        };
        let mut guards = Vec::with_capacity(keys.len());
        let granted = attempts.into_iter().zip(keys).zip(replies);
        for ((mut attempt, (key_index, _)), reply) in granted {
            // A grant that is not held, or not certain any more, is released when it is dropped, as
            // are the others.
            if let AcquireReply::Granted { fence, contenders, server_us, .. } = reply {
                let snapshot = QueueSnapshot::new(attempt.sent_at(), server_us, contenders);
                let hold = match attempt.accept_grant(fence, terms.clone()) {
                    Ok(hold) => hold,
                    // The answer came too late: a request with a wait acquires them one by one.
                    Err(_) if self.has_wait() => return Ok(None),
                    Err(error) => return Err(error),
                };
                guards
                    .push((*key_index, local_queues.register_grant(hold, &self.options, snapshot)));
            }
        }
        Ok(Some(guards).filter(|guards| guards.len() == keys.len()))
    }
}
