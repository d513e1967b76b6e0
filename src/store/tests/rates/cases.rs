//! What each algorithm does, on every store.

use std::time::Duration;

use super::{ALGORITHMS, SECOND, fixed, gcra, item, of, sliding};
use crate::store::{
    ChargeItem, Penalty, QuotaRule, QuotaSnapshot,
    rate::{Algorithm, MAX_UNITS},
    tests::{
        on_every_store,
        rig::{LONG, Rig, key, neighbours},
    },
};

on_every_store!(
    a_sliding_window_gives_back_bit_by_bit,
    gcra_admits_a_burst_and_then_one_by_one,
    a_cost_beyond_the_quota_is_never_let_in,
    who_waits_as_long_as_told_gets_in,
    refusals_are_punished_and_the_punishment_ends,
    a_reset_forgets_all,
    a_group_of_all_kinds_is_charged_all_or_none,
);

/// What every algorithm has: three at once.
pub(super) fn three(algorithm: Algorithm) -> QuotaRule {
    match algorithm {
        Algorithm::Fixed => fixed(3, 600),
        Algorithm::Sliding => sliding(3, 600),
        Algorithm::Gcra => gcra(1, 200, 3),
    }
}

/// A little less and a little more than was told: real time passes too on some stores.
fn about(time: Duration, told: Duration) {
    let slow = Duration::from_secs(5);
    assert!(told <= time && told + slow >= time, "{told:?}, expected {time:?}");
}

async fn a_sliding_window_gives_back_bit_by_bit(rig: &Rig) {
    let (key, rule) = (key(), sliding(4, 1000));
    let asked = item("p", &key, rule, 1);
    assert_eq!(rig.charge(of(vec![asked.clone()], 5)).await.admitted, 4);
    rig.advance(1000 * SECOND).await;
    let state = rig.peek(&asked).await;
    assert_eq!(state.remaining, 0, "all of it is still within reach");
    about(250 * SECOND, state.retry_after);
    about(250 * SECOND, state.reset_after);
    for left in [1, 0] {
        rig.advance(255 * SECOND).await;
        let (admitted, state) = rig.spend(&asked).await;
        assert_eq!((admitted, state.remaining), (true, 0), "{left}");
        assert!(!rig.spend(&asked).await.0);
    }
    rig.advance(2000 * SECOND).await;
    assert_eq!(rig.peek(&asked).await.remaining, 4);
}

async fn gcra_admits_a_burst_and_then_one_by_one(rig: &Rig) {
    let (key, rule) = (key(), gcra(1, 100, 3));
    let asked = item("p", &key, rule, 1);
    for left in (0..3).rev() {
        let (admitted, state) = rig.spend(&asked).await;
        assert_eq!((admitted, state.remaining), (true, left));
        about(100 * SECOND * (3 - u32::try_from(left).unwrap()), state.full_after);
    }
    let (admitted, state) = rig.spend(&asked).await;
    assert!(!admitted);
    about(100 * SECOND, state.retry_after);
    about(100 * SECOND, state.reset_after);
    for _ in 0..3 {
        rig.advance(100 * SECOND).await;
        assert!(rig.spend(&asked).await.0);
        assert!(!rig.spend(&asked).await.0);
    }
    rig.advance(1000 * SECOND).await;
    let state = rig.peek(&asked).await;
    assert_eq!(
        (state.remaining, state.reset_after, state.full_after),
        (3, Duration::ZERO, Duration::ZERO)
    );
}

async fn a_cost_beyond_the_quota_is_never_let_in(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        for cost in [4, MAX_UNITS, u64::MAX] {
            let asked = item("p", &key, three(algorithm), cost);
            let (admitted, state) = rig.spend(&asked).await;
            assert_eq!(
                (admitted, state.retry_after),
                (false, Duration::MAX),
                "{algorithm:?} {cost}"
            );
            assert_eq!(state.remaining, 3);
        }
    }
}

async fn who_waits_as_long_as_told_gets_in(rig: &Rig) {
    let key = key();
    let rules = [fixed(3, 7), sliding(5, 7), gcra(3, 7, 2), gcra(7, 3, 5), sliding(1, 1)];
    for (n, rule) in rules.into_iter().enumerate() {
        let asked = |cost| item(&n.to_string(), &key, rule, cost);
        for turn in 0..8 {
            while rig.spend(&asked(1)).await.0 {}
            let wanted = asked(1 + turn % 2);
            let (admitted, state) = rig.spend(&wanted).await;
            if admitted || state.retry_after == Duration::MAX {
                continue;
            }
            rig.advance(state.retry_after).await;
            assert!(rig.spend(&wanted).await.0, "{rule:?}, after {:?}", state.retry_after);
        }
    }
}

fn strict(item: ChargeItem, after: u32) -> ChargeItem {
    ChargeItem { penalty: Some(Penalty { after_refusals: after, block_for: LONG * 4 }), ..item }
}

async fn refusals_are_punished_and_the_punishment_ends(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = strict(item("p", &key, three(algorithm), 3), 2);
        assert!(rig.spend(&asked).await.0);
        let (admitted, state) = rig.spend(&asked).await;
        assert!(
            !admitted && state.blocked_for.is_none() && state.retry_after <= LONG * 2,
            "{algorithm:?} {state:?}"
        );
        let never = ChargeItem { cost: 4, ..asked.clone() };
        assert!(rig.spend(&never).await.1.blocked_for.is_none(), "it could not have been let in");
        assert!(rig.peek(&asked).await.blocked_for.is_none());
        let (admitted, state) = rig.spend(&asked).await;
        assert!(!admitted && state.blocked_for.is_some(), "{algorithm:?} {state:?}");
        about(LONG * 4, state.retry_after);
        rig.pass(LONG * 2).await;
        // The quota is there again; still nobody gets in, and the block gets no longer.
        for cost in [1, 0] {
            let (admitted, state) = rig.spend(&ChargeItem { cost, ..asked.clone() }).await;
            assert!(
                !admitted && state.blocked_for.is_some() && state.retry_after <= LONG * 2,
                "{algorithm:?} {state:?}"
            );
            assert_eq!(state.remaining, 3);
        }
        rig.pass(LONG * 2).await;
        let (admitted, state) = rig.spend(&asked).await;
        assert!(admitted && state.blocked_for.is_none(), "{algorithm:?} {state:?}");
    }
}

async fn a_reset_forgets_all(rig: &Rig) {
    let key = key();
    for algorithm in ALGORITHMS {
        let asked = strict(item("p", &key, three(algorithm), 3), 1);
        assert!(rig.spend(&asked).await.0);
        assert!(rig.spend(&asked).await.1.blocked_for.is_some());
        rig.reset(&asked, &key).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}");
    }
}

async fn a_group_of_all_kinds_is_charged_all_or_none(rig: &Rig) {
    let [key, other] = neighbours::<2>();
    let group = |cost: u64| {
        let of_each = ALGORITHMS.map(|algorithm| item("p", &key, three(algorithm), cost));
        // The last one has less.
        of_each.into_iter().chain([item("q", &other, fixed(2, 600), 1)]).collect::<Vec<_>>()
    };
    let remaining =
        |states: &[QuotaSnapshot]| states.iter().map(|state| state.remaining).collect::<Vec<_>>();
    let first = rig.charge(of(group(1), 1)).await;
    assert_eq!((first.admitted, remaining(&first.snapshots)), (1, vec![2, 2, 2, 1]));
    let refused = rig.charge(of(group(3), 1)).await;
    assert_eq!((refused.admitted, remaining(&refused.snapshots)), (0, vec![2, 2, 2, 1]));
    let blames: Vec<_> =
        refused.snapshots.iter().map(|state| state.retry_after.is_zero()).collect();
    assert_eq!(blames, [false, false, false, true], "each tells whether it is to blame");
    let part = rig.charge(of(group(1), 3)).await;
    assert_eq!((part.admitted, remaining(&part.snapshots)), (1, vec![1, 1, 1, 0]));
    let refused = rig.charge(of(group(1), 1)).await;
    let blames: Vec<_> =
        refused.snapshots.iter().map(|state| state.retry_after.is_zero()).collect();
    assert_eq!(blames, [true, true, true, false]);
}
