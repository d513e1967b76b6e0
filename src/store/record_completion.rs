//! The end of a request that runs at once and is remembered, and its delivery when the caller has gone.

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Store,
    backend::{Backend, BeginDirectOutcome, DirectRunCommand, LockMode, ReleaseOutcome},
    grant_attempt::{HEALTHY_LATENCY, possible_copies},
    lease_agent::{UndoAction, UndoRequest},
};
use crate::error::{Error, ErrorKind};

/// Outcome of a run, as its record keeps it.
#[derive(Debug, Clone)]
pub(crate) enum RecordOutcome {
    /// As if it had never been: a retry runs.
    Discarded,
    /// It has this stored response.
    Done(Bytes),
    /// It is unknown how far it came, for this reason.
    Dead(&'static str),
}

impl RecordOutcome {
    /// False if nothing of the run was there any more.
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

/// Ends a record that a request has taken, or is about to take.
#[derive(Debug, Clone)]
pub(crate) struct RecordCompletion {
    pub(crate) command: DirectRunCommand,
    pub(crate) outcome: RecordOutcome,
    sent_at: Instant,
    /// When the record has ended by itself.
    expires_at: Instant,
    /// How often ways to the store had been left when the record was asked for.
    resets_when_sent: u64,
    /// It was answered.
    is_answered: bool,
    /// How many calls may each have taken it.
    possible_grants: u32,
    /// One of them may come yet.
    may_arrive_late: bool,
    /// As far as is known, something of it is in the store.
    is_stored: bool,
}

impl RecordCompletion {
    /// Of a call that is about to be sent.
    pub(crate) fn new(store: &Store, call: DirectRunCommand) -> Self {
        let now = Instant::now();
        let until = now + call.retention;
        let silences = store.backend().connection_resets();
        let (end, sent, heard, taken) = (RecordOutcome::Discarded, now, false, 1);
        let (doubtful, known) = (false, true);
        Self {
            command: call,
            outcome: end,
            sent_at: sent,
            expires_at: until,
            resets_when_sent: silences,
            is_answered: heard,
            possible_grants: taken,
            may_arrive_late: doubtful,
            is_stored: known,
        }
    }

    /// What the call came to. False if nothing of it is in the store, or will be.
    pub(crate) fn record_reply(
        &mut self,
        store: &Store,
        answer: &Result<BeginDirectOutcome, Error>,
    ) -> bool {
        // Where a way was left meanwhile, this may be the answer to a second copy.
        let copies = possible_copies(self.resets_when_sent, store.backend().connection_resets());
        let copied = copies > 0;
        (self.is_answered, self.may_arrive_late, self.possible_grants) = (true, copied, 1 + copies);
        match answer.as_ref().map_err(Error::kind) {
            Ok(BeginDirectOutcome::Started) => true,
            Ok(
                BeginDirectOutcome::RecordTaken(_)
                | BeginDirectOutcome::LockLost
                | BeginDirectOutcome::TooManyRecords(_),
            ) => {
                self.is_stored = false;
                copied
            }
            Err(ErrorKind::Unavailable | ErrorKind::Config | ErrorKind::CostAboveQuota) => false,
            Err(ErrorKind::Timeout | ErrorKind::Protocol) => {
                self.may_arrive_late = true;
                true
            }
        }
    }

    /// True if a copy of the call may take the record after the store has taken its end. An end that is kept prevents that.
    pub(crate) fn may_be_retaken(&self) -> bool {
        self.may_arrive_late && matches!(self.outcome, RecordOutcome::Discarded)
    }

    /// The store has taken its end.
    pub(crate) fn mark_completed(&mut self) {
        self.is_stored = false;
    }

    pub(super) async fn complete(&self, backend: &dyn Backend) -> Result<ReleaseOutcome, Error> {
        let stood = self.outcome.clone().apply(backend, self.command.clone()).await?;
        Ok(if stood { ReleaseOutcome::Released } else { ReleaseOutcome::NotFound })
    }

    /// The agent sees to it, until the store has answered, or the record has ended by itself.
    pub(crate) fn complete_in_background(self: Box<Self>, store: &Store) {
        // The lock is given back now, or ends with its lease: of a call that comes later nothing comes. Twice, since a
        // renewal may be under way.
        let comes = Instant::now() + 2 * self.command.lease;
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
            action: UndoAction::CompleteRecord(self, comes),
        });
    }
}
