//! What is kept on a server, and what hands and old clients may do to it.

use std::time::Duration;

use super::{ALGORITHMS, charge_item, counting_algorithms::quota_of_three, repeated_charge};
use crate::{
    Key,
    error::{Error, ErrorKind},
    store::{
        ChargeItem, Penalty,
        rate::Algorithm,
        tests::store_harness::{LONG_TIME, StoreHarness, test_key},
    },
};

fn counter_key(kind: &str, subject: &Key) -> String {
    format!("{{{}}}:{kind}:p:{subject}", subject.shard())
}

fn key_kind(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Fixed => "c",
        Algorithm::Sliding => "cs",
        Algorithm::Gcra => "cg",
    }
}

#[tokio::test]
async fn fixed_window_is_stored_as_plain_number() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    rig.charge(repeated_charge(
        vec![charge_item("p", &key, quota_of_three(Algorithm::Fixed), 1)],
        2,
    ))
    .await;
    assert_eq!(rig.server().key_command::<String>("GET", &counter_key("c", &key), &[]).await, "2");
    let left: i64 = rig.server().key_command("PTTL", &counter_key("c", &key), &[]).await;
    assert!((590_000..=600_000).contains(&left), "{left}");
}

#[tokio::test]
async fn counter_without_ttl_expires_again() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        let strict = Some(Penalty { after_refusals: 1, block_for: LONG_TIME });
        let asked =
            ChargeItem { penalty: strict, ..charge_item("p", &key, quota_of_three(algorithm), 3) };
        let name = counter_key(key_kind(algorithm), &key);
        assert!(rig.charge_once(&asked).await.0);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &name, &[]).await, 1);
        let (_, state) = rig.charge_once(&asked).await;
        assert!(
            state.blocked_for.is_some() && state.retry_after <= 2 * LONG_TIME,
            "{algorithm:?} {state:?}"
        );
        let refusals = name.replacen(":c", ":p", 1);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &refusals, &[]).await, 1);
        let (_, state) = rig.charge_once(&asked).await;
        assert!(
            state.blocked_for.is_some() && state.retry_after <= 2 * LONG_TIME,
            "{algorithm:?} {state:?}"
        );
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&asked).await.0, "{algorithm:?}");
        let left: i64 = rig.server().key_command("PTTL", &name, &[]).await;
        assert!(left > 0, "{algorithm:?}: it lives for {left}");
    }
}

#[tokio::test]
async fn refusal_count_without_ttl_expires_again() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        let strict = Some(Penalty { after_refusals: 3, block_for: LONG_TIME });
        let asked =
            ChargeItem { penalty: strict, ..charge_item("p", &key, quota_of_three(algorithm), 3) };
        let refusals = counter_key(key_kind(algorithm), &key).replacen(":c", ":p", 1);
        assert!(rig.charge_once(&asked).await.0);
        assert!(!rig.charge_once(&asked).await.0);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &refusals, &[]).await, 1);
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&asked).await.0, "{algorithm:?}");
        let left: i64 = rig.server().key_command("PTTL", &refusals, &[]).await;
        assert!(left > 0, "{algorithm:?}: it lives for {left}");
        // One more of its window, and those of the next one.
        assert!(rig.charge_once(&asked).await.1.blocked_for.is_none());
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&asked).await.0);
        for _ in 0..2 {
            assert!(rig.charge_once(&asked).await.1.blocked_for.is_none(), "{algorithm:?}");
        }
        assert!(rig.charge_once(&asked).await.1.blocked_for.is_some(), "{algorithm:?}");
    }
}

#[tokio::test]
async fn invalid_counter_fails_only_its_own_calls() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        for odd in ["by hand", "1.5", ""] {
            let name = counter_key(key_kind(algorithm), &key);
            let () = rig.server().key_command("SET", &name, &[odd]).await;
            let (good, bad) = (
                charge_item("good", &key, quota_of_three(algorithm), 1),
                charge_item("p", &key, quota_of_three(algorithm), 1),
            );
            // Alone, behind another of the same call, and in a group.
            let together = [
                repeated_charge(vec![good.clone()], 1),
                repeated_charge(vec![bad.clone()], 1),
                repeated_charge(vec![good.clone(), bad.clone()], 1),
                repeated_charge(vec![good.clone()], 1),
            ];
            let calls = together.map(|call| rig.backend().charge(call));
            let answers = futures_util::future::join_all(calls).await;
            let kinds: Vec<_> = answers.iter().map(|a| a.as_ref().err().map(Error::kind)).collect();
            let odd_one = Some(ErrorKind::Protocol);
            assert_eq!(kinds, [None, odd_one, odd_one, None], "{algorithm:?} {odd:?}");
            assert_eq!(rig.read_quota(&good).await.remaining, 1, "{algorithm:?} {odd:?}");
            rig.reset_counter(&good, &key).await;
            rig.reset_counter(&bad, &key).await;
        }
    }
}

#[tokio::test]
async fn refilled_quotas_leave_no_keys() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let each = || {
        ALGORITHMS.map(|algorithm| charge_item("p", &key, quota_of_three(algorithm), 1)).to_vec()
    };
    let strict = |item| ChargeItem {
        penalty: Some(Penalty { after_refusals: 1, block_for: LONG_TIME }),
        ..item
    };
    let charged = rig.charge(repeated_charge(each().into_iter().map(strict).collect(), 5)).await;
    assert_eq!(charged.admitted, 3);
    let full = charged.snapshots.iter().map(|state| state.full_after.max(state.retry_after)).max();
    rig.advance(full.unwrap() + Duration::from_millis(1)).await;
    let left = rig.server().key_names().await;
    assert_eq!(left, ["{0}:meta"], "the key of the layout alone");
}
