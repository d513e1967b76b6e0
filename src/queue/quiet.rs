//! A worker that has nothing to do: whether that is still so, for two commands.
//!
//! A turn that finds nothing costs the server nine. So once one has found that nothing waits and nothing runs, the next
//! looks only ask whether that is so yet, and prolong the worker's place among the idle, for which a push wakes it. What
//! is told in the meantime, an answer that is not a plain yes, or none, is followed by a turn; so is each 24th look,
//! since turns also throw away what was kept for long enough. (The place is counted by the store's clock, which may leap
//! ahead: then a push may find nobody there, until one of the next turns, and waits for a look, as after a lost message.)

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    rounds::Rounds,
    turn::{Answer, Refused, answer_to},
};
use crate::store::{Store, TaskPollCommand};

/// An idle worker looks so often, in case it was not told.
pub(super) const BEAT: Duration = Duration::from_secs(5);

/// How long an idle worker counts as one; longer than a beat.
pub(super) const IDLE: Duration = Duration::from_secs(8);

/// Looks in a row that are no turns: two minutes at most. Each further worker of a fleet that has nothing to do
/// costs 0.46 commands a second with it, the turns' share included.
const MOST: u32 = 23;

/// What a turn has found, or a look behind it.
#[derive(Clone, Copy)]
pub(super) struct Quiet {
    /// When the call was made that prolonged the worker's place.
    since: Instant,
    looks: u32,
}

/// What came of a look.
#[expect(clippy::large_enum_variant, reason = "it is moved once, from the future that makes it")]
pub(super) enum Looked {
    Turned(Answer),
    Quiet(Quiet),
}

impl Quiet {
    pub(super) fn found(since: Instant) -> Self {
        Self { since, looks: 0 }
    }

    /// Itself, later, if it is so still. An error is no answer: the turn that follows waits for one.
    async fn still(self, store: &Store, turn: &TaskPollCommand) -> Option<Self> {
        let now = Instant::now();
        let (queue, node, worker) =
            (turn.queue.clone(), turn.node.clone(), Arc::clone(&turn.worker));
        let longer = now.duration_since(self.since);
        let still = store.backend().poll_idle(queue, node, worker, longer).await;
        still.unwrap_or(false).then_some(Self { since: now, looks: self.looks + 1 })
    }
}

/// The turn, unless it is seen to be idle.
pub(super) async fn look(
    store: Store,
    quiet: Option<Quiet>,
    turn: TaskPollCommand,
    refused: Refused,
) -> Looked {
    if let Some(quiet) = quiet
        && let Some(still) = quiet.still(&store, &turn).await
    {
        return Looked::Quiet(still);
    }
    Looked::Turned(answer_to(store, turn, refused).await)
}

impl Rounds {
    /// What the next look may ask about instead of taking its turn.
    pub(super) fn was_quiet(&mut self) -> Option<Quiet> {
        let quiet = self.quiet.take().filter(|quiet| quiet.looks < MOST);
        quiet.filter(|_| !self.told && !self.stopping && self.ends.is_empty())
    }

    pub(super) fn looked(&mut self, looked: Looked) {
        match looked {
            Looked::Turned(answer) => self.answered(answer),
            Looked::Quiet(quiet) => self.is_quiet(quiet),
        }
    }

    fn is_quiet(&mut self, quiet: Quiet) {
        self.quiet = Some(quiet);
        if !self.told {
            (self.look, self.exact) = (Some(Instant::now() + BEAT), false);
        }
    }
}
