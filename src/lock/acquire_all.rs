//! A request that needs several locks has them by one call, if each is free and nobody stands in its line; else nothing
//! is taken by it, and [`several`](super::several) asks for one after the other.

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

/// Most locks in one call: it holds up all others at the server.
const MAX_ACQUIRE_ALL_KEYS: usize = 32;

impl LockRequest {
    /// All of these by one call, if each is free and nobody stands in line: a guard for each, with the number that
    /// goes with it. `None`: nothing was taken, and they are to be asked for one after the other.
    pub(super) async fn try_acquire_all(
        &self,
        keys: &[(usize, &Key)],
    ) -> Result<Option<Vec<(usize, LockGuard)>>, Error> {
        // Replicas are waited for after each grant, of its own shard.
        if !(2..=MAX_ACQUIRE_ALL_KEYS).contains(&keys.len()) || self.options.replicas > 0 {
            return Ok(None);
        }
        let lines = self.store.extension::<LocalQueues>();
        let terms = &self.options.terms;
        // It comes to who stands in line, or none may stand there any more: neither needs a call that would be refused.
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
            // (What is not held, or no longer for sure, is given back as it is dropped, and so are the others.)
            if let AcquireReply::Granted { fence, contenders: others, server_us: now, .. } = granted
            {
                let word = QueueSnapshot::new(attempt.sent_at(), now, others);
                let hold = match attempt.accept_grant(fence, terms.clone()) {
                    Ok(hold) => hold,
                    // The answer came too late: who waits asks for one after the other.
                    Err(_) if self.has_wait() => return Ok(None),
                    Err(error) => return Err(error),
                };
                guards.push((*place, lines.register_grant(hold, &self.options, word)));
            }
        }
        Ok(Some(guards).filter(|guards| guards.len() == keys.len()))
    }
}
