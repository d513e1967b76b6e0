//! The history check of quotas: processes charge the same few keys while they are killed, paused and
//! cut off, and while their server fails and returns.
//!
//! - RL1: no more requests are admitted than the quotas allow.
//! - RL2: an adjustment after the response is applied once or not at all, also if the call or its reply
//!   is lost. The count of the store shows it.
//! - L1: after the last fault the store admits or refuses each client of each live process within a
//!   bound, and gives no other answer from then on.
//!
//! Each process records its decisions. While the store is unavailable, the processes with a local limit
//! count on their own, which has a bound of its own.

mod counter_map_fill;
mod layered_quota_client;
mod quota_client;
mod quota_domain;
mod quota_spender;

use std::time::Duration;

use lockgate::{Policy, Quota, RateLimitOutage};

pub use self::{
    quota_client::run_quota_client,
    quota_domain::QuotaDomain,
    quota_spender::{SHARED_KEY, SpenderQuota, run_quota_spender, spender_quotas},
};
use crate::{
    checker::quota::QuotaBound,
    fleet::clock::{self, duration_ns},
};

const SECOND: Duration = Duration::from_secs(1);

/// So long a quota that is asked for anew is asked for, by the clock that all processes have.
const EPOCH_LENGTH: Duration = Duration::from_secs(2);

/// The window of those: it begins with the first charge, and is not over when the last one is made, however late.
const LONG_WINDOW: Duration = Duration::from_secs(20);

/// Spent within an epoch, though half of it is given back.
const REFUNDED_LIMIT: u64 = 150;

/// Never spent.
const UNREACHABLE_LIMIT: u64 = 1_000_000;

/// What is asked for under one name of the history: each policy by a key of its own, and what they let in together
/// at most.
struct TestedQuota {
    name: &'static str,
    policies: Vec<Policy>,
    bound: QuotaBound,
    /// In each [`EPOCH_LENGTH`] by a key that was not there before.
    new_key_per_epoch: bool,
    /// What becomes of a charge after the response.
    adjustment: ResponseAdjustment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseAdjustment {
    /// It stays. The store is asked through a limiter.
    Unchanged,
    /// It is given back, or not. Through a layer.
    Refunded,
    /// The request turns out to be dearer, or not. Through a layer.
    Increased,
}

impl TestedQuota {
    /// Its name in the history in this epoch.
    fn name_in_epoch(&self, epoch: u64) -> String {
        if self.new_key_per_epoch { format!("{}-{epoch}", self.name) } else { self.name.to_owned() }
    }

    /// Its name in the epoch before this one, whose window is not over.
    fn name_in_previous_epoch(&self) -> String {
        self.name_in_epoch(current_epoch() - 1)
    }
}

fn current_epoch() -> u64 {
    clock::now_ns() / duration_ns(EPOCH_LENGTH)
}

/// Of those that are asked for anew not one more than the limit is ever let in, leases, refunds and lost replies included;
/// and every other second there are some that are not spent yet, so that whatever is done meets one. "apart" has two keys, so
/// two tags: what the first has charged is given back when the second refuses, and that may be lost, but must not be done
/// twice. The second has many keys of little each, so that it refuses while there is plenty of the first, which is judged.
/// "refunded" and "dearer" are put right after the response: of the one much is given back, so that what is given back twice
/// lets in more than there is, or is missed where the store counts it; of the other, which is never spent, more is charged
/// than was asked for.
fn tested_quotas() -> Vec<TestedQuota> {
    let quota = |n| Quota::requests(n);
    let policy = |quota: Quota, name: &str| Policy::new(quota).with_name(name);
    let window = duration_ns(SECOND);
    let one = |policy: Policy, name, limit| TestedQuota {
        name,
        policies: vec![policy],
        bound: limit,
        new_key_per_epoch: false,
        adjustment: ResponseAdjustment::Unchanged,
    };
    // Of which one more may be let in: the first.
    let once = |n: u64| QuotaBound::Gcra { burst: n - 1, limit: 0, window: 1 };
    let long =
        |n, name: &str| policy(quota(n).per(LONG_WINDOW), name).on_outage(RateLimitOutage::Refuse);
    let anew = |policies, name, n, after| TestedQuota {
        name,
        policies,
        bound: once(n),
        new_key_per_epoch: true,
        adjustment: after,
    };
    vec![
        one(
            policy(quota(40).per(SECOND), "fixed"),
            "fixed",
            QuotaBound::Fixed { limit: 40, window },
        ),
        one(
            policy(quota(40).per(SECOND).sliding(), "sliding"),
            "sliding",
            QuotaBound::Sliding { limit: 40, window },
        ),
        one(
            policy(quota(40).per(SECOND).burst(10), "paced").on_outage(RateLimitOutage::Refuse),
            "paced",
            QuotaBound::Gcra { burst: 10, limit: 40, window },
        ),
        one(
            policy(quota(100).per(SECOND), "leased")
                .quota_lease(10)
                .on_outage(RateLimitOutage::Refuse),
            "leased",
            QuotaBound::Fixed { limit: 100, window },
        ),
        anew(vec![long(300, "once")], "once", 300, ResponseAdjustment::Unchanged),
        anew(vec![long(300, "lent").quota_lease(10)], "lent", 300, ResponseAdjustment::Unchanged),
        anew(
            vec![long(150, "wide"), long(3, "narrow")],
            "apart",
            150,
            ResponseAdjustment::Unchanged,
        ),
        anew(
            vec![long(REFUNDED_LIMIT, "refunded")],
            "refunded",
            REFUNDED_LIMIT,
            ResponseAdjustment::Refunded,
        ),
        anew(
            vec![long(UNREACHABLE_LIMIT, "dearer")],
            "dearer",
            UNREACHABLE_LIMIT,
            ResponseAdjustment::Increased,
        ),
    ]
}
