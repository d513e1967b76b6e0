//! The process's place in the store's line, and one look at the store.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{lines::Front, map::Name, rules::Word};
use crate::{
    error::Error,
    lock::{answer::Busy, asking::Asking},
    store::{AcquireCommand, AcquireReply, GrantAttempt, LockHold, Store},
};

/// How long the store keeps a place after the last look at it, at most: ten of them, and more than an outage that waiters sit
/// out. Whoever stands first keeps out those who could go in beside the holders (readers, behind a writer), also if its
/// process is dead.
const PLACE: Duration = Duration::from_secs(3);

/// The process's place in the store's line, or the way to it. Dropping it gives up what it has there.
pub(in crate::lock) struct Place {
    pub(super) attempt: GrantAttempt,
    store: Store,
    /// Rings when the lock is offered to it; made before the first call, so that no offer is missed.
    pub(super) offered: Arc<Notify>,
    seq: u64,
    /// Where it comes back to if an offer lapsed before it was confirmed; 0 = at the tail.
    pub(super) old_seq: u64,
    joins: u32,
    /// How long the store keeps it.
    pub(super) until: Instant,
}

/// What a look at the store came to.
pub(super) enum Looked {
    /// With the sequence of the place, if it had one.
    Held(LockHold, Word, u64),
    Busy(Place, Busy),
    /// It was granted, and it took too long to hear of that.
    Overdue(Place, Error),
    Failed(Place, Error),
}

impl Place {
    pub(super) fn new(store: &Store, name: &Name) -> Self {
        let attempt = GrantAttempt::new(store, &name.0, name.1);
        let offered = store.wakeups().subscribe_offers(&attempt.token);
        let until = Instant::now();
        Self { attempt, store: store.clone(), offered, seq: 0, old_seq: 0, joins: 0, until }
    }

    /// Those who waited behind a holder of this process have no place yet: the first of them gets the
    /// one it would have, had it asked when it came.
    pub(super) fn call(&mut self, front: &Front) -> AcquireCommand {
        let Front { asking, came, last, .. } = front;
        let now = Instant::now();
        self.until = (*last).min(now + PLACE);
        let old_seq = if self.joins == 0 && self.old_seq == 0 { *came } else { self.old_seq };
        AcquireCommand {
            key: self.attempt.key.clone(),
            token: self.attempt.token.clone(),
            mode: asking.terms.mode,
            lease: asking.terms.initial_lease(),
            max_wait: Some(self.until.saturating_duration_since(now)),
            resume_seq: old_seq,
            record_name: None,
        }
    }

    pub(super) async fn look(mut self, front: &Front) -> Looked {
        let call = self.call(front);
        self.send(call, &front.asking).await
    }

    pub(super) async fn try_once(mut self, front: &Front) -> Looked {
        let call = AcquireCommand { max_wait: None, ..self.call(front) };
        self.send(call, &front.asking).await
    }

    async fn send(mut self, call: AcquireCommand, asking: &Asking) -> Looked {
        let store = self.store.clone();
        let answer = self.attempt.send(call.lease, || store.backend().acquire(call)).await;
        self.looked(asking, answer)
    }

    pub(super) fn looked(mut self, asking: &Asking, answer: Result<AcquireReply, Error>) -> Looked {
        match answer {
            Ok(AcquireReply::Granted { fence, contenders: others, server_us: now, .. }) => {
                let word = Word::new(self.attempt.sent_at(), now, others);
                match self.attempt.accept_grant(fence, asking.terms.clone()) {
                    Ok(hold) => Looked::Held(hold, word, self.seq),
                    Err(error) => Looked::Overdue(self, error),
                }
            }
            Ok(AcquireReply::Busy { lease_remaining: left, queue_length: line, seq, has_joined: joined }) => {
                self.joined(seq, joined);
                Looked::Busy(self, Busy { left, line, waited: None })
            }
            #[expect(clippy::unreachable, reason = "said of records only")]
            Ok(AcquireReply::AlreadyAccepted) => unreachable!("no record was asked for"),
            Err(error) => Looked::Failed(self, error),
        }
    }

    /// Coming back to the old place is for a slow process, once: a second time would let a process that
    /// never confirms keep everybody behind it waiting.
    fn joined(&mut self, seq: u64, joined: bool) {
        self.joins += u32::from(joined);
        self.old_seq = if self.joins < 2 { seq } else { 0 };
        self.seq = seq;
    }
}
