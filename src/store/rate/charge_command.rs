//! `ChargeCommand`: charge of the counters of one request, and its outcome.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    quota_rule::{Algorithm, Penalty, QuotaRule},
    quota_snapshot::QuotaSnapshot,
};
use crate::{error::Error, key::Key};

/// Maximum number of counters in one call.
pub(crate) const MAX_ITEMS_PER_CHARGE: usize = 100;

/// Name of a counter.
#[derive(Debug, Clone)]
pub(crate) struct CounterName {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Key,
    pub(crate) algorithm: Algorithm,
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
        let is_duplicate = |(index, item): (usize, &ChargeItem)| {
            self.items[..index].iter().any(|other| item.has_same_counter(other))
        };
        if !self.items.iter().enumerate().any(is_duplicate) {
            return None;
        }
        let mut merged_items = Vec::<ChargeItem>::new();
        let mut merged_indices = Vec::with_capacity(self.items.len());
        for item in &*self.items {
            match merged_items.iter().position(|other| item.has_same_counter(other)) {
                Some(index) => {
                    let merged = &mut merged_items[index];
                    merged.cost = merged.cost.saturating_add(item.cost);
                    merged.rule = merged.rule.intersect(item.rule);
                    merged.penalty = merged.penalty.or(item.penalty);
                    merged_indices.push(index);
                }
                None => {
                    merged_indices.push(merged_items.len());
                    merged_items.push(item.clone());
                }
            }
        }
        Some((Self { items: merged_items.into(), ..self.clone() }, merged_indices))
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
    pub(crate) fn expand_duplicates(mut self, merged_indices: &[usize]) -> Self {
        let snapshot_of = |index: &usize| self.snapshots.get(*index).cloned();
        self.snapshots = merged_indices.iter().filter_map(snapshot_of).collect();
        self
    }
}

/// Checks the number of items, which bounds the time of a script.
pub(crate) fn check_item_count(items: usize) -> Result<(), Error> {
    if items <= MAX_ITEMS_PER_CHARGE {
        return Ok(());
    }
    Err(Error::config(format!("a check has at most {MAX_ITEMS_PER_CHARGE} quotas, not {items}")))
}
