//! Putting charges right in the background, where nobody's leaving ends it.
//!
//! What the store does not answer may have been done: it is not sent again, since a refund that ran twice would
//! let somebody in. What can't have been done, because the store was away or refused its login, is tried again until the
//! window is over that it is about, for [`PATIENCE`] at most, and while no more than
//! [`Pending::MOST`](super::pending::Pending::MOST) counters wait for that. Whatever else happens to it, it
//! stays charged as it is until its window ends. A shutdown tries once more and does not wait.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{sync::oneshot, time::Instant};

use super::{Engine, counter_map::Spot, pending::Begun};
use crate::{
    error::ErrorKind,
    rate_limit::quota::Quota,
    store::{SettleChargeCommand, QuotaSnapshot, Store, WeakStore},
};

/// Most calls that are under way together: the leases of many keys may have to go back.
const AT_ONCE: usize = 64;

/// Before it is tried again; twice as long each time.
const PAUSE: Duration = Duration::from_millis(250);

const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// For how long it is tried at most.
const PATIENCE: Duration = Duration::from_secs(300);

/// Charges that are changed, whether that is awaited or not.
pub(in crate::rate_limit) struct Done {
    store: Store,
    settled: oneshot::Receiver<()>,
}

impl Done {
    /// Resolves when they are, or have to wait, or never will be.
    pub(in crate::rate_limit) async fn wait(self) {
        // It is done, or its runtime has ended, or keeps nobody here for longer than a store does.
        let _ = self.store.await_reply(self.settled).await;
    }
}

impl Engine {
    /// In the background.
    pub(super) fn settle(self: &Arc<Self>, store: &Store, calls: Vec<SettleChargeCommand>) -> Done {
        let (done, settled) = oneshot::channel::<()>();
        let (with, begun) = (store.clone(), self.pending.begin());
        let engine = Arc::clone(self);
        store.spawn_background(async move {
            let since = Instant::now();
            let left = engine.change(&with, calls).await;
            // A response may wait for this, but not for a store that is away; and no handle is kept for it.
            let store = with.downgrade();
            drop((done, with));
            if !left.is_empty() {
                try_again(&engine, store, left, since, &begun).await;
            }
        });
        Done { store: store.clone(), settled }
    }

    /// Makes the changes; returns those that were not made.
    async fn change(&self, store: &Store, calls: Vec<SettleChargeCommand>) -> Vec<SettleChargeCommand> {
        let mut left = Vec::new();
        for some in calls.chunks(AT_ONCE) {
            let sent = Instant::now();
            let settle = |call: &SettleChargeCommand| store.backend().settle_charge(call.clone());
            let answers = join_all(some.iter().map(settle)).await;
            for (call, answer) in some.iter().zip(answers) {
                match answer {
                    Ok(states) => self.hear_changed(sent, call, &states),
                    // Neither has been run. A login that is refused now may be taken in a while.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config) =>
                    {
                        left.push(call.clone());
                    }
                    Err(error) => {
                        crate::throttle::throttled!(warn, %error, "a charge may not have been put right");
                    }
                }
            }
        }
        left
    }

    /// Notes what is left: an outage begins with that, and not with what the request was charged when it came.
    fn hear_changed(&self, sent: Instant, call: &SettleChargeCommand, states: &[QuotaSnapshot]) {
        for (item, state) in call.items.iter().zip(states) {
            let quota = Quota::of(item.rule);
            let (policy, tag, subject) = (&item.policy, &call.tag, &item.subject);
            self.note_changed(Spot { policy, tag, subject, quota }, sent, state);
        }
    }
}

/// Holds no store while it waits: it ends with the last handle.
async fn try_again(
    engine: &Engine,
    store: WeakStore,
    left: Vec<SettleChargeCommand>,
    since: Instant,
    begun: &Begun,
) {
    let Some(_room) = begun.wait(counters(&left)) else { return give_up(&left) };
    let (mut left, mut pause) = (left, PAUSE);
    while !left.is_empty() {
        let closing = begun.rest(pause).await;
        let Some(store) = store.upgrade() else { return give_up(&left) };
        let (live, over): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|call| lives(call, since.elapsed()));
        give_up(&over);
        left = engine.change(&store, live).await;
        if closing {
            return give_up(&left);
        }
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Whether there may be a window still that it is about.
fn lives(call: &SettleChargeCommand, after: Duration) -> bool {
    let longest = call.items.iter().map(|item| item.rule.window()).max();
    after < PATIENCE.min(longest.unwrap_or_default())
}

fn counters(calls: &[SettleChargeCommand]) -> usize {
    calls.iter().map(|call| call.items.len()).sum()
}

fn give_up(calls: &[SettleChargeCommand]) {
    if !calls.is_empty() {
        let counters = counters(calls);
        crate::throttle::throttled!(
            warn,
            counters,
            "charges were not put right: the store is away"
        );
    }
}
