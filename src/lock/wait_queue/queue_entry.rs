//! Entry of this process in the store's queue, and one poll of the store.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{local_queue::LocalQueueId, local_queues::QueueHead, queue_snapshot::QueueSnapshot};
use crate::{
    error::Error,
    lock::{acquire_options::AcquireOptions, outcome::LockBusy},
    store::{AcquireCommand, AcquireReply, GrantAttempt, OwnedHold, Store},
};

/// Longest time for which the store keeps an entry after its last poll: ten poll intervals, and
/// longer than an outage that waiters sit out.
///
/// The limit is short because the queue head also excludes entries that could run beside the
/// holders (readers behind a writer), even if its process is dead.
const MAX_ENTRY_LIFETIME: Duration = Duration::from_secs(3);

/// Position of this process in the store's queue, or an attempt to get one. Dropping it leaves the
/// queue and undoes a grant.
pub(in crate::lock) struct QueueEntry {
    pub(super) attempt: GrantAttempt,
    store: Store,
    /// Notified when the lock is offered to this entry. Subscribed before the first call, so that
    /// no offer is missed.
    pub(super) offer_notify: Arc<Notify>,
    sequence: u64,
    /// Position to return to if an offer expired before it was confirmed; 0 for the tail.
    pub(super) resume_sequence: u64,
    join_count: u32,
    /// Time until which the store keeps the entry.
    pub(super) expires_at: Instant,
}

/// Outcome of one poll.
pub(super) enum AcquireOutcome {
    /// Contains the sequence number of the entry; 0 if it had none.
    Granted(OwnedHold, QueueSnapshot, u64),
    Busy(QueueEntry, LockBusy),
    /// Granted, but the answer came too late to be certain of the lease.
    Overdue(QueueEntry, Error),
    Failed(QueueEntry, Error),
}

impl QueueEntry {
    pub(super) fn new(store: &Store, name: &LocalQueueId) -> Self {
        let attempt = GrantAttempt::new(store, &name.0, name.1);
        let offered = store.wakeups().subscribe_offers(&attempt.token);
        let until = Instant::now();
        Self {
            attempt,
            store: store.clone(),
            offer_notify: offered,
            sequence: 0,
            resume_sequence: 0,
            join_count: 0,
            expires_at: until,
        }
    }

    /// Creates the call of one poll.
    ///
    /// Waiters behind a holder of this process have no entry yet. The first of them gets the
    /// position that it would have if it had asked on arrival.
    pub(super) fn acquire_call(&mut self, front: &QueueHead) -> AcquireCommand {
        let QueueHead { options: asking, sequence: came, last_deadline: last, .. } = front;
        let now = Instant::now();
        self.expires_at = (*last).min(now + MAX_ENTRY_LIFETIME);
        let old_seq = if self.join_count == 0 && self.resume_sequence == 0 {
            *came
        } else {
            self.resume_sequence
        };
        AcquireCommand {
            key: self.attempt.key.clone(),
            token: self.attempt.token.clone(),
            mode: asking.terms.mode,
            lease: asking.terms.initial_lease(),
            max_wait: Some(self.expires_at.saturating_duration_since(now)),
            resume_seq: old_seq,
            record_name: None,
        }
    }

    pub(super) async fn acquire_or_enqueue(mut self, front: &QueueHead) -> AcquireOutcome {
        let call = self.acquire_call(front);
        self.send_acquire(call, &front.options).await
    }

    pub(super) async fn try_acquire(mut self, front: &QueueHead) -> AcquireOutcome {
        let call = AcquireCommand { max_wait: None, ..self.acquire_call(front) };
        self.send_acquire(call, &front.options).await
    }

    async fn send_acquire(
        mut self,
        call: AcquireCommand,
        asking: &AcquireOptions,
    ) -> AcquireOutcome {
        let store = self.store.clone();
        let answer = self.attempt.send(call.lease, || store.backend().acquire(call)).await;
        self.into_outcome(asking, answer)
    }

    pub(super) fn into_outcome(
        mut self,
        asking: &AcquireOptions,
        answer: Result<AcquireReply, Error>,
    ) -> AcquireOutcome {
        match answer {
            Ok(AcquireReply::Granted { fence, contenders: others, server_us: now, .. }) => {
                let word = QueueSnapshot::new(self.attempt.sent_at(), now, others);
                match self.attempt.accept_grant(fence, asking.terms.clone()) {
                    Ok(hold) => AcquireOutcome::Granted(hold, word, self.sequence),
                    Err(error) => AcquireOutcome::Overdue(self, error),
                }
            }
            Ok(AcquireReply::Busy {
                lease_remaining: left,
                queue_length: line,
                seq,
                has_joined: joined,
            }) => {
                self.update_sequence(seq, joined);
                AcquireOutcome::Busy(
                    self,
                    LockBusy { lease_remaining: left, queue_length: line, waited: None },
                )
            }
            #[expect(clippy::unreachable, reason = "returned for idempotency records only")]
            Ok(AcquireReply::AlreadyAccepted) => {
                unreachable!("the request has no idempotency record")
            }
            Err(error) => AcquireOutcome::Failed(self, error),
        }
    }

    /// Stores the entry's position, to which a slow process may return once.
    ///
    /// A second return would let a process that never confirms its offers block all entries behind
    /// it.
    fn update_sequence(&mut self, seq: u64, joined: bool) {
        self.join_count += u32::from(joined);
        self.resume_sequence = if self.join_count < 2 { seq } else { 0 };
        self.sequence = seq;
    }
}
