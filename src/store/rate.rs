//! What is asked of a quota's counters, and what they say.
//!
//! A store keeps a [`CounterValue`] for each counter and decides; what a client is told is worked out of that
//! here ([`count`]), for every store alike. [`pace`] turns an even rate into whole numbers.
//!
//! # Numbers
//!
//! All are integers, in every store, and none passes 2^53, up to which Lua's are exact: limits, costs and what
//! is spent count up to [`MAX_UNITS`], what goes beyond counts as that.

mod counter_value;
mod gcra_rate;

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

pub(crate) use self::{
    counter_value::{CounterValue, scale_ceil},
    gcra_rate::{GcraRate, MAX_DEBT_PARTS},
};
use crate::{error::Error, key::Key};

/// Most units of a limit, of a cost, and of what can be spent: 2^50.
pub(crate) const MAX_UNITS: u64 = 1 << 50;

/// How many times its quota a charge after the fact may be: enough for what a handler finds out too late, and a key
/// is refused for ten windows at worst, or for as long as ten bursts take.
const MAX_CHARGE_QUOTAS: u64 = 10;

/// Most counters of one call.
pub(crate) const MAX_ITEMS_PER_CHARGE: usize = 100;

/// How a counter counts. Lengths of windows are whole milliseconds, rounded up; those of [`Gcra`](Self::Gcra)
/// whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuotaRule {
    /// A window starts at the first charge and ends `window` later.
    Fixed { limit: u64, window: Duration },
    /// Sliding window counter: windows follow one another; what was spent in the previous one counts by the
    /// part of it that is still within reach, rounded up.
    Sliding { limit: u64, window: Duration },
    /// GCRA: `limit` per `window` evenly, at most `burst` at once. Where the numbers leave no exact rate, it is
    /// the next lower one: see [`GcraRate`].
    Gcra { limit: u64, window: Duration, burst: u64 },
}

/// Counters of different algorithms are different counters.
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

    /// Most that one charge counts after the fact.
    pub(crate) const fn max_charge(&self) -> u64 {
        let most = match *self {
            Self::Fixed { limit, .. } | Self::Sliding { limit, .. } => limit,
            Self::Gcra { limit, burst, .. } if limit > 0 && burst > limit => burst,
            Self::Gcra { limit, .. } => limit,
        };
        most.saturating_mul(MAX_CHARGE_QUOTAS)
    }

    /// Both at once: one counter that is asked for twice is held to what both allow.
    fn intersect(self, other: Self) -> Self {
        let slower = |(l, w): (u64, Duration), (m, v): (u64, Duration)| {
            u128::from(l) * v.as_micros() <= u128::from(m) * w.as_micros()
        };
        match (self, other) {
            // The least in the longest window is within both; neither rule by itself may be.
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

/// After `after_refusals` refusals within the rule's window every charge of this counter is refused for `block_for`, one
/// that costs nothing included. A refusal that the counter is not to blame for, one while it is blocked, and
/// one of a cost that could never be let in do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Penalty {
    /// At least 1.
    pub(crate) after_refusals: u32,
    pub(crate) block_for: Duration,
}

/// One policy's counter, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeItem {
    /// The policy's name. The quota is not in it: a changed quota keeps what was spent.
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) rule: QuotaRule,
    /// 0: it is looked at, and refuses only while it is blocked.
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

/// All items or none, `repetitions` times one after the other.
#[derive(Debug, Clone)]
pub(crate) struct ChargeCommand {
    /// Decides the shard, and is part of the counters' names where it is not the subject itself: a policy
    /// counts apart under each tag.
    pub(crate) tag: Key,
    /// At most [`MAX_ITEMS_PER_CHARGE`]. A counter that is named twice is charged the sum, or nothing, by a rule within both.
    pub(crate) items: Arc<[ChargeItem]>,
    /// 0: nothing is charged and nothing counts as refused; the states are told.
    pub(crate) repetitions: u32,
}

impl ChargeCommand {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_item_count(self.items.len())
    }

    /// The same charge with each counter once, and of each item which of those is its own. `None` if they
    /// are.
    #[expect(clippy::indexing_slicing, reason = "places of its own items")]
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

/// One for each item; most charges are of one.
pub(crate) type QuotaSnapshots = SmallVec<[QuotaSnapshot; 1]>;

/// What became of a [`Charge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeOutcome {
    /// The first so many of `repetitions`.
    pub(crate) admitted: u32,
    /// Of each item, after the call.
    pub(crate) snapshots: QuotaSnapshots,
}

impl ChargeOutcome {
    /// The answer to a charge whose items share counters, from that to the merged one.
    pub(crate) fn expand_duplicates(mut self, places: &[usize]) -> Self {
        self.snapshots = places.iter().filter_map(|at| self.snapshots.get(*at).cloned()).collect();
        self
    }
}

/// What a counter says. Times are from the server's answer on; those a client may rely on are rounded up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuotaSnapshot {
    /// What may be spent at once now.
    pub(crate) remaining: u64,
    /// Until there is more quota. Fixed: the end of the window (a whole one if none has begun). Sliding and
    /// GCRA: until one more unit is there; zero if all are.
    pub(crate) reset_after: Duration,
    /// How long `cost` has to wait at this counter if nobody else spends; zero if it would be let in.
    /// [`Duration::MAX`] if it never can be: it is more than the limit, or the burst.
    pub(crate) retry_after: Duration,
    /// Until the whole quota is there again. (Whoever keeps this state may forget it then.)
    pub(crate) full_after: Duration,
    /// What was charged; for [`ChargeAdjustment`].
    pub(crate) charged_window: ChargedWindow,
    /// How long for, if it is by a penalty: `retry_after` may be longer.
    pub(crate) blocked_for: Option<Duration>,
}

/// Which window of a counter was charged, or which of its debts. Means nothing to anybody but the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChargedWindow {
    /// Fixed: its end, sliding: its beginning, in ms. GCRA: when what was charged is paid off, if nothing is given
    /// back, in us.
    pub(crate) boundary: u64,
    /// GCRA: which debt it is part of; 0 if nothing is owed. One that was paid off or forgotten never comes back,
    /// and neither does one of another pace or of before the clock was put back.
    pub(crate) debt_id: u64,
}

/// What is put right of one counter after the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeAdjustment {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) rule: QuotaRule,
    pub(crate) kind: AdjustmentKind,
}

impl ChargeAdjustment {
    /// A charge counts [`QuotaRule::max_charge`] at most.
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
    /// Gives back what was charged, or less, in the window that [`QuotaSnapshot::charged_window`] told then. It lapses with
    /// that window, and never moves it.
    Refund { units: u64, window: ChargedWindow },
    /// Charges so much more now, even beyond the limit; begins a window where there is none.
    Charge { units: u64 },
}

/// Of each counter by itself. NOT idempotent, as a charge is not.
#[derive(Debug, Clone)]
pub(crate) struct SettleChargeCommand {
    /// As of the charge.
    pub(crate) tag: Key,
    /// At most [`MAX_ITEMS_PER_CHARGE`].
    pub(crate) items: Vec<ChargeAdjustment>,
}

impl SettleChargeCommand {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_item_count(self.items.len())
    }
}

/// Scripts are bounded.
pub(crate) fn check_item_count(items: usize) -> Result<(), Error> {
    if items <= MAX_ITEMS_PER_CHARGE {
        return Ok(());
    }
    Err(Error::config(format!("{items} quotas in one check; there can be {MAX_ITEMS_PER_CHARGE}")))
}

/// A counter by its name.
#[derive(Debug, Clone)]
pub(crate) struct CounterName {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) algorithm: Algorithm,
}
