//! Deciding, and remembering what was decided. One engine for each store handle.
//!
//! In the order in which a check comes by: what is [`known`] may refuse it at once; a [`lease`] may have
//! been charged for it already; else [`check`] asks the store, and notes on a [`receipt`] what may have to be
//! given back or put right ([`settle`]); and while the store is [`away`], this process decides by itself. [`tend`]
//! does what has to be done without being asked.

mod alone;
mod ask;
mod away;
mod check;
mod counter_map;
mod known;
mod lease;
mod pending;
mod receipt;
mod settle;
mod tend;

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use tokio::sync::Notify;

use self::{away::Away, known::Known, lease::Lease, pending::Pending};
use crate::{error::Error, store::Store};

pub(super) use self::{
    ask::{Ask, Question},
    check::Checked,
    counter_map::{CounterMap, CounterState, Spot},
    receipt::Receipt,
    settle::Done,
};

#[derive(Default)]
pub(super) struct Engine {
    known: CounterMap<Known>,
    leases: CounterMap<Lease>,
    away: Away,
    pending: Pending,
    tended: Tended,
    /// Set once the store knows of it: whether the store's clock is moved by hand. What is kept here goes by this
    /// process's, so nothing is repeated, or charged in advance, beside such a one.
    by_hand: OnceLock<bool>,
}

/// The task in the background.
#[derive(Default)]
struct Tended {
    running: AtomicBool,
    /// There were checks since it looked last.
    used: AtomicBool,
    wake: Arc<Notify>,
}

impl Engine {
    /// The one of this store handle.
    pub(super) fn of(store: &Store) -> Arc<Self> {
        let engine = store.extension::<Self>();
        engine.by_hand.get_or_init(|| {
            let weak = Arc::downgrade(&engine);
            store.on_shutdown(move |store| {
                let engine = weak.upgrade();
                Box::pin(async move {
                    if let Some(engine) = engine {
                        engine.close(store).await;
                    }
                })
            });
            store.backend().has_manual_clock()
        });
        engine
    }

    fn is_by_hand(&self) -> bool {
        self.by_hand.get() == Some(&true)
    }

    /// Forgets what was spent.
    pub(super) async fn reset(&self, store: &Store, ask: &Ask) -> Result<(), Error> {
        for question in &ask.questions {
            // Units of the lease are of what is forgotten, whatever the quota they were charged by.
            self.leases.each(ask.spot(question), Lease::void);
            let Some(counter) = question.counter() else { continue };
            let _forgets = Forgets(self, ask.spot(question));
            store.backend().reset_counters(ask.tag(question).clone(), vec![counter]).await?;
        }
        Ok(())
    }
}

/// What was remembered, or charged in advance, before a reset. Whatever became of that, and also if nobody waits
/// for it: the store knows.
struct Forgets<'a>(&'a Engine, Spot<'a>);

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        // Also what was fetched meanwhile: whether that was before or after, only the store knows.
        self.0.leases.each(self.1, Lease::void);
        self.0.forget_all(self.1);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("away", &self.away.gone()).finish_non_exhaustive()
    }
}
