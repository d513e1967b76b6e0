//! Batched charges, on a real server and through a proxy that loses replies.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::future::join_all;
use proptest::prelude::*;

use super::{
    SECOND, lossy_proxy::LossyProxy, server_process::ServerProcess, wait_until, wait_until_usable,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{
        AdjustmentKind, ChargeAdjustment, ChargeCommand, ChargeItem, ChargeOutcome, Penalty,
        QuotaRule, SettleChargeCommand, Store,
        key_names::{CounterKeyKind, KeyNames},
    },
};

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn charge_item(policy: &str, subject: &Key, limit: u64, cost: u64) -> ChargeItem {
    let rule = QuotaRule::Fixed { limit, window: HOUR };
    ChargeItem { policy: policy.into(), subject: subject.clone(), rule, cost, penalty: None }
}

fn single_charge(subject: &Key, limit: u64) -> ChargeCommand {
    ChargeCommand {
        tag: subject.clone(),
        items: [charge_item("p", subject, limit, 1)].into(),
        repetitions: 1,
    }
}

async fn send_charge(store: &Store, call: ChargeCommand) -> Result<ChargeOutcome, Error> {
    store.backend().charge(call).await
}

pub(super) fn settle_command(item: &ChargeItem, kind: AdjustmentKind) -> SettleChargeCommand {
    let ChargeItem { policy, subject, rule, .. } = item.clone();
    let tag = subject.clone();
    SettleChargeCommand { tag, items: vec![ChargeAdjustment { policy, subject, rule, kind }] }
}

async fn remaining_units(store: &Store, key: &Key, limit: u64) -> u64 {
    let query = ChargeCommand { repetitions: 0, ..single_charge(key, limit) };
    send_charge(store, query).await.unwrap().snapshots[0].remaining
}

#[tokio::test]
async fn batched_charges_of_one_key_return_ordered_results() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("hot");
    send_charge(&store, single_charge(&key, 100)).await.unwrap();
    let before = server.count_script_calls().await;
    let charged = join_all((0..120).map(|_| send_charge(&store, single_charge(&key, 100)))).await;
    let calls = server.count_script_calls().await - before;
    // The number of calls depends on the round trip time: on a slow link, several batches are in
    // flight.
    assert!(calls <= 30, "{calls} calls");
    // Results are in the order of the calls.
    for (n, charged) in charged.into_iter().enumerate() {
        let ChargeOutcome { admitted, snapshots: states } = charged.unwrap();
        let (state, n) = (&states[0], u64::try_from(n).unwrap());
        assert_eq!(
            (u64::from(admitted), state.remaining),
            (u64::from(n < 99), 98_u64.saturating_sub(n))
        );
        assert_eq!(state.retry_after.is_zero(), n < 98);
    }
}

/// Holds also if one value of the reply covers many charges and some between them fail. Lua parses
/// each of these texts as a number.
#[tokio::test]
async fn corrupt_counter_fails_only_its_own_charge() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(10 * SECOND).connections_per_node(1);
    let store = builder.connect().await.unwrap();
    let kind = CounterKeyKind::spent_units(quota_rule(0).algorithm());
    let texts = ["150.5", "99999999999999999999", "-0.5", "1e300", "inf"];
    let write_command =
        |corrupt_value: &str| ["RPUSH", "SET"][usize::from(texts.contains(&corrupt_value))];
    for corrupt_value in ["x"].iter().chain(&texts) {
        let keys: Vec<_> = (0..60).map(|n| Key::custom(&format!("{corrupt_value}{n}"))).collect();
        for n in [7, 8, 40] {
            let name = KeyNames::new("test");
            let (key, shard) = (&keys[n], keys[n].shard());
            let name = name.counter_parts(key, shard, kind, ("p", key)).concat();
            server.command(&[write_command(corrupt_value), &name, corrupt_value]).await;
        }
        let limit = |n: usize| if n % 10 == 3 { 5 } else { 2 };
        for spent in 1..=3 {
            let all = keys
                .iter()
                .enumerate()
                .map(|(n, key)| send_charge(&store, single_charge(key, limit(n))));
            for (n, charged) in join_all(all).await.into_iter().enumerate() {
                let expected = (u32::from(spent <= limit(n)), limit(n).saturating_sub(spent));
                let outcome =
                    charged.map(|charged| (charged.admitted, charged.snapshots[0].remaining));
                match outcome {
                    Ok(outcome) if matches!(n, 7 | 8 | 40) => {
                        assert_eq!(outcome, (0, 0), "{corrupt_value} {n}");
                    }
                    Ok(outcome) => assert_eq!(outcome, expected, "{corrupt_value} {n}"),
                    Err(error) => {
                        let is_corrupt = matches!(n, 7 | 8 | 40);
                        assert_eq!(
                            (is_corrupt, error.kind()),
                            (true, ErrorKind::Protocol),
                            "{corrupt_value} {n}"
                        );
                    }
                }
            }
        }
        let query = ChargeCommand { repetitions: 0, ..single_charge(&keys[7], 5) };
        let outcomes =
            join_all([send_charge(&store, query), send_charge(&store, single_charge(&keys[0], 5))])
                .await;
        assert_eq!(outcomes[1].as_ref().unwrap().snapshots[0].remaining, 2, "{corrupt_value}");
    }
}

/// Index of the tag; policy, subject, rule and cost of each item; repetitions; whether refusals are
/// penalized; units of the first item that are refunded afterwards, which ends the batch.
type GeneratedCharge = (usize, Vec<(u8, usize, u8, u64)>, u32, bool, Option<u64>);

/// Returns a quota rule. The GCRA one refills nothing during a test.
fn quota_rule(kind: u8) -> QuotaRule {
    match kind {
        0 => QuotaRule::Fixed { limit: 5, window: HOUR },
        1 => QuotaRule::Sliding { limit: 4, window: HOUR },
        _ => QuotaRule::Gcra { limit: 1, window: HOUR, burst: 6 },
    }
}

fn charge_sequences() -> impl Strategy<Value = Vec<GeneratedCharge>> {
    let index = || prop_oneof![3 => Just(0_usize), 1 => 1..3_usize];
    let item = (0..2_u8, index(), 0..3_u8, prop_oneof![3 => Just(1_u64), 1 => 0..3_u64]);
    let items = prop_oneof![
        3 => item.clone().prop_map(|item| vec![item]),
        1 => prop::collection::vec(item, 1..4),
    ];
    let repetitions = prop_oneof![4 => Just(1_u32), 1 => 0..4_u32];
    let refund = prop::option::weighted(0.1, 1..3_u64);
    prop::collection::vec((index(), items, repetitions, prop::bool::weighted(0.2), refund), 1..60)
}

fn charge_command(generated: &GeneratedCharge, keys: &[Key; 3]) -> ChargeCommand {
    let (tag, items, repetitions, is_penalized, _) = generated;
    let penalty = is_penalized.then_some(Penalty { after_refusals: 2, block_for: HOUR });
    let item = |(policy, subject, kind, cost): &(u8, usize, u8, u64)| ChargeItem {
        rule: quota_rule(*kind),
        penalty,
        ..charge_item(&policy.to_string(), &keys[*subject], 0, *cost)
    };
    ChargeCommand {
        tag: keys[*tag].clone(),
        items: items.iter().map(item).collect(),
        repetitions: *repetitions,
    }
}

fn assert_same_outcome(batched: &ChargeOutcome, sequential: &ChargeOutcome) {
    assert_eq!(batched.admitted, sequential.admitted);
    let exact = |charged: &ChargeOutcome| {
        let exact = |s: &crate::store::QuotaSnapshot| {
            (s.remaining, s.retry_after.is_zero(), s.full_after.is_zero(), s.blocked_for.is_some())
        };
        charged.snapshots.iter().map(exact).collect::<Vec<_>>()
    };
    assert_eq!(exact(batched), exact(sequential));
    for (a, b) in batched.snapshots.iter().zip(&sequential.snapshots) {
        for (a, b) in [
            (a.reset_after, b.reset_after),
            (a.retry_after, b.retry_after),
            (a.full_after, b.full_after),
        ] {
            assert!(a.abs_diff(b) < 60 * SECOND, "{a:?} {b:?}");
        }
    }
}

#[test]
fn batched_and_sequential_charges_give_same_results() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(ServerProcess::start());
    let url = |ns: uuid::Uuid| format!("redis://127.0.0.1:{}/?ns={}", server.port(), ns.simple());
    // One lane: calls are sent in the order in which they were made.
    let store = async || {
        let builder = Store::builder(&url(uuid::Uuid::new_v4())).call_timeout(10 * SECOND);
        builder.connections_per_node(1).connect().await.unwrap()
    };
    let has_case_count = std::env::var_os("PROPTEST_CASES").is_some();
    let default_config = ProptestConfig::default();
    let config = if has_case_count {
        default_config
    } else {
        ProptestConfig { cases: 100, ..default_config }
    };
    proptest!(config, |(charges in charge_sequences())| {
        let keys = ["a", "b", "c"].map(Key::custom);
        runtime.block_on(async {
            let (one, other) = (store().await, store().await);
            // Charges up to the next refund form one batch.
            for batch in charges.split_inclusive(|charge| charge.4.is_some()) {
                let batched = join_all(batch.iter().map(|a| send_charge(&one, charge_command(a, &keys)))).await;
                for (generated, batched) in batch.iter().zip(batched) {
                    let (batched, command) = (batched.unwrap(), charge_command(generated, &keys));
                    let sequential = send_charge(&other, command.clone()).await.unwrap();
                    assert_same_outcome(&batched, &sequential);
                    let Some(units) = generated.4.filter(|_| sequential.admitted > 0) else { continue };
                    let refund = async |store: &Store, charged: &ChargeOutcome| {
                        let kind = AdjustmentKind::Refund { units, window: charged.snapshots[0].charged_window };
                        let call = SettleChargeCommand { tag: command.tag.clone(), ..settle_command(&command.items[0], kind) };
                        store.backend().settle_charge(call).await.unwrap().remove(0).remaining
                    };
                    assert_eq!(refund(&one, &batched).await, refund(&other, &sequential).await);
                }
            }
        });
    });
}

#[tokio::test]
async fn charge_after_script_flush_is_made_once() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("k");
    for n in 1..=5_u64 {
        server.command(&["SCRIPT", "FLUSH"]).await;
        let charged =
            join_all((0..10).map(|_| send_charge(&store, single_charge(&key, 1000)))).await;
        assert!(charged.into_iter().all(|charged| charged.unwrap().admitted == 1));
        assert_eq!(remaining_units(&store, &key, 1000).await, 1000 - 10 * n);
    }
}

/// A charge whose reply was lost is in doubt. It is never made twice.
#[tokio::test]
async fn charge_with_lost_reply_is_made_at_most_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, direct_store) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let key = Key::custom("k");
    let (mut acknowledged, mut in_doubt) = (0, 0);
    for cuts in [0, 1, 2, 1, 3, 1] {
        proxy.lose_next_replies(cuts);
        for charged in
            join_all((0..20).map(|_| send_charge(&store, single_charge(&key, 1000)))).await
        {
            match charged {
                Ok(charged) => acknowledged += u64::from(charged.admitted),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable));
                    in_doubt += u64::from(error.may_have_run());
                }
            }
        }
        proxy.lose_next_replies(0);
        wait_until_usable(&store).await;
        let spent = 1000 - remaining_units(&direct_store, &key, 1000).await;
        assert!(
            acknowledged <= spent && spent <= acknowledged + in_doubt,
            "{acknowledged} + {in_doubt}, {spent} spent"
        );
    }
    println!("figure: fewest replies lost {in_doubt}");
    assert!(in_doubt > 0, "no reply was lost");
}

/// A refund is not made twice either: that would admit further requests.
#[tokio::test]
async fn refund_with_lost_reply_is_made_at_most_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, direct_store) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut lost_replies = 0;
    for (n, kind) in (0..9).zip([0, 1, 2].into_iter().cycle()) {
        let key = Key::custom(&n.to_string());
        let item = ChargeItem { rule: quota_rule(kind), ..charge_item("p", &key, 0, 1) };
        let call = ChargeCommand { tag: key.clone(), items: [item.clone()].into(), repetitions: 3 };
        let charged = send_charge(&store, call.clone()).await.unwrap();
        assert_eq!(charged.admitted, 3);
        let query = ChargeCommand { repetitions: 0, ..call };
        let before = charged.snapshots[0].remaining;
        proxy.lose_next_replies(1);
        let refund =
            AdjustmentKind::Refund { units: 1, window: charged.snapshots[0].charged_window };
        let refunded = store.backend().settle_charge(settle_command(&item, refund)).await;
        proxy.lose_next_replies(0);
        wait_until_usable(&store).await;
        lost_replies += usize::from(refunded.is_err());
        let after = send_charge(&direct_store, query).await.unwrap().snapshots[0].remaining;
        assert!((before..=before + 1).contains(&after), "{before} {after} {kind}");
    }
    assert!(lost_replies > 0, "no reply was lost");
}

#[tokio::test]
async fn server_without_data_counts_quota_from_zero() {
    let mut server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    let key = Key::custom("k");
    assert_eq!(
        send_charge(&store, ChargeCommand { repetitions: 9, ..single_charge(&key, 9) })
            .await
            .unwrap()
            .admitted,
        9
    );
    server.kill();
    let kind = send_charge(&store, single_charge(&key, 9)).await.unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::Unavailable | ErrorKind::Timeout), "{kind:?}");
    server.restart().await;
    wait_until_usable(&store).await;
    wait_until("charges to be made again", async || {
        send_charge(&store, ChargeCommand { repetitions: 0, ..single_charge(&key, 9) })
            .await
            .is_ok()
    })
    .await;
    let charged = join_all((0..20).map(|_| send_charge(&store, single_charge(&key, 9)))).await;
    let admitted = charged.into_iter().map(|charged| charged.unwrap().admitted).sum::<u32>();
    println!("figure: let in beyond a quota {}", admitted.saturating_sub(9));
    assert_eq!(admitted, 9);
}

/// Dropped after any number of polls, alone and beside others: the charge is made at most once, and
/// each of the others exactly once.
#[tokio::test]
async fn dropped_charge_does_not_affect_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    for others in [0, 1, 5] {
        for polls in 0..8 {
            let key = Key::custom(&format!("{others}-{polls}"));
            let other_calls: Vec<_> = (0..others)
                .map(|_| {
                    let (store, call) = (store.clone(), single_charge(&key, 100));
                    crate::store::spawn(async move { send_charge(&store, call).await })
                })
                .collect();
            tokio::task::yield_now().await;
            let mut dropped = Box::pin(send_charge(&store, single_charge(&key, 100)));
            for _ in 0..polls {
                let poll = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(charged) = poll {
                    assert_eq!(charged.unwrap().admitted, 1);
                    dropped = Box::pin(send_charge(&store, single_charge(&key, 100)));
                    break;
                }
                tokio::time::sleep(SECOND / 5000).await;
            }
            drop(dropped);
            for call in other_calls {
                assert_eq!(call.await.unwrap().unwrap().admitted, 1);
            }
            let spent = 100 - remaining_units(&store, &key, 100).await;
            assert!(
                spent == others || spent == others + 1,
                "{spent} spent, {others} by others, {polls} polls"
            );
        }
    }
}
