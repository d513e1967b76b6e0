//! What is kept on a server, and what hands and old clients may do to it.

use std::time::Duration;

use super::{ALGORITHMS, cases::three, item, of};
use crate::{
    Key,
    error::{Error, ErrorKind},
    store::{
        ChargeItem, Penalty,
        rate::Algorithm,
        tests::rig::{LONG, Rig, key},
    },
};

fn kept(kind: &str, subject: &Key) -> String {
    format!("{{{}}}:{kind}:p:{subject}", subject.shard())
}

fn kind(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Fixed => "c",
        Algorithm::Sliding => "cs",
        Algorithm::Gcra => "cg",
    }
}

#[tokio::test]
async fn a_fixed_window_is_a_number_that_people_can_read() {
    let rig = Rig::redis().await;
    let key = key();
    rig.charge(of(vec![item("p", &key, three(Algorithm::Fixed), 1)], 2)).await;
    assert_eq!(rig.server().raw::<String>("GET", &kept("c", &key), &[]).await, "2");
    let left: i64 = rig.server().raw("PTTL", &kept("c", &key), &[]).await;
    assert!((590_000..=600_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_ttl_that_was_lost_refuses_nobody_for_ever() {
    let rig = Rig::redis().await;
    let key = key();
    for algorithm in ALGORITHMS {
        let strict = Some(Penalty { after_refusals: 1, block_for: LONG });
        let asked = ChargeItem { penalty: strict, ..item("p", &key, three(algorithm), 3) };
        let name = kept(kind(algorithm), &key);
        assert!(rig.spend(&asked).await.0);
        assert_eq!(rig.server().raw::<i64>("PERSIST", &name, &[]).await, 1);
        let (_, state) = rig.spend(&asked).await;
        assert!(
            state.blocked_for.is_some() && state.retry_after <= 2 * LONG,
            "{algorithm:?} {state:?}"
        );
        let refusals = name.replacen(":c", ":p", 1);
        assert_eq!(rig.server().raw::<i64>("PERSIST", &refusals, &[]).await, 1);
        let (_, state) = rig.spend(&asked).await;
        assert!(
            state.blocked_for.is_some() && state.retry_after <= 2 * LONG,
            "{algorithm:?} {state:?}"
        );
        rig.pass(2 * LONG).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}");
        let left: i64 = rig.server().raw("PTTL", &name, &[]).await;
        assert!(left > 0, "{algorithm:?}: it lives for {left}");
    }
}

#[tokio::test]
async fn refusals_whose_ttl_was_lost_do_not_count_for_ever() {
    let rig = Rig::redis().await;
    let key = key();
    for algorithm in ALGORITHMS {
        let strict = Some(Penalty { after_refusals: 3, block_for: LONG });
        let asked = ChargeItem { penalty: strict, ..item("p", &key, three(algorithm), 3) };
        let refusals = kept(kind(algorithm), &key).replacen(":c", ":p", 1);
        assert!(rig.spend(&asked).await.0);
        assert!(!rig.spend(&asked).await.0);
        assert_eq!(rig.server().raw::<i64>("PERSIST", &refusals, &[]).await, 1);
        rig.pass(2 * LONG).await;
        assert!(rig.spend(&asked).await.0, "{algorithm:?}");
        let left: i64 = rig.server().raw("PTTL", &refusals, &[]).await;
        assert!(left > 0, "{algorithm:?}: it lives for {left}");
        // One more of its window, and those of the next one.
        assert!(rig.spend(&asked).await.1.blocked_for.is_none());
        rig.pass(2 * LONG).await;
        assert!(rig.spend(&asked).await.0);
        for _ in 0..2 {
            assert!(rig.spend(&asked).await.1.blocked_for.is_none(), "{algorithm:?}");
        }
        assert!(rig.spend(&asked).await.1.blocked_for.is_some(), "{algorithm:?}");
    }
}

#[tokio::test]
async fn what_is_no_counter_fails_alone_and_charges_nobody() {
    let rig = Rig::redis().await;
    let key = key();
    for algorithm in ALGORITHMS {
        for odd in ["by hand", "1.5", ""] {
            let name = kept(kind(algorithm), &key);
            let () = rig.server().raw("SET", &name, &[odd]).await;
            let (good, bad) =
                (item("good", &key, three(algorithm), 1), item("p", &key, three(algorithm), 1));
            // Alone, behind another of the same call, and in a group.
            let together = [
                of(vec![good.clone()], 1),
                of(vec![bad.clone()], 1),
                of(vec![good.clone(), bad.clone()], 1),
                of(vec![good.clone()], 1),
            ];
            let calls = together.map(|call| rig.backend().charge(call));
            let answers = futures_util::future::join_all(calls).await;
            let kinds: Vec<_> = answers.iter().map(|a| a.as_ref().err().map(Error::kind)).collect();
            let odd_one = Some(ErrorKind::Protocol);
            assert_eq!(kinds, [None, odd_one, odd_one, None], "{algorithm:?} {odd:?}");
            assert_eq!(rig.peek(&good).await.remaining, 1, "{algorithm:?} {odd:?}");
            rig.reset(&good, &key).await;
            rig.reset(&bad, &key).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_left_of_quotas_when_they_are_full_again() {
    let rig = Rig::redis().await;
    let key = key();
    let each = || ALGORITHMS.map(|algorithm| item("p", &key, three(algorithm), 1)).to_vec();
    let strict =
        |item| ChargeItem { penalty: Some(Penalty { after_refusals: 1, block_for: LONG }), ..item };
    let charged = rig.charge(of(each().into_iter().map(strict).collect(), 5)).await;
    assert_eq!(charged.admitted, 3);
    let full = charged.snapshots.iter().map(|state| state.full_after.max(state.retry_after)).max();
    rig.advance(full.unwrap() + Duration::from_millis(1)).await;
    let left = rig.server().names().await;
    assert_eq!(left, ["{0}:meta"], "the key of the layout alone");
}
