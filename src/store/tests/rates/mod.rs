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
        Charge, Charged, Counter, Item, Rule, SettleCharge, Settled, State, Window,
        rate::{Algorithm, By},
    },
};

fn item(policy: &str, subject: &Key, rule: Rule, cost: u64) -> Item {
    Item { policy: policy.into(), subject: subject.clone(), rule, cost, penalty: None }
}

fn of(items: Vec<Item>, times: u32) -> Charge {
    let tag = items[0].subject.clone();
    Charge { tag, items: items.into(), times }
}

impl Rig {
    async fn reset(&self, item: &Item, tag: &Key) {
        let algorithm = item.rule.algorithm();
        let (policy, subject) = (item.policy.clone(), item.subject.clone());
        let counters = vec![Counter { policy, subject, algorithm }];
        self.backend().reset_charges(tag.clone(), counters).await.unwrap();
    }

    /// One charge of one counter.
    async fn spend(&self, item: &Item) -> (bool, State) {
        let mut charged: Charged = self.charge(of(vec![item.clone()], 1)).await;
        (charged.admitted == 1, charged.states.remove(0))
    }

    async fn peek(&self, item: &Item) -> State {
        self.charge(of(vec![item.clone()], 0)).await.states.remove(0)
    }

    async fn put_right(&self, item: &Item, by: By) -> State {
        let Item { policy, subject, rule, .. } = item.clone();
        let tag = subject.clone();
        let items = vec![Settled { policy, subject, rule, by }];
        self.settle_charge(SettleCharge { tag, items }).await.remove(0)
    }

    async fn refund(&self, item: &Item, units: u64, window: Window) -> State {
        self.put_right(item, By::Refund { units, window }).await
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn fixed(limit: u64, seconds: u64) -> Rule {
    Rule::Fixed { limit, window: Duration::from_secs(seconds) }
}

fn sliding(limit: u64, seconds: u64) -> Rule {
    Rule::Sliding { limit, window: Duration::from_secs(seconds) }
}

fn gcra(limit: u64, seconds: u64, burst: u64) -> Rule {
    Rule::Gcra { limit, window: Duration::from_secs(seconds), burst }
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Gcra];
