//! Shorthands for steps in a mode, and for those that change hands.

use std::time::Duration;

use super::rig::{Rig, ask, wait};
use crate::{
    Key,
    store::backend::{Acquire, Acquired, GaveBack, Mode, Renewal, Still, Token},
};

pub(super) fn ask_as(mode: Mode, key: &Key, me: &Token) -> Acquire {
    Acquire { mode, ..ask(key, me) }
}

pub(super) fn wait_as(mode: Mode, key: &Key, me: &Token) -> Acquire {
    Acquire { mode, ..wait(key, me) }
}

pub(super) fn renewal_as(mode: Mode, key: &Key, me: &Token, lease: Duration) -> Renewal {
    Renewal { key: key.clone(), me: me.clone(), mode, lease, job: None }
}

impl Rig {
    /// The fence.
    pub(super) async fn hold_as(&self, mode: Mode, key: &Key, me: &Token) -> u64 {
        match self.acquire(ask_as(mode, key, me)).await {
            Acquired::Held { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// Holds it for so long alone.
    pub(super) async fn hold_for(&self, mode: Mode, key: &Key, me: &Token, lease: Duration) {
        let held = self.acquire(Acquire { lease, ..ask_as(mode, key, me) }).await;
        assert!(matches!(held, Acquired::Held { .. }), "{held:?}");
    }

    /// The sequence of the place.
    pub(super) async fn join_as(&self, mode: Mode, key: &Key, me: &Token) -> u64 {
        match self.acquire(wait_as(mode, key, me)).await {
            Acquired::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a place in the line, got {other:?}"),
        }
    }

    /// How long it will be busy.
    pub(super) async fn refused_as(&self, mode: Mode, key: &Key, me: &Token) -> Duration {
        match self.acquire(ask_as(mode, key, me)).await {
            Acquired::Busy { left, seq: 0, .. } => left,
            other => panic!("expected it to be busy, got {other:?}"),
        }
    }

    pub(super) async fn release_as(&self, mode: Mode, key: &Key, me: &Token) -> GaveBack {
        self.backend().release(key.clone(), me.clone(), mode).await.unwrap()
    }

    /// Gives back, and asks for the next of the same process.
    pub(super) async fn hand_on(
        &self,
        me: &Token,
        mode: Mode,
        next: Acquire,
    ) -> (GaveBack, Acquired) {
        self.backend().pass(me.clone(), mode, next).await.unwrap()
    }

    pub(super) async fn still(&self, key: &Key, me: &Token) -> Option<Still> {
        self.backend().still(key.clone(), me.clone()).await.unwrap()
    }

    pub(super) async fn downgrade(&self, key: &Key, me: &Token, lease: Duration) -> bool {
        self.backend().downgrade(key.clone(), me.clone(), lease).await.unwrap()
    }
}

/// What it is held with.
pub(super) fn fence_of(reply: &Acquired) -> u64 {
    match reply {
        Acquired::Held { fence, .. } => *fence,
        other => panic!("expected the lock, got {other:?}"),
    }
}

/// The sequence of a place, which this call made or kept.
pub(super) fn seq_of(reply: &Acquired) -> u64 {
    match reply {
        Acquired::Busy { seq, .. } if *seq > 0 => *seq,
        other => panic!("expected a place in the line, got {other:?}"),
    }
}
