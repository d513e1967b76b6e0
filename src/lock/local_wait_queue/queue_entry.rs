//! Entry of this process in the store's queue, and one poll of the store.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{
    local_queue_map::LocalQueueId, local_queues::QueueHead, queue_snapshot::QueueSnapshot,
};
use crate::{
    error::Error,
    lock::{acquire_options::AcquireOptions, lock_outcome::LockBusy},
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
    /// `sequence` is that of the entry; 0 if it had none.
    Granted {
        hold: OwnedHold,
        snapshot: QueueSnapshot,
        sequence: u64,
    },
    Busy(QueueEntry, LockBusy),
    /// Granted, but the answer came too late to be certain of the lease.
    Overdue(QueueEntry, Error),
    Failed(QueueEntry, Error),
}

impl QueueEntry {
    pub(super) fn new(store: &Store, queue_id: &LocalQueueId) -> Self {
        let attempt = GrantAttempt::new(store, &queue_id.key, queue_id.mode);
        let offer_notify = store.wakeups().subscribe_offers(&attempt.token);
        let expires_at = Instant::now();
        Self {
            attempt,
            store: store.clone(),
            offer_notify,
            sequence: 0,
            resume_sequence: 0,
            join_count: 0,
            expires_at,
        }
    }

    /// Creates the call of one poll.
    ///
    /// Waiters behind a holder of this process have no entry yet. The first of them gets the
    /// position that it would have if it had asked on arrival.
    pub(super) fn acquire_command(&mut self, head: &QueueHead) -> AcquireCommand {
        let QueueHead { options, sequence, last_deadline, .. } = head;
        let now = Instant::now();
        self.expires_at = (*last_deadline).min(now + MAX_ENTRY_LIFETIME);
        let resume_seq = if self.join_count == 0 && self.resume_sequence == 0 {
            *sequence
        } else {
            self.resume_sequence
        };
        AcquireCommand {
            key: self.attempt.key.clone(),
            token: self.attempt.token.clone(),
            mode: options.terms.mode,
            lease: options.terms.initial_lease(),
            max_wait: Some(self.expires_at.saturating_duration_since(now)),
            resume_seq,
            record_name: None,
        }
    }

    pub(super) async fn acquire_or_enqueue(mut self, head: &QueueHead) -> AcquireOutcome {
        let command = self.acquire_command(head);
        self.send_acquire(command, &head.options).await
    }

    pub(super) async fn try_acquire(mut self, head: &QueueHead) -> AcquireOutcome {
        let command = AcquireCommand { max_wait: None, ..self.acquire_command(head) };
        self.send_acquire(command, &head.options).await
    }

    async fn send_acquire(
        mut self,
        command: AcquireCommand,
        options: &AcquireOptions,
    ) -> AcquireOutcome {
        let store = self.store.clone();
        let reply = self.attempt.send(command.lease, || store.backend().acquire(command)).await;
        self.into_outcome(options, reply)
    }

    pub(super) fn into_outcome(
        mut self,
        options: &AcquireOptions,
        reply: Result<AcquireReply, Error>,
    ) -> AcquireOutcome {
        match reply {
            Ok(AcquireReply::Granted { fence, contenders, server_us, .. }) => {
                let snapshot = QueueSnapshot::new(self.attempt.sent_at(), server_us, contenders);
                match self.attempt.accept_grant(fence, options.terms.clone()) {
                    Ok(hold) => AcquireOutcome::Granted { hold, snapshot, sequence: self.sequence },
                    Err(error) => AcquireOutcome::Overdue(self, error),
                }
            }
            Ok(AcquireReply::Busy { lease_remaining, queue_length, seq, has_joined }) => {
                self.update_sequence(seq, has_joined);
                AcquireOutcome::Busy(self, LockBusy { lease_remaining, queue_length, waited: None })
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
    fn update_sequence(&mut self, sequence: u64, has_joined: bool) {
        self.join_count += u32::from(has_joined);
        self.resume_sequence = if self.join_count < 2 { sequence } else { 0 };
        self.sequence = sequence;
    }
}
