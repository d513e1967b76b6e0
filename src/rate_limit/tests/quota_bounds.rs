//! Quotas of zero, and charges beyond any quota.

use super::*;
use crate::store::{AdjustmentKind, ChargeAdjustment, QuotaRule};

fn quota_for_each_algorithm(quota: Quota) -> [Quota; 4] {
    [quota, quota.sliding(), quota.gcra(), quota.burst(5)]
}

#[tokio::test(start_paused = true)]
async fn zero_quota_refuses_everything_in_each_algorithm() {
    let (store, other) = (Store::memory(), per_minute(5));
    for zero in quota_for_each_algorithm(per_minute(0)) {
        assert!(zero.is_zero() && zero.capacity() == 0);
        let limit = store.rate_limiter(named_policy("none", zero));
        for _ in 0..2 {
            let decision = limit.check("k", 1).await.expect("no error");
            assert_eq!(assert_refused(&decision, &["none"]), 60 * SECOND);
            assert_eq!((decision.remaining(), decision.reset_after()), (0, 60 * SECOND));
            assert_eq!(limit.peek("k", 1).await.expect("no error"), decision);
        }
        assert!(limit.check("k", 0).await.expect("no error").is_admitted(), "it costs nothing");
        assert_eq!(limit.peek("k", 0).await.expect("no error").remaining(), 0);
        // Other policies of the same check are not charged.
        let both = store.rate_limiter(named_policy("some", other)).and(named_policy("none", zero));
        assert_eq!(
            assert_refused(&both.check("k", 1).await.expect("no error"), &["none"]),
            60 * SECOND
        );
        assert_eq!(remaining_in_store(&store, &named_policy("some", other), "k").await, 5);
        limit.reset("k").await.expect("there is nothing to forget");
        tokio::time::advance(61 * SECOND).await;
        assert!(!limit.check("k", 1).await.expect("no error").is_admitted());
    }
    let _ = Policy::new(per_minute(0)).cost(3);
}

#[tokio::test(start_paused = true)]
async fn zero_quota_in_shadow_mode_admits_everything() {
    let limit = Store::memory().rate_limiter(named_policy("none", per_minute(0)).shadow());
    let decision = limit.check("k", 1).await.expect("no error");
    assert!(decision.is_admitted() && decision.policies()[0].is_violated(), "{decision:?}");
}

#[tokio::test(start_paused = true)]
async fn cost_above_the_quota_is_an_error() {
    for quota in quota_for_each_algorithm(per_minute(5)) {
        let limit = Store::memory().rate_limiter(quota);
        for cost in [6, u64::MAX] {
            let error = limit.check("k", cost).await.expect_err("it is never let in");
            assert_eq!(error.kind(), crate::ErrorKind::CostAboveQuota);
        }
        assert!(limit.check("k", 5).await.expect("no error").is_admitted(), "nothing was charged");
    }
}

#[test]
fn charge_adjustment_is_capped_at_ten_quotas() {
    for (quota, most) in [
        (per_minute(5), 50),
        (per_minute(5).sliding(), 50),
        (per_minute(5).gcra(), 50),
        (per_minute(5).burst(2), 50),
        (per_minute(5).burst(7), 70),
        (per_minute(0).burst(7), 0),
        (Quota::requests(u64::MAX).per(SECOND), 10 << 50),
    ] {
        assert_eq!(quota.max_charge(), most, "{quota:?}");
        let rule: QuotaRule = quota.to_rule().expect("it counts");
        for units in [0, 1, most, most + 1, u64::MAX] {
            let settled = ChargeAdjustment::new(
                "p".into(),
                "k".into(),
                rule,
                AdjustmentKind::Charge { units },
            );
            assert_eq!(settled.kind, AdjustmentKind::Charge { units: units.min(most) });
        }
    }
    assert_eq!(Quota::unlimited().max_charge(), u64::MAX);
}
