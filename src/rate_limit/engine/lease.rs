//! Charges that were taken in advance, to be spent without asking the store.
//!
//! A unit is good for the window it was charged in, which ends at a moment that is counted from before the
//! call was sent: so whoever is let in by a unit is let in within the window that has counted him. Who
//! finds no unit fetches some more; who comes while that is under way asks for himself alone. Of a key that is
//! asked for so often that this would be many, more is [fetched ahead](ahead).

mod ahead;
mod fetching;

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use self::fetching::Fetching;
use super::{
    Engine,
    ask::{Ask, Question},
    counter_map::{CounterState, Place, Spot},
};
use crate::{
    error::Error,
    rate_limit::decision::{Decision, PolicyDecision, Told},
    store::{AdjustmentKind, ChargeCommand, ChargeItem, SettleChargeCommand, QuotaSnapshot, Store, ChargedWindow},
};

/// What is left of the charges that were taken of one counter.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) units: u64,
    /// When the window has ended in which they are good.
    pub(super) until: Instant,
    pub(super) window: ChargedWindow,
    pub(super) used: Instant,
    state: Option<QuotaSnapshot>,
    fetching: bool,
    /// When it was filled the last time; `None` if what was asked for ahead did not come.
    filled: Option<Instant>,
    /// How often what is left was made void: what was asked for before is void as well.
    voids: u64,
}

/// A charge that was made in advance, in this window.
#[derive(Debug)]
pub(super) struct Unit {
    window: ChargedWindow,
}

/// What a request has of a lease.
#[derive(Debug)]
pub(super) struct Spent {
    /// When the store was asked, if it was.
    pub(super) sent: Option<Instant>,
    pub(super) state: QuotaSnapshot,
    /// None if the quota is spent.
    pub(super) unit: Option<Unit>,
}

enum Taken {
    /// And so many are to be fetched ahead.
    Unit(Spent, Option<u32>),
    /// Nothing is left: fetch so many.
    Fetch(u32),
    /// Ask for one.
    Single,
}

impl CounterState for Lease {
    /// A lease in use holds units that the store has charged.
    fn is_pinned(&self) -> bool {
        self.fetching || (self.units > 0 && Instant::now() < self.until)
    }
}

impl Lease {
    fn nothing(now: Instant) -> Self {
        Self {
            units: 0,
            until: now,
            window: ChargedWindow::default(),
            used: now,
            state: None,
            fetching: false,
            filled: None,
            voids: 0,
        }
    }

    /// What is left is worth nothing any more, and neither is what is under way.
    pub(super) fn void(&mut self) {
        (self.units, self.state, self.window) = (0, None, ChargedWindow::default());
        self.voids += 1;
    }

    pub(super) fn is_fetching(&self) -> bool {
        self.fetching
    }

    /// Whether that is its window. The store tells a window by its end, to the millisecond or so.
    fn is_of(&self, window: ChargedWindow) -> bool {
        self.window.boundary.abs_diff(window.boundary) <= 2
    }

    /// Spends one that is there.
    fn spend(&mut self, now: Instant) -> Option<Spent> {
        self.used = now;
        let state = self.state.as_ref().filter(|_| now < self.until && self.units > 0)?;
        self.units -= 1;
        let (reset, remaining) = (self.until - now, state.remaining + self.units);
        let state = QuotaSnapshot { reset_after: reset, remaining, ..state.clone() };
        Some(Spent { sent: None, state, unit: Some(Unit { window: self.window }) })
    }

    fn take(&mut self, most: u32, sharing: u64) -> Taken {
        let now = Instant::now();
        if let Some(spent) = self.spend(now) {
            return Taken::Unit(spent, self.ahead(most, sharing, now));
        }
        match most.min(self.share(sharing, now)) {
            0 | 1 => Taken::Single,
            _ if self.fetching => Taken::Single,
            fetch => {
                self.fetching = true;
                Taken::Fetch(fetch)
            }
        }
    }

    /// How much may be fetched: towards the end the others shall find something too.
    fn share(&self, sharing: u64, now: Instant) -> u32 {
        let good = now < self.until;
        let left = self.state.as_ref().filter(|_| good).map_or(u64::MAX, |state| state.remaining);
        u32::try_from(left / (2 * sharing.max(1))).unwrap_or(u32::MAX)
    }
}

impl Engine {
    /// Lets the request in by a charge that was made in advance, if that is all it needs: nobody is asked. It is spent,
    /// and not given back.
    pub(in crate::rate_limit) fn at_hand(
        self: &Arc<Self>,
        store: &Store,
        ask: &Ask,
    ) -> Option<Decision> {
        let [question] = &ask.questions[..] else { return None };
        let most = question.leased()?;
        if question.is_too_dear() || self.is_away(store, ask.tag(question)) {
            return None;
        }
        let (spot, sharing, now) = (ask.spot(question), self.sharing(), Instant::now());
        let spend = |lease: &mut Lease| {
            lease.spend(now).map(|spent| (spent, lease.ahead(most, sharing, now)))
        };
        let (spent, ahead) = self.leases.with(spot, spend).flatten()?;
        if let Some(times) = ahead {
            self.fetch_ahead(store, spot, question.item(), times);
        }
        self.tend(store, ask);
        let told = Some(Told { retry: Duration::ZERO, ..Told::of(&spent.state) });
        let one = PolicyDecision { told, ..PolicyDecision::new(&question.policy, question.quota) };
        Some(Decision { admitted: true, local: false, each: smallvec::smallvec![one] })
    }

    /// Spends a charge of this counter that was made in advance, or makes some. `None` if there is none,
    /// and none is to be made: the store is to be asked for one.
    pub(super) async fn unit(
        self: &Arc<Self>,
        store: &Store,
        spot: Spot<'_>,
        question: &Question,
        most: u32,
    ) -> Result<Option<Spent>, Error> {
        if self.is_by_hand() {
            return Ok(None);
        }
        let now = Instant::now();
        let taken = self.leases.enter(
            spot,
            || Lease::nothing(now),
            |lease| lease.take(most, self.sharing()),
        );
        // Without room beside leases in use, this key asks for one unit at a time.
        match taken.unwrap_or(Taken::Single) {
            Taken::Unit(spent, ahead) => {
                if let Some(times) = ahead {
                    self.fetch_ahead(store, spot, question.item(), times);
                }
                Ok(Some(spent))
            }
            Taken::Fetch(times) => self.fetch(store, spot, question.item(), times).await,
            Taken::Single => Ok(None),
        }
    }

    /// Fetches in the background: who asks may leave, and what was charged must not be lost.
    async fn fetch(
        self: &Arc<Self>,
        store: &Store,
        spot: Spot<'_>,
        item: Option<ChargeItem>,
        times: u32,
    ) -> Result<Option<Spent>, Error> {
        let (tx, rx) = oneshot::channel();
        // A shutdown waits for what comes, to give it back.
        let (fetching, begun) = (Fetching::new(self, spot), self.pending.begin());
        let charge = ChargeCommand { tag: spot.tag.clone(), items: item.into_iter().collect(), repetitions: times };
        let with = store.clone();
        store.spawn_background(async move {
            let spent = fetching.fetch(&with, charge).await;
            if let Err(Ok(Some(Spent { unit: Some(unit), .. }))) = tx.send(spent) {
                fetching.put_back(&unit);
            }
            drop(begun);
        });
        // Nobody fetches where there is no runtime, or where it stands still.
        store.await_reply(rx).await.unwrap_or(Ok(None))
    }

    pub(super) fn has_units(&self, spot: Spot<'_>) -> bool {
        self.units(spot) > 0
    }

    /// How many are there to be spent.
    pub(super) fn units(&self, spot: Spot<'_>) -> u64 {
        let now = Instant::now();
        let good = |lease: &mut Lease| if now < lease.until { lease.units } else { 0 };
        self.leases.with(spot, good).unwrap_or(0)
    }

    /// A unit that is not needed after all. If its lease has gone meanwhile, it is for the store to take back.
    pub(super) fn put_back(&self, place: &Place, unit: &Unit) -> Option<SettleChargeCommand> {
        let back = |lease: &mut Lease| {
            let is_there = lease.is_of(unit.window);
            lease.units += u64::from(is_there);
            is_there
        };
        if self.leases.with(place.spot(), back) == Some(true) {
            return None;
        }
        self.forget(place.spot());
        place.settled(AdjustmentKind::Refund { units: 1, window: unit.window })
    }

    pub(super) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// How many processes share the quotas, as far as is known.
    fn sharing(&self) -> u64 {
        self.away.processes()
    }
}
