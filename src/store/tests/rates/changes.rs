//! What becomes of what was spent: refunds, later charges, other quotas, other clocks; on every store.

use std::time::Duration;

use super::{ALGORITHMS, SECOND, cases::three, fixed, gcra, item, sliding};
use crate::store::{
    ChargeItem, QuotaRule,
    rate::{AdjustmentKind, Algorithm},
    tests::{
        on_every_store,
        rig::{LONG, Rig, key},
    },
};

on_every_store!(
    a_refund_never_moves_a_window,
    a_refund_lapses_with_its_window,
    a_refund_of_a_debt_that_is_paid_off_is_nothing,
    a_refund_of_what_was_forgotten_is_nothing,
    a_refund_from_before_the_clock_was_put_back_is_nothing,
    a_refund_from_before_another_rate_is_nothing,
    a_later_charge_counts_beyond_the_limit,
    a_clock_that_is_put_back_costs_a_window_at_most,
    a_clock_that_jumps_on_ends_windows,
);

async fn a_refund_never_moves_a_window(rig: &Rig) {
    let (key, rule) = (key(), fixed(3, 600));
    let asked = item("p", &key, rule, 3);
    let (_, first) = rig.spend(&asked).await;
    rig.advance(LONG / 2).await;
    let after = rig.refund(&asked, 3, first.charged_window).await;
    assert_eq!(after.remaining, 3);
    assert!(after.reset_after <= LONG / 2, "it began anew: {after:?}");
    let (admitted, again) = rig.spend(&asked).await;
    assert!(admitted && again.reset_after <= LONG / 2, "it began anew: {again:?}");
    rig.advance(LONG / 2).await;
    assert!(rig.spend(&asked).await.0);
}

async fn a_refund_lapses_with_its_window(rig: &Rig) {
    let key = key();
    for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
        let asked = item("p", &key, three(algorithm), 3);
        let (_, first) = rig.spend(&asked).await;
        rig.pass(LONG * 2).await;
        assert!(rig.spend(&asked).await.0);
        let after = rig.refund(&asked, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}: it was of another window");
    }
}

async fn a_refund_of_a_debt_that_is_paid_off_is_nothing(rig: &Rig) {
    let (key, rule) = (key(), gcra(1, 100, 4));
    let asked = |cost| item("p", &key, rule, cost);
    let (_, first) = rig.spend(&asked(4)).await;
    rig.advance(300 * SECOND).await;
    assert!(rig.spend(&asked(3)).await.0);
    // Three of the first four are paid off.
    let after = rig.refund(&asked(0), 4, first.charged_window).await;
    assert!(after.remaining <= 1, "{after:?}");
    rig.advance(100 * SECOND).await;
    let before = rig.peek(&asked(0)).await.remaining;
    assert_eq!(rig.refund(&asked(0), 4, first.charged_window).await.remaining, before);
}

/// By a reset, or since the server has lost it.
async fn a_refund_of_what_was_forgotten_is_nothing(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = item("p", &key, three(algorithm), 3);
        let (_, first) = rig.spend(&asked).await;
        rig.reset(&asked, &key).await;
        // Windows are known by the time, debts by themselves.
        if algorithm != Algorithm::Gcra {
            rig.advance(SECOND).await;
        }
        let (admitted, second) = rig.spend(&asked).await;
        assert!(admitted, "{algorithm:?}");
        let after = rig.refund(&asked, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}: somebody else has spent it");
        let after = rig.refund(&asked, 3, second.charged_window).await;
        assert_eq!(after.remaining, 3, "{algorithm:?}");
    }
}

async fn a_refund_from_before_the_clock_was_put_back_is_nothing(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = |cost| item("p", &key, six(algorithm), cost);
        let (_, first) = rig.spend(&asked(4)).await;
        rig.advance(300 * SECOND).await;
        // Of a debt, one of the first four is left.
        assert!(rig.spend(&asked(1)).await.0, "{algorithm:?}");
        rig.put_back(LONG * 100).await;
        let before = rig.peek(&asked(0)).await.remaining;
        let after = rig.refund(&asked(0), 4, first.charged_window).await;
        assert_eq!(after.remaining, before, "{algorithm:?}: it was of another clock");
        // What is charged by the clock as it is now is given back as ever.
        let (admitted, last) = rig.spend(&asked(1)).await;
        assert!(admitted, "{algorithm:?}");
        let after = rig.refund(&asked(0), 1, last.charged_window).await;
        assert_eq!(after.remaining, before, "{algorithm:?}");
    }
}

/// It is not known how much of it is paid off at the new one.
async fn a_refund_from_before_another_rate_is_nothing(rig: &Rig) {
    let (key, slow, quick) = (key(), gcra(1, 100, 4), gcra(1, 10, 4));
    let asked = |rule, cost| item("p", &key, rule, cost);
    for by in [quick, slow] {
        let (_, first) = rig.spend(&asked(slow, 4)).await;
        assert_eq!(rig.peek(&asked(quick, 0)).await.remaining, 0);
        rig.advance(30 * SECOND).await;
        assert!(rig.spend(&asked(quick, 3)).await.0);
        let _ = rig.refund(&asked(by, 0), 4, first.charged_window).await;
        assert_eq!(rig.peek(&asked(quick, 0)).await.remaining, 0, "{by:?}");
        rig.advance(LONG).await;
    }
}

async fn a_later_charge_counts_beyond_the_limit(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = item("p", &key, three(algorithm), 1);
        let after = rig.put_right(&asked, AdjustmentKind::Charge { units: 5 }).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
        let (admitted, state) = rig.spend(&asked).await;
        assert!(
            !admitted && state.retry_after > Duration::ZERO && state.retry_after <= 2 * LONG,
            "{state:?}"
        );
        rig.advance(state.retry_after).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}");
    }
}

/// As `three`, but six in the same time.
fn six(algorithm: Algorithm) -> QuotaRule {
    match algorithm {
        Algorithm::Fixed => fixed(6, 600),
        Algorithm::Sliding => sliding(6, 600),
        Algorithm::Gcra => gcra(1, 100, 6),
    }
}

async fn a_clock_that_is_put_back_costs_a_window_at_most(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = item("p", &key, three(algorithm), 3);
        assert!(rig.spend(&asked).await.0);
        rig.put_back(LONG * 100).await;
        let (admitted, state) = rig.spend(&asked).await;
        assert!(!admitted && state.retry_after <= 2 * LONG, "{algorithm:?} {state:?}");
        rig.advance(state.retry_after).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}: what was told is not so");
    }
}

async fn a_clock_that_jumps_on_ends_windows(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = item("p", &key, three(algorithm), 3);
        let (_, first) = rig.spend(&asked).await;
        rig.advance(LONG * 1_000_000).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}");
        let again = ChargeItem { cost: 1, ..asked };
        assert!(!rig.spend(&again).await.0, "{algorithm:?}: no more than the quota");
        // What was charged before the jump is over, and is not taken from what was charged since.
        let after = rig.refund(&again, 3, first.charged_window).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
        let after = rig.put_right(&again, AdjustmentKind::Charge { units: 1 }).await;
        assert_eq!(after.remaining, 0, "{algorithm:?}");
    }
}
