//! Quota leases: units charged in advance, and spent without a call.
//!
//! A unit is valid for the window in which it was charged. The end of that window counts from
//! before the call was sent, so a request that spends a unit is admitted in the window that has
//! counted it. A request that finds no unit refills the lease; a request that comes during the
//! refill is charged on its own. For a key with many such requests, [`prefetch`] refills the lease
//! earlier.

mod lease_refill;
mod prefetch;

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use self::lease_refill::LeaseRefill;
use super::{
    RateLimitEngine,
    check_request::{CheckRequest, PolicyCheck},
    counter_map::{BorrowedCounterId, CounterId, CounterState},
};
use crate::{
    error::Error,
    rate_limit::decision::{Decision, PolicyDecision, QuotaReading},
    store::{
        AdjustmentKind, ChargeCommand, ChargeItem, ChargedWindow, QuotaSnapshot,
        SettleChargeCommand, Store,
    },
};

/// Units of one counter charged in advance.
#[derive(Debug)]
pub(super) struct QuotaLease {
    pub(super) units: u64,
    /// End of the window in which the units are valid.
    pub(super) valid_until: Instant,
    pub(super) window: ChargedWindow,
    pub(super) last_used: Instant,
    last_state: Option<QuotaSnapshot>,
    refilling: bool,
    /// Time of the last refill; `None` once the prefetch after it has had its chance.
    filled_at: Option<Instant>,
    /// Number of invalidations. A refill that started before the last one is void.
    generation: u64,
}

/// Unit that was charged in advance, in this window.
#[derive(Debug)]
pub(super) struct LeasedUnit {
    window: ChargedWindow,
}

/// Result of spending from a lease.
#[derive(Debug)]
pub(super) struct LeaseSpend {
    /// Time before the call, if the store was asked.
    pub(super) sent_at: Option<Instant>,
    pub(super) state: QuotaSnapshot,
    /// `None` if the quota is spent.
    pub(super) unit: Option<LeasedUnit>,
}

enum LeaseAction {
    /// A unit was spent. The number of units to prefetch, if any.
    Spend(LeaseSpend, Option<u32>),
    /// No unit is left: fetch this many.
    Refill(u32),
    /// Charge the request on its own.
    ChargeOne,
}

impl CounterState for QuotaLease {
    /// A lease in use holds units that the store has charged.
    fn is_pinned(&self) -> bool {
        self.refilling || (self.units > 0 && Instant::now() < self.valid_until)
    }
}

impl QuotaLease {
    fn empty(now: Instant) -> Self {
        Self {
            units: 0,
            valid_until: now,
            window: ChargedWindow::default(),
            last_used: now,
            last_state: None,
            refilling: false,
            filled_at: None,
            generation: 0,
        }
    }

    /// Drops the units, and those of a refill in flight.
    pub(super) fn invalidate(&mut self) {
        (self.units, self.last_state, self.window) = (0, None, ChargedWindow::default());
        self.generation += 1;
    }

    pub(super) fn is_refilling(&self) -> bool {
        self.refilling
    }

    /// Returns true if `window` is the lease's window. The store identifies a window by its end,
    /// accurate to about a millisecond.
    fn is_in_window(&self, window: ChargedWindow) -> bool {
        self.window.boundary.abs_diff(window.boundary) <= 2
    }

    /// Spends a unit, if there is one.
    fn spend(&mut self, now: Instant) -> Option<LeaseSpend> {
        self.last_used = now;
        let state =
            self.last_state.as_ref().filter(|_| now < self.valid_until && self.units > 0)?;
        self.units -= 1;
        let (reset, remaining) = (self.valid_until - now, state.remaining + self.units);
        let state = QuotaSnapshot { reset_after: reset, remaining, ..state.clone() };
        Some(LeaseSpend { sent_at: None, state, unit: Some(LeasedUnit { window: self.window }) })
    }

    fn spend_or_refill(&mut self, most: u32, sharing: u64) -> LeaseAction {
        let now = Instant::now();
        if let Some(spent) = self.spend(now) {
            return LeaseAction::Spend(spent, self.start_prefetch(most, sharing, now));
        }
        match most.min(self.max_refill(sharing, now)) {
            0 | 1 => LeaseAction::ChargeOne,
            _ if self.refilling => LeaseAction::ChargeOne,
            fetch => {
                self.refilling = true;
                LeaseAction::Refill(fetch)
            }
        }
    }

    /// Returns the maximum size of a refill. Towards the end of the quota, it leaves units to the
    /// other processes.
    fn max_refill(&self, sharing: u64, now: Instant) -> u32 {
        let good = now < self.valid_until;
        let left =
            self.last_state.as_ref().filter(|_| good).map_or(u64::MAX, |state| state.remaining);
        u32::try_from(left / (2 * sharing.max(1))).unwrap_or(u32::MAX)
    }
}

impl RateLimitEngine {
    /// Admits the request by a leased unit, if it has no other policy. No call is made, and the
    /// unit is not returned later.
    pub(in crate::rate_limit) fn admit_from_lease(
        self: &Arc<Self>,
        store: &Store,
        ask: &CheckRequest,
    ) -> Option<Decision> {
        let [question] = &ask.checks[..] else { return None };
        let most = question.lease_size()?;
        if question.exceeds_capacity() || self.is_store_unavailable(store, ask.tag(question)) {
            return None;
        }
        let (spot, sharing, now) =
            (ask.counter_ref(question), self.process_count(), Instant::now());
        let spend = |lease: &mut QuotaLease| {
            lease.spend(now).map(|spent| (spent, lease.start_prefetch(most, sharing, now)))
        };
        let (spent, ahead) = self.leases.with(spot, spend).flatten()?;
        if let Some(times) = ahead {
            self.prefetch_lease(store, spot, question.charge_item(), times);
        }
        self.ensure_background_task(store, ask);
        let told = Some(QuotaReading {
            retry_after: Duration::ZERO,
            ..QuotaReading::from_state(&spent.state)
        });
        let one = PolicyDecision {
            reading: told,
            ..PolicyDecision::new(&question.policy, question.quota)
        };
        Some(Decision {
            admitted: true,
            decided_locally: false,
            policies: smallvec::smallvec![one],
        })
    }

    /// Spends a leased unit of this counter, or refills its lease. Returns `None` if the store has
    /// to charge the request on its own.
    pub(super) async fn acquire_leased_unit(
        self: &Arc<Self>,
        store: &Store,
        spot: BorrowedCounterId<'_>,
        question: &PolicyCheck,
        most: u32,
    ) -> Result<Option<LeaseSpend>, Error> {
        if self.has_manual_clock() {
            return Ok(None);
        }
        let now = Instant::now();
        let taken = self.leases.with_or_insert(
            spot,
            || QuotaLease::empty(now),
            |lease| lease.spend_or_refill(most, self.process_count()),
        );
        // A map full of leases in use has no room for another: this key is charged one unit at a
        // time.
        match taken.unwrap_or(LeaseAction::ChargeOne) {
            LeaseAction::Spend(spent, ahead) => {
                if let Some(times) = ahead {
                    self.prefetch_lease(store, spot, question.charge_item(), times);
                }
                Ok(Some(spent))
            }
            LeaseAction::Refill(times) => {
                self.refill_lease(store, spot, question.charge_item(), times).await
            }
            LeaseAction::ChargeOne => Ok(None),
        }
    }

    /// Refills in the background: the caller may be dropped, but the charged units must not be
    /// lost.
    async fn refill_lease(
        self: &Arc<Self>,
        store: &Store,
        spot: BorrowedCounterId<'_>,
        item: Option<ChargeItem>,
        times: u32,
    ) -> Result<Option<LeaseSpend>, Error> {
        let (tx, rx) = oneshot::channel();
        // A shutdown waits for the refill, in order to return its units.
        let (fetching, begun) = (LeaseRefill::new(self, spot), self.background_work.start());
        let charge = ChargeCommand {
            tag: spot.tag.clone(),
            items: item.into_iter().collect(),
            repetitions: times,
        };
        let with = store.clone();
        store.spawn_background(async move {
            let spent = fetching.fetch(&with, charge).await;
            if let Err(Ok(Some(LeaseSpend { unit: Some(unit), .. }))) = tx.send(spent) {
                fetching.return_unit(&unit);
            }
            drop(begun);
        });
        // There is no reply without a running runtime.
        store.await_reply(rx).await.unwrap_or(Ok(None))
    }

    pub(super) fn has_leased_units(&self, spot: BorrowedCounterId<'_>) -> bool {
        self.leased_units(spot) > 0
    }

    /// Returns the number of units to spend.
    pub(super) fn leased_units(&self, spot: BorrowedCounterId<'_>) -> u64 {
        let now = Instant::now();
        let good = |lease: &mut QuotaLease| if now < lease.valid_until { lease.units } else { 0 };
        self.leases.with(spot, good).unwrap_or(0)
    }

    /// Returns an unused unit to its lease. If the lease is gone, returns the call that refunds the
    /// unit.
    pub(super) fn return_leased_unit(
        &self,
        place: &CounterId,
        unit: &LeasedUnit,
    ) -> Option<SettleChargeCommand> {
        let back = |lease: &mut QuotaLease| {
            let is_there = lease.is_in_window(unit.window);
            lease.units += u64::from(is_there);
            is_there
        };
        if self.leases.with(place.to_ref(), back) == Some(true) {
            return None;
        }
        self.invalidate_counter(place.to_ref());
        place.settle_command(AdjustmentKind::Refund { units: 1, window: unit.window })
    }

    pub(super) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Returns the last known number of processes that share the quotas.
    fn process_count(&self) -> u64 {
        self.outage.process_count()
    }
}
