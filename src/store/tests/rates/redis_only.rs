//! Counters on Redis: their keys, damaged values, and old clients.

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
    let ttl: i64 = rig.server().key_command("PTTL", &counter_key("c", &key), &[]).await;
    assert!((590_000..=600_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn counter_without_ttl_expires_again() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        let penalty = Some(Penalty { after_refusals: 1, block_for: LONG_TIME });
        let item = ChargeItem { penalty, ..charge_item("p", &key, quota_of_three(algorithm), 3) };
        let name = counter_key(key_kind(algorithm), &key);
        assert!(rig.charge_once(&item).await.0);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &name, &[]).await, 1);
        let (_, snapshot) = rig.charge_once(&item).await;
        assert!(
            snapshot.blocked_for.is_some() && snapshot.retry_after <= 2 * LONG_TIME,
            "{algorithm:?} {snapshot:?}"
        );
        let refusals = name.replacen(":c", ":p", 1);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &refusals, &[]).await, 1);
        let (_, snapshot) = rig.charge_once(&item).await;
        assert!(
            snapshot.blocked_for.is_some() && snapshot.retry_after <= 2 * LONG_TIME,
            "{algorithm:?} {snapshot:?}"
        );
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}");
        let ttl: i64 = rig.server().key_command("PTTL", &name, &[]).await;
        assert!(ttl > 0, "{algorithm:?}: it lives for {ttl}");
    }
}

#[tokio::test]
async fn refusal_count_without_ttl_expires_again() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        let penalty = Some(Penalty { after_refusals: 3, block_for: LONG_TIME });
        let item = ChargeItem { penalty, ..charge_item("p", &key, quota_of_three(algorithm), 3) };
        let refusals = counter_key(key_kind(algorithm), &key).replacen(":c", ":p", 1);
        assert!(rig.charge_once(&item).await.0);
        assert!(!rig.charge_once(&item).await.0);
        assert_eq!(rig.server().key_command::<i64>("PERSIST", &refusals, &[]).await, 1);
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&item).await.0, "{algorithm:?}");
        let ttl: i64 = rig.server().key_command("PTTL", &refusals, &[]).await;
        assert!(ttl > 0, "{algorithm:?}: it lives for {ttl}");
        // One more refusal in this window; those of the next window count anew.
        assert!(rig.charge_once(&item).await.1.blocked_for.is_none());
        rig.advance_past(2 * LONG_TIME).await;
        assert!(rig.charge_once(&item).await.0);
        for _ in 0..2 {
            assert!(rig.charge_once(&item).await.1.blocked_for.is_none(), "{algorithm:?}");
        }
        assert!(rig.charge_once(&item).await.1.blocked_for.is_some(), "{algorithm:?}");
    }
}

#[tokio::test]
async fn invalid_counter_fails_only_its_own_calls() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    for algorithm in ALGORITHMS {
        for value in ["by hand", "1.5", ""] {
            let name = counter_key(key_kind(algorithm), &key);
            let () = rig.server().key_command("SET", &name, &[value]).await;
            let (good, bad) = (
                charge_item("good", &key, quota_of_three(algorithm), 1),
                charge_item("p", &key, quota_of_three(algorithm), 1),
            );
            // The damaged counter alone, behind another call in one batch, and in a group.
            let batch = [
                repeated_charge(vec![good.clone()], 1),
                repeated_charge(vec![bad.clone()], 1),
                repeated_charge(vec![good.clone(), bad.clone()], 1),
                repeated_charge(vec![good.clone()], 1),
            ];
            let calls = batch.map(|call| rig.backend().charge(call));
            let replies = futures_util::future::join_all(calls).await;
            let kinds: Vec<_> = replies.iter().map(|a| a.as_ref().err().map(Error::kind)).collect();
            let protocol_error = Some(ErrorKind::Protocol);
            assert_eq!(
                kinds,
                [None, protocol_error, protocol_error, None],
                "{algorithm:?} {value:?}"
            );
            assert_eq!(rig.read_quota(&good).await.remaining, 1, "{algorithm:?} {value:?}");
            rig.reset_counter(&good, &key).await;
            rig.reset_counter(&bad, &key).await;
        }
    }
}

#[tokio::test]
async fn refilled_quotas_leave_no_keys() {
    let rig = StoreHarness::redis().await;
    let key = test_key();
    let items = || {
        ALGORITHMS.map(|algorithm| charge_item("p", &key, quota_of_three(algorithm), 1)).to_vec()
    };
    let with_strict_penalty = |item| ChargeItem {
        penalty: Some(Penalty { after_refusals: 1, block_for: LONG_TIME }),
        ..item
    };
    let charged = rig
        .charge(repeated_charge(items().into_iter().map(with_strict_penalty).collect(), 5))
        .await;
    assert_eq!(charged.admitted, 3);
    let refill_time = charged
        .snapshots
        .iter()
        .map(|snapshot| snapshot.full_after.max(snapshot.retry_after))
        .max();
    rig.advance(refill_time.unwrap() + Duration::from_millis(1)).await;
    let leftover = rig.server().key_names().await;
    assert_eq!(leftover, ["{0}:meta"], "the key of the layout alone");
}
