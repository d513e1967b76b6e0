//! `QuotaLease`: units charged in advance, and spent without a call.
//!
//! A unit is valid for the window in which it was charged. The end of that window counts from
//! before the call was sent, so a request that spends a unit is admitted in the window that has
//! counted it. A request that finds no unit refills the lease; a request that comes during the
//! refill is charged on its own. For a key with many such requests, [`lease_prefetch`] refills the
//! lease earlier.

mod lease_prefetch;
mod lease_refill;

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
    /// A unit was spent.
    Spend { lease_spend: LeaseSpend, prefetch_units: Option<u32> },
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
        let (reset_after, remaining) = (self.valid_until - now, state.remaining + self.units);
        let state = QuotaSnapshot { reset_after, remaining, ..state.clone() };
        Some(LeaseSpend { sent_at: None, state, unit: Some(LeasedUnit { window: self.window }) })
    }

    fn spend_or_refill(&mut self, max_units: u32, process_count: u64) -> LeaseAction {
        let now = Instant::now();
        if let Some(lease_spend) = self.spend(now) {
            let prefetch_units = self.start_prefetch(max_units, process_count, now);
            return LeaseAction::Spend { lease_spend, prefetch_units };
        }
        match max_units.min(self.max_refill(process_count, now)) {
            0 | 1 => LeaseAction::ChargeOne,
            _ if self.refilling => LeaseAction::ChargeOne,
            units => {
                self.refilling = true;
                LeaseAction::Refill(units)
            }
        }
    }

    /// Returns the maximum size of a refill. Towards the end of the quota, it leaves units to the
    /// other processes.
    fn max_refill(&self, process_count: u64, now: Instant) -> u32 {
        let is_valid = now < self.valid_until;
        let remaining =
            self.last_state.as_ref().filter(|_| is_valid).map_or(u64::MAX, |state| state.remaining);
        u32::try_from(remaining / (2 * process_count.max(1))).unwrap_or(u32::MAX)
    }
}

impl RateLimitEngine {
    /// Admits the request by a leased unit, if it has no other policy. No call is made, and the
    /// unit is not returned later.
    pub(in crate::rate_limit) fn admit_from_lease(
        self: &Arc<Self>,
        store: &Store,
        request: &CheckRequest,
    ) -> Option<Decision> {
        let [check] = &request.checks[..] else { return None };
        let max_units = check.lease_size()?;
        if check.exceeds_capacity() || self.is_store_unavailable(store, request.tag(check)) {
            return None;
        }
        let (counter_id, process_count, now) =
            (request.borrowed_counter_id(check), self.process_count(), Instant::now());
        let spend = |lease: &mut QuotaLease| {
            lease.spend(now).map(|lease_spend| {
                (lease_spend, lease.start_prefetch(max_units, process_count, now))
            })
        };
        let (lease_spend, prefetch_units) = self.leases.with(counter_id, spend).flatten()?;
        if let Some(units) = prefetch_units {
            self.prefetch_lease(store, counter_id, check.charge_item(), units);
        }
        self.ensure_background_task(store, request);
        let reading = Some(QuotaReading {
            retry_after: Duration::ZERO,
            ..QuotaReading::from_state(&lease_spend.state)
        });
        let policy_decision =
            PolicyDecision { reading, ..PolicyDecision::new(&check.policy, check.quota) };
        Some(Decision {
            admitted: true,
            decided_locally: false,
            policies: smallvec::smallvec![policy_decision],
        })
    }

    /// Spends a leased unit of this counter, or refills its lease. Returns `None` if the store has
    /// to charge the request on its own.
    pub(super) async fn acquire_leased_unit(
        self: &Arc<Self>,
        store: &Store,
        counter_id: BorrowedCounterId<'_>,
        check: &PolicyCheck,
        max_units: u32,
    ) -> Result<Option<LeaseSpend>, Error> {
        if self.has_manual_clock() {
            return Ok(None);
        }
        let now = Instant::now();
        let action = self.leases.with_or_insert(
            counter_id,
            || QuotaLease::empty(now),
            |lease| lease.spend_or_refill(max_units, self.process_count()),
        );
        // A map full of leases in use has no room for another: this key is charged one unit at a
        // time.
        match action.unwrap_or(LeaseAction::ChargeOne) {
            LeaseAction::Spend { lease_spend, prefetch_units } => {
                if let Some(units) = prefetch_units {
                    self.prefetch_lease(store, counter_id, check.charge_item(), units);
                }
                Ok(Some(lease_spend))
            }
            LeaseAction::Refill(units) => {
                self.refill_lease(store, counter_id, check.charge_item(), units).await
            }
            LeaseAction::ChargeOne => Ok(None),
        }
    }

    /// Refills in the background: the caller may be dropped, but the charged units must not be
    /// lost.
    async fn refill_lease(
        self: &Arc<Self>,
        store: &Store,
        counter_id: BorrowedCounterId<'_>,
        item: Option<ChargeItem>,
        units: u32,
    ) -> Result<Option<LeaseSpend>, Error> {
        let (sender, receiver) = oneshot::channel();
        // A shutdown waits for the refill, in order to return its units.
        let (refill, work_guard) =
            (LeaseRefill::new(self, counter_id), self.background_work.start());
        let charge = ChargeCommand {
            tag: counter_id.tag.clone(),
            items: item.into_iter().collect(),
            repetitions: units,
        };
        let store_handle = store.clone();
        store.spawn_background(async move {
            let lease_spend = refill.fetch(&store_handle, charge).await;
            if let Err(Ok(Some(LeaseSpend { unit: Some(unit), .. }))) = sender.send(lease_spend) {
                refill.return_unit(&unit);
            }
            drop(work_guard);
        });
        // There is no reply without a running runtime.
        store.await_reply(receiver).await.unwrap_or(Ok(None))
    }

    pub(super) fn has_leased_units(&self, counter_id: BorrowedCounterId<'_>) -> bool {
        self.leased_units(counter_id) > 0
    }

    /// Returns the number of units to spend.
    pub(super) fn leased_units(&self, counter_id: BorrowedCounterId<'_>) -> u64 {
        let now = Instant::now();
        let valid_units =
            |lease: &mut QuotaLease| if now < lease.valid_until { lease.units } else { 0 };
        self.leases.with(counter_id, valid_units).unwrap_or(0)
    }

    /// Returns an unused unit to its lease. If the lease is gone, returns the call that refunds the
    /// unit.
    pub(super) fn return_leased_unit(
        &self,
        counter_id: &CounterId,
        unit: &LeasedUnit,
    ) -> Option<SettleChargeCommand> {
        let return_unit = |lease: &mut QuotaLease| {
            let is_same_window = lease.is_in_window(unit.window);
            lease.units += u64::from(is_same_window);
            is_same_window
        };
        if self.leases.with(counter_id.to_ref(), return_unit) == Some(true) {
            return None;
        }
        self.invalidate_counter(counter_id.to_ref());
        counter_id.settle_command(AdjustmentKind::Refund { units: 1, window: unit.window })
    }

    pub(super) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Returns the last known number of processes that share the quotas.
    fn process_count(&self) -> u64 {
        self.outage.process_count()
    }
}
