//! A grant: what the guards of one lock share, and what becomes of it when the last of them ends.

use std::{fmt, sync::Arc};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    guard::Released,
    line::{Fences, Keeper, Lines, Start, TurnEnd},
};
use crate::{
    error::Error,
    store::{ReleaseOutcome, LockHold, HoldState, Store},
};

/// What the guards of one grant share.
#[derive(Debug)]
pub(super) struct Grant {
    /// `None` once it has ended.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    hold: LockHold,
    /// `None`: it is given back, whoever waits.
    turn: Option<Turn>,
}

/// The way to the next of this process.
pub(super) struct Turn {
    pub(super) lines: Arc<Lines>,
    pub(super) fences: Fences,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("fences", &self.fences).finish_non_exhaustive()
    }
}

impl Grant {
    pub(super) fn new(hold: LockHold, turn: Option<Turn>) -> Self {
        Self { held: Some(Held { hold, turn }) }
    }

    #[expect(clippy::expect_used, reason = "only a call that consumes the grant takes it out")]
    pub(super) fn hold(&self) -> &LockHold {
        // Only what consumes the grant takes it.
        &self.held.as_ref().expect("the grant is held until it is consumed").hold
    }

    pub(super) fn facts(&self) -> &Arc<HoldState> {
        self.hold().state()
    }

    /// Not passed on when they are dropped.
    #[expect(clippy::expect_used, reason = "only a call that consumes the grant takes it out")]
    pub(super) fn into_parts(mut self) -> (LockHold, Option<Turn>) {
        let Held { hold, turn } = self.held.take().expect("the grant is held until it is consumed");
        (hold, turn)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            match Ended::of(held.hold, held.turn) {
                // A hold that is dropped is given back by the agent.
                Ended::HandedOver | Ended::GiveBack(_) => {}
                Ended::Pass(pass) => pass.start(None),
            }
        }
    }
}

/// What becomes of a hold whose guard has ended.
pub(super) enum Ended {
    HandedOver,
    GiveBack(LockHold),
    Pass(Pass),
}

/// It is given back, and the next of this process asks for it, in one call.
pub(super) struct Pass {
    lines: Arc<Lines>,
    hold: LockHold,
    bell: Arc<Notify>,
}

impl Pass {
    pub(super) fn store(&self) -> &Store {
        self.hold.store()
    }

    pub(super) fn start(self, tell: Option<oneshot::Sender<Released>>) {
        let Self { lines, hold, bell } = self;
        let (store, lease) = (hold.store().clone(), Arc::clone(hold.lease()));
        let name = (lease.key.clone(), lease.terms.mode);
        Keeper::spawn(&lines, &store, &name, bell, Start::Pass(hold, tell));
    }
}

impl Ended {
    pub(super) fn of(hold: LockHold, turn: Option<Turn>) -> Self {
        let Some(turn) = turn else {
            return Self::GiveBack(hold);
        };
        let lines = Arc::clone(&turn.lines);
        match lines.end_turn(hold, turn) {
            TurnEnd::HandedOver => Self::HandedOver,
            TurnEnd::GiveBack(hold) => Self::GiveBack(hold),
            TurnEnd::Pass(hold, bell) => Self::Pass(Pass { lines, hold, bell }),
        }
    }
}

/// What a release came to, for its holder.
pub(super) fn outcome(facts: &HoldState, gave_back: &Result<ReleaseOutcome, Error>) -> Released {
    match gave_back {
        _ if facts.loss().is_some() => Released::AlreadyLost,
        Ok(ReleaseOutcome::Released) => Released::Released,
        // The first of two calls may have done it: within the lease nobody else can have.
        Ok(ReleaseOutcome::NotFoundOnRetry) if facts.valid_until() > Instant::now() => Released::Released,
        Ok(ReleaseOutcome::NotFoundOnRetry) | Err(_) => Released::Unknown,
        Ok(_) => {
            facts.report_loss_on_release();
            Released::AlreadyLost
        }
    }
}
