//! Quotas: every algorithm against a plain model, the stores against each other, and what is promised of all.

#[cfg(feature = "redis")]
mod alike;
mod bounds;
mod cases;
mod changes;
mod model;
mod moves;
mod promises;
#[cfg(feature = "redis")]
mod redis_only;

use std::time::Duration;

use super::rig::Rig;
use crate::{
    Key,
    store::{
        ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, ChargedWindow, CounterName,
        QuotaRule, QuotaSnapshot, SettleChargeCommand,
        rate::{AdjustmentKind, Algorithm},
    },
};

fn item(policy: &str, subject: &Key, rule: QuotaRule, cost: u64) -> ChargeItem {
    ChargeItem { policy: policy.into(), subject: subject.clone(), rule, cost, penalty: None }
}

fn of(items: Vec<ChargeItem>, times: u32) -> ChargeCommand {
    let tag = items[0].subject.clone();
    ChargeCommand { tag, items: items.into(), repetitions: times }
}

impl Rig {
    async fn reset(&self, item: &ChargeItem, tag: &Key) {
        let algorithm = item.rule.algorithm();
        let (policy, subject) = (item.policy.clone(), item.subject.clone());
        let counters = vec![CounterName { policy, subject, algorithm }];
        self.backend().reset_counters(tag.clone(), counters).await.unwrap();
    }

    /// One charge of one counter.
    async fn spend(&self, item: &ChargeItem) -> (bool, QuotaSnapshot) {
        let mut charged: ChargeOutcome = self.charge(of(vec![item.clone()], 1)).await;
        (charged.admitted == 1, charged.snapshots.remove(0))
    }

    async fn peek(&self, item: &ChargeItem) -> QuotaSnapshot {
        self.charge(of(vec![item.clone()], 0)).await.snapshots.remove(0)
    }

    async fn put_right(&self, item: &ChargeItem, by: AdjustmentKind) -> QuotaSnapshot {
        let ChargeItem { policy, subject, rule, .. } = item.clone();
        let tag = subject.clone();
        let items = vec![ChargeAdjustment { policy, subject, rule, kind: by }];
        self.settle_charge(SettleChargeCommand { tag, items }).await.remove(0)
    }

    async fn refund(&self, item: &ChargeItem, units: u64, window: ChargedWindow) -> QuotaSnapshot {
        self.put_right(item, AdjustmentKind::Refund { units, window }).await
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn fixed(limit: u64, seconds: u64) -> QuotaRule {
    QuotaRule::Fixed { limit, window: Duration::from_secs(seconds) }
}

fn sliding(limit: u64, seconds: u64) -> QuotaRule {
    QuotaRule::Sliding { limit, window: Duration::from_secs(seconds) }
}

fn gcra(limit: u64, seconds: u64, burst: u64) -> QuotaRule {
    QuotaRule::Gcra { limit, window: Duration::from_secs(seconds), burst }
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Gcra];
