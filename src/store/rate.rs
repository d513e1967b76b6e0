//! Charges of quota counters, and the quota snapshots that they return.
//!
//! A store keeps a [`CounterValue`] for each counter and decides. The snapshot for the client is
//! computed from it here (`ChargeItem::evaluate`), for every store alike. [`GcraRate`] turns an
//! even rate into integers.
//!
//! # Numbers
//!
//! All numbers are integers, in every store, and at most 2^53, up to which Lua's numbers are exact.
//! Limits, costs and usage are capped at [`MAX_UNITS`].

mod counter_value;
mod gcra_rate;

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

pub(crate) use self::{
    counter_value::{CounterValue, scale_ceil},
    gcra_rate::{GcraRate, MAX_DEBT_PARTS},
};
use crate::{error::Error, key::Key};

/// Maximum of a limit, a cost and a usage, in units: 2^50.
pub(crate) const MAX_UNITS: u64 = 1 << 50;

/// Maximum charge after the fact, as a multiple of the quota. It is enough for a cost that a
/// handler finds out late, and it bounds how long a key is refused: ten windows, or the time of ten
/// bursts.
const MAX_CHARGE_QUOTAS: u64 = 10;

/// Maximum number of counters in one call.
pub(crate) const MAX_ITEMS_PER_CHARGE: usize = 100;

/// Rule by which a counter counts. The window is in whole milliseconds, rounded up; for
/// [`Gcra`](Self::Gcra), in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaRule {
    /// Fixed window: it starts at the first charge and ends `window` later.
    Fixed { limit: u64, window: Duration },
    /// Sliding window counter: windows follow one another. Usage of the previous window counts in
    /// proportion to the part of it that the sliding window still covers, rounded up.
    Sliding { limit: u64, window: Duration },
    /// GCRA: `limit` per `window` at an even rate, at most `burst` at once. A rate that integers
    /// cannot express exactly is rounded down, see [`GcraRate`].
    Gcra { limit: u64, window: Duration, burst: u64 },
}

/// Counting algorithm. Counters of different algorithms are different counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Algorithm {
    Fixed,
    Sliding,
    Gcra,
}

impl QuotaRule {
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Fixed { .. } => Algorithm::Fixed,
            Self::Sliding { .. } => Algorithm::Sliding,
            Self::Gcra { .. } => Algorithm::Gcra,
        }
    }

    pub(crate) fn window(&self) -> Duration {
        match *self {
            Self::Fixed { window, .. }
            | Self::Sliding { window, .. }
            | Self::Gcra { window, .. } => window,
        }
    }

    /// Returns the maximum of one charge after the fact.
    pub(crate) const fn max_charge(&self) -> u64 {
        let most = match *self {
            Self::Fixed { limit, .. } | Self::Sliding { limit, .. } => limit,
            Self::Gcra { limit, burst, .. } if limit > 0 && burst > limit => burst,
            Self::Gcra { limit, .. } => limit,
        };
        most.saturating_mul(MAX_CHARGE_QUOTAS)
    }

    /// Returns a rule that is within both, for a counter that one command names twice.
    fn intersect(self, other: Self) -> Self {
        let slower = |(l, w): (u64, Duration), (m, v): (u64, Duration)| {
            u128::from(l) * v.as_micros() <= u128::from(m) * w.as_micros()
        };
        match (self, other) {
            // The smaller limit in the longer window is within both; neither rule need be.
            (Self::Fixed { limit: l, window: w }, Self::Fixed { limit: m, window: v }) => {
                Self::Fixed { limit: l.min(m), window: w.max(v) }
            }
            (Self::Sliding { limit: l, window: w }, Self::Sliding { limit: m, window: v }) => {
                Self::Sliding { limit: l.min(m), window: w.max(v) }
            }
            (
                Self::Gcra { limit: l, window: w, burst: b },
                Self::Gcra { limit: m, window: v, burst: c },
            ) => {
                let first = slower((l, w), (m, v));
                let (limit, window) = if first { (l, w) } else { (m, v) };
                Self::Gcra { limit, window, burst: b.min(c) }
            }
            _ => self,
        }
    }
}

/// Penalty: after `after_refusals` refusals within the rule's window, the counter refuses every
/// charge for `block_for`, even one of cost 0. Some refusals do not count:
///
/// - those caused by another counter
/// - those during the block
/// - those of a cost that can never be admitted
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Penalty {
    /// At least 1.
    pub(crate) after_refusals: u32,
    pub(crate) block_for: Duration,
}

/// Charge of one policy's counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeItem {
    /// Name of the policy. The quota does not identify the counter, so a changed quota keeps its
    /// usage.
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) rule: QuotaRule,
    /// Units to charge. A cost of 0 only reads the counter, and is refused only while it is
    /// blocked.
    pub(crate) cost: u64,
    pub(crate) penalty: Option<Penalty>,
}

impl ChargeItem {
    fn has_same_counter(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.subject == other.subject
            && self.rule.algorithm() == other.rule.algorithm()
    }
}

/// Charge of all items or none, `repetitions` times in succession.
#[derive(Debug, Clone)]
pub(crate) struct ChargeCommand {
    /// Determines the shard. A tag that differs from the subject is part of the counter's name, so
    /// a policy counts separately under each tag.
    pub(crate) tag: Key,
    /// At most [`MAX_ITEMS_PER_CHARGE`]. A counter named twice is charged the sum or nothing, by a
    /// rule within both.
    pub(crate) items: Arc<[ChargeItem]>,
    /// 0 charges nothing and counts no refusal, but returns the snapshots.
    pub(crate) repetitions: u32,
}

impl ChargeCommand {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_item_count(self.items.len())
    }

    /// Merges items that share a counter. Returns the merged command and, for each original item,
    /// the index of its merged one; `None` if no counter is shared.
    #[expect(clippy::indexing_slicing, reason = "the indices belong to the items of this command")]
    pub(crate) fn merge_duplicates(&self) -> Option<(Self, Vec<usize>)> {
        if self.items.len() < 2 {
            return None;
        }
        let twice = |(at, item): (usize, &ChargeItem)| {
            self.items[..at].iter().any(|other| item.has_same_counter(other))
        };
        if !self.items.iter().enumerate().any(twice) {
            return None;
        }
        let (mut once, mut places) =
            (Vec::<ChargeItem>::new(), Vec::with_capacity(self.items.len()));
        for item in &*self.items {
            match once.iter().position(|other| item.has_same_counter(other)) {
                Some(at) => {
                    let first = &mut once[at];
                    first.cost = first.cost.saturating_add(item.cost);
                    first.rule = first.rule.intersect(item.rule);
                    first.penalty = first.penalty.or(item.penalty);
                    places.push(at);
                }
                None => {
                    places.push(once.len());
                    once.push(item.clone());
                }
            }
        }
        Some((Self { items: once.into(), ..self.clone() }, places))
    }
}

/// Snapshots, one for each item; most charges have one item.
pub(crate) type QuotaSnapshots = SmallVec<[QuotaSnapshot; 1]>;

/// Outcome of a [`ChargeCommand`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeOutcome {
    /// Number of repetitions admitted, which are the first ones.
    pub(crate) admitted: u32,
    /// Snapshot of each item's counter after the call.
    pub(crate) snapshots: QuotaSnapshots,
}

impl ChargeOutcome {
    /// Maps the outcome of a merged command to its original items, by the indices that
    /// `merge_duplicates` has returned.
    pub(crate) fn expand_duplicates(mut self, places: &[usize]) -> Self {
        self.snapshots = places.iter().filter_map(|at| self.snapshots.get(*at).cloned()).collect();
        self
    }
}

/// State of a counter after a call. Times count from the server's reply. Times that a client may
/// rely on are rounded up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuotaSnapshot {
    /// Units that can be charged at once now.
    pub(crate) remaining: u64,
    /// Time until more quota is available. Fixed window: its end, or a whole window if none has
    /// begun. Sliding window and GCRA: until one more unit is available; zero if all are.
    pub(crate) reset_after: Duration,
    /// Time until this counter admits `cost`, if nothing else is charged; zero if it does now.
    /// [`Duration::MAX`] if it never will, because `cost` exceeds the limit or the burst.
    pub(crate) retry_after: Duration,
    /// Time until the whole quota is available. A cached copy of this state can be dropped then.
    pub(crate) full_after: Duration,
    /// Window that was charged, for a later [`ChargeAdjustment`].
    pub(crate) charged_window: ChargedWindow,
    /// Remaining time of a penalty, if there is one. `retry_after` may be longer.
    pub(crate) blocked_for: Option<Duration>,
}

/// Window of a counter, or GCRA debt, that was charged. Only the store interprets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChargedWindow {
    /// Fixed window: its end, in ms. Sliding window: its start, in ms. GCRA: the time at which the
    /// debt is paid off if nothing is refunded, in us.
    pub(crate) boundary: u64,
    /// GCRA: the debt that the charge is part of; 0 if nothing is owed. A debt that was paid off or
    /// discarded never returns, nor does one of another rate or from before the clock was set back.
    pub(crate) debt_id: u64,
}

/// Adjustment of one counter after the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeAdjustment {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) rule: QuotaRule,
    pub(crate) kind: AdjustmentKind,
}

impl ChargeAdjustment {
    /// Creates an adjustment. A charge is capped at [`QuotaRule::max_charge`].
    pub(crate) fn new(policy: Arc<str>, subject: Key, rule: QuotaRule, by: AdjustmentKind) -> Self {
        let by = match by {
            AdjustmentKind::Charge { units } => {
                AdjustmentKind::Charge { units: units.min(rule.max_charge()) }
            }
            AdjustmentKind::Refund { .. } => by,
        };
        Self { policy, subject, rule, kind: by }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdjustmentKind {
    /// Refunds the charge, or a part of it, in the window that [`QuotaSnapshot::charged_window`]
    /// named. A refund lapses with that window, and never moves it.
    Refund { units: u64, window: ChargedWindow },
    /// Charges more units now, even beyond the limit. It begins a window if there is none.
    Charge { units: u64 },
}

/// Adjustments of counters, each by itself. NOT idempotent, as a charge is not.
#[derive(Debug, Clone)]
pub(crate) struct SettleChargeCommand {
    /// Tag of the charge.
    pub(crate) tag: Key,
    /// At most [`MAX_ITEMS_PER_CHARGE`].
    pub(crate) items: Vec<ChargeAdjustment>,
}

impl SettleChargeCommand {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_item_count(self.items.len())
    }
}

/// Checks the number of items, which bounds the time of a script.
pub(crate) fn check_item_count(items: usize) -> Result<(), Error> {
    if items <= MAX_ITEMS_PER_CHARGE {
        return Ok(());
    }
    Err(Error::config(format!("a check has at most {MAX_ITEMS_PER_CHARGE} quotas, not {items}")))
}

/// Name of a counter.
#[derive(Debug, Clone)]
pub(crate) struct CounterName {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) algorithm: Algorithm,
}
