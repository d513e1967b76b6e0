//! `IdempotencyRecordCompletion`: end of a direct run's idempotency record, and its delivery in the
//! background when the caller is gone.

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Store,
    backend::{Backend, BeginDirectOutcome, DirectRunCommand, LockMode, ReleaseOutcome},
    grant_attempt::{HEALTHY_LATENCY, possible_copies},
    lease_agent::{UndoAction, UndoRequest},
};
use crate::error::{Error, ErrorKind};

/// Outcome of a direct run, as stored in its record.
#[derive(Debug, Clone)]
pub(crate) enum IdempotencyRecordOutcome {
    /// The record is deleted, so a retry runs.
    Discarded,
    /// The run has this stored response.
    Done(Bytes),
    /// It is unknown how far the run came, for this reason.
    Dead(&'static str),
}

impl IdempotencyRecordOutcome {
    /// Stores the outcome. Returns false if nothing of the run was left.
    pub(crate) async fn apply(
        self,
        backend: &dyn Backend,
        call: DirectRunCommand,
    ) -> Result<bool, Error> {
        match self {
            Self::Discarded => backend.finish_direct(call, None).await,
            Self::Done(response) => backend.finish_direct(call, Some(response)).await,
            Self::Dead(reason) => backend.mark_direct_dead(call, reason).await,
        }
    }
}

/// Completion of a record that a request has taken, or is about to take.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyRecordCompletion {
    pub(crate) command: DirectRunCommand,
    pub(crate) outcome: IdempotencyRecordOutcome,
    sent_at: Instant,
    /// Time at which the record has expired by itself.
    expires_at: Instant,
    /// [`Backend::connection_resets`] when the record was requested.
    resets_when_sent: u64,
    /// The call for the record was answered.
    is_answered: bool,
    /// Number of calls that may each have taken the record.
    possible_grants: u32,
    /// One of these calls may still arrive.
    may_arrive_late: bool,
    /// The store is assumed to hold the record.
    is_stored: bool,
}

impl IdempotencyRecordCompletion {
    /// Creates the completion for a call that is about to be sent.
    pub(crate) fn new(store: &Store, call: DirectRunCommand) -> Self {
        let now = Instant::now();
        Self {
            outcome: IdempotencyRecordOutcome::Discarded,
            sent_at: now,
            expires_at: now + call.retention,
            resets_when_sent: store.backend().connection_resets(),
            is_answered: false,
            possible_grants: 1,
            may_arrive_late: false,
            is_stored: true,
            command: call,
        }
    }

    /// Records the reply to the call. Returns false if the store has nothing of it, and will have
    /// nothing.
    pub(crate) fn record_reply(
        &mut self,
        store: &Store,
        reply: &Result<BeginDirectOutcome, Error>,
    ) -> bool {
        // If a connection was given up meanwhile, this may be the reply to a second copy.
        let copies = possible_copies(self.resets_when_sent, store.backend().connection_resets());
        let has_copies = copies > 0;
        self.is_answered = true;
        self.may_arrive_late = has_copies;
        self.possible_grants = 1 + copies;
        match reply.as_ref().map_err(Error::kind) {
            Ok(BeginDirectOutcome::Started) => true,
            Ok(
                BeginDirectOutcome::RecordTaken(_)
                | BeginDirectOutcome::LockLost
                | BeginDirectOutcome::TooManyRecords(_),
            ) => {
                self.is_stored = false;
                has_copies
            }
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => false,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => {
                self.may_arrive_late = true;
                true
            }
        }
    }

    /// Returns true if a copy of the call may take the record again after its completion. A stored
    /// outcome prevents this.
    pub(crate) fn may_be_retaken(&self) -> bool {
        self.may_arrive_late && matches!(self.outcome, IdempotencyRecordOutcome::Discarded)
    }

    /// Records that the store has the outcome.
    pub(crate) fn mark_completed(&mut self) {
        self.is_stored = false;
    }

    pub(super) async fn complete(&self, backend: &dyn Backend) -> Result<ReleaseOutcome, Error> {
        let was_running = self.outcome.clone().apply(backend, self.command.clone()).await?;
        Ok(if was_running { ReleaseOutcome::Released } else { ReleaseOutcome::NotFound })
    }

    /// Leaves the completion to the lease agent, which repeats it until the store has answered or
    /// the record has expired.
    pub(crate) fn complete_in_background(self: Box<Self>, store: &Store) {
        // The lock is released now, or expires with its lease; a call that arrives later takes
        // nothing. Two leases, since a renewal may be in flight.
        let late_until = Instant::now() + 2 * self.command.lease;
        store.agent().schedule_undo(UndoRequest {
            key: self.command.key.clone(),
            token: self.command.token.clone(),
            mode: LockMode::Exclusive,
            expires_at: self.expires_at,
            possible_grants: self.possible_grants,
            may_arrive_late: self.may_be_retaken()
                || (!self.is_answered && self.sent_at.elapsed() > HEALTHY_LATENCY),
            resets_when_sent: (!self.is_answered).then_some(self.resets_when_sent),
            blocks_shutdown: self.is_stored,
            reply_to: None,
            action: UndoAction::CompleteRecord(self, late_until),
        });
    }
}
