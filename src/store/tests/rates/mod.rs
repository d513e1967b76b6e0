//! Rate limits: every algorithm against a plain model, the stores against each other, and the
//! bounds of all.

mod admission_bounds;
#[cfg(feature = "redis")]
mod backend_equivalence;
mod charge_adjustments;
mod counting_algorithms;
mod policy_changes;
mod quota_model;
mod quota_operation;
#[cfg(feature = "redis")]
mod redis_only;
mod unit_bounds;

use std::time::Duration;

use super::store_harness::StoreHarness;
use crate::{
    Key,
    store::{
        ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, ChargedWindow, CounterName,
        QuotaRule, QuotaSnapshot, SettleChargeCommand,
        rate::{AdjustmentKind, Algorithm},
    },
};

fn charge_item(policy: &str, subject: &Key, rule: QuotaRule, cost: u64) -> ChargeItem {
    ChargeItem { policy: policy.into(), subject: subject.clone(), rule, cost, penalty: None }
}

fn repeated_charge(items: Vec<ChargeItem>, repetitions: u32) -> ChargeCommand {
    let tag = items[0].subject.clone();
    ChargeCommand { tag, items: items.into(), repetitions }
}

impl StoreHarness {
    async fn reset_counter(&self, item: &ChargeItem, tag: &Key) {
        let algorithm = item.rule.algorithm();
        let (policy, subject) = (item.policy.clone(), item.subject.clone());
        let counters = vec![CounterName { policy, subject, algorithm }];
        self.backend().reset_counters(tag.clone(), counters).await.unwrap();
    }

    /// Charges one counter once.
    async fn charge_once(&self, item: &ChargeItem) -> (bool, QuotaSnapshot) {
        let mut charged: ChargeOutcome = self.charge(repeated_charge(vec![item.clone()], 1)).await;
        (charged.admitted == 1, charged.snapshots.remove(0))
    }

    async fn read_quota(&self, item: &ChargeItem) -> QuotaSnapshot {
        self.charge(repeated_charge(vec![item.clone()], 0)).await.snapshots.remove(0)
    }

    async fn adjust_charge(&self, item: &ChargeItem, kind: AdjustmentKind) -> QuotaSnapshot {
        let ChargeItem { policy, subject, rule, .. } = item.clone();
        let tag = subject.clone();
        let items = vec![ChargeAdjustment { policy, subject, rule, kind }];
        self.settle_charge(SettleChargeCommand { tag, items }).await.remove(0)
    }

    async fn refund(&self, item: &ChargeItem, units: u64, window: ChargedWindow) -> QuotaSnapshot {
        self.adjust_charge(item, AdjustmentKind::Refund { units, window }).await
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn fixed_window_rule(limit: u64, seconds: u64) -> QuotaRule {
    QuotaRule::Fixed { limit, window: Duration::from_secs(seconds) }
}

fn sliding_window_rule(limit: u64, seconds: u64) -> QuotaRule {
    QuotaRule::Sliding { limit, window: Duration::from_secs(seconds) }
}

fn gcra_rule(limit: u64, seconds: u64, burst: u64) -> QuotaRule {
    QuotaRule::Gcra { limit, window: Duration::from_secs(seconds), burst }
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Gcra];
