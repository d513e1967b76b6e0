//! The history check of quotas: processes charge the same few keys while they are killed, paused
//! and cut off, and while their server fails and returns.
//!
//! - RL1: no more requests are admitted than the quotas allow.
//! - RL2: an adjustment after the response is applied once or not at all, also if the call or its
//!   reply is lost. The count of the store shows it.
//! - L1: after the last fault the store admits or refuses each client of each live process within a
//!   bound, and gives no other answer from then on.
//!
//! Each process records its decisions. While the store is unavailable, the processes with a local
//! limit count on their own, which has a bound of its own.

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

/// Length of an epoch, by the common clock; some quotas get a new key in each.
const EPOCH_LENGTH: Duration = Duration::from_secs(2);

/// Window of quotas with a key per epoch. It starts with the first charge and outlasts the last
/// one, even if that is late.
const LONG_WINDOW: Duration = Duration::from_secs(20);

/// Reached within an epoch, although half of the units are refunded.
const REFUNDED_LIMIT: u64 = 150;

/// Limit that is never reached.
const UNREACHABLE_LIMIT: u64 = 1_000_000;

/// Policies that are charged together under one key of the history, and the bound of their
/// admissions.
struct TestedQuota {
    name: &'static str,
    policies: Vec<Policy>,
    bound: QuotaBound,
    /// True for a new key in each [`EPOCH_LENGTH`].
    new_key_per_epoch: bool,
    /// Adjustment of a charge after the response.
    adjustment: ResponseAdjustment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseAdjustment {
    /// None; requests use a rate limiter.
    Unchanged,
    /// Some charges are refunded; requests use a layer.
    Refunded,
    /// Some requests cost more than first charged; requests use a layer.
    Increased,
}

impl TestedQuota {
    /// Returns the name in the history in this epoch.
    fn name_in_epoch(&self, epoch: u64) -> String {
        if self.new_key_per_epoch { format!("{}-{epoch}", self.name) } else { self.name.to_owned() }
    }

    /// Returns the name in the previous epoch, whose window has not ended.
    fn name_in_previous_epoch(&self) -> String {
        self.name_in_epoch(current_epoch() - 1)
    }
}

fn current_epoch() -> u64 {
    clock::now_ns() / duration_ns(EPOCH_LENGTH)
}

/// Returns the tested quotas.
///
/// - Quotas with a key per epoch never admit more than their limit, whatever leases, refunds and
///   lost replies occur. Every two seconds there are unspent ones, so that each fault hits one.
/// - `apart` has two keys, so two hash tags: the charge of the first is rolled back when the second
///   refuses. The rollback may be lost but must not be applied twice. The second has many keys with
///   small limits, so it refuses while the first, which is checked, has units.
/// - `refunded` and `dearer` are adjusted after the response. A double refund admits too many
///   requests or shows in the store's count. `dearer` is never exhausted and is charged more than
///   at first.
fn tested_quotas() -> Vec<TestedQuota> {
    let quota = |n| Quota::requests(n);
    let policy = |quota: Quota, name: &str| Policy::new(quota).with_name(name);
    let window = duration_ns(SECOND);
    let single_policy = |policy: Policy, name, bound| TestedQuota {
        name,
        policies: vec![policy],
        bound,
        new_key_per_epoch: false,
        adjustment: ResponseAdjustment::Unchanged,
    };
    // A bound of `n` admissions: the first one is not counted by `burst`.
    let admission_bound = |n: u64| QuotaBound::Gcra { burst: n - 1, limit: 0, window: 1 };
    let long_window =
        |n, name: &str| policy(quota(n).per(LONG_WINDOW), name).on_outage(RateLimitOutage::Refuse);
    let per_epoch = |policies, name, n, adjustment| TestedQuota {
        name,
        policies,
        bound: admission_bound(n),
        new_key_per_epoch: true,
        adjustment,
    };
    vec![
        single_policy(
            policy(quota(40).per(SECOND), "fixed"),
            "fixed",
            QuotaBound::Fixed { limit: 40, window },
        ),
        single_policy(
            policy(quota(40).per(SECOND).sliding(), "sliding"),
            "sliding",
            QuotaBound::Sliding { limit: 40, window },
        ),
        single_policy(
            policy(quota(40).per(SECOND).burst(10), "paced").on_outage(RateLimitOutage::Refuse),
            "paced",
            QuotaBound::Gcra { burst: 10, limit: 40, window },
        ),
        single_policy(
            policy(quota(100).per(SECOND), "leased")
                .quota_lease(10)
                .on_outage(RateLimitOutage::Refuse),
            "leased",
            QuotaBound::Fixed { limit: 100, window },
        ),
        per_epoch(vec![long_window(300, "once")], "once", 300, ResponseAdjustment::Unchanged),
        per_epoch(
            vec![long_window(300, "lent").quota_lease(10)],
            "lent",
            300,
            ResponseAdjustment::Unchanged,
        ),
        per_epoch(
            vec![long_window(150, "wide"), long_window(3, "narrow")],
            "apart",
            150,
            ResponseAdjustment::Unchanged,
        ),
        per_epoch(
            vec![long_window(REFUNDED_LIMIT, "refunded")],
            "refunded",
            REFUNDED_LIMIT,
            ResponseAdjustment::Refunded,
        ),
        per_epoch(
            vec![long_window(UNREACHABLE_LIMIT, "dearer")],
            "dearer",
            UNREACHABLE_LIMIT,
            ResponseAdjustment::Increased,
        ),
    ]
}
