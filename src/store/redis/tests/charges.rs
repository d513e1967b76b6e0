//! Charges that go together, on a real server and through a proxy that loses replies.

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

pub(super) fn settle_command(item: &ChargeItem, by: AdjustmentKind) -> SettleChargeCommand {
    let ChargeItem { policy, subject, rule, .. } = item.clone();
    let tag = subject.clone();
    SettleChargeCommand { tag, items: vec![ChargeAdjustment { policy, subject, rule, kind: by }] }
}

async fn remaining_units(store: &Store, key: &Key, limit: u64) -> u64 {
    let look = ChargeCommand { repetitions: 0, ..single_charge(key, limit) };
    send_charge(store, look).await.unwrap().snapshots[0].remaining
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
    // How many, is a matter of how long the way is; on a slow one several flights are in the air.
    assert!(calls <= 30, "{calls} calls");
    // In the order they came.
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

/// Also where many are told in one word, and some in the middle can't be made. Lua takes all of these texts for numbers.
#[tokio::test]
async fn corrupt_counter_fails_only_its_own_charge() {
    let server = ServerProcess::start().await;
    let builder = Store::builder(&server.url()).call_timeout(10 * SECOND).connections_per_node(1);
    let store = builder.connect().await.unwrap();
    let kind = CounterKeyKind::spent_units(quota_rule(0).algorithm());
    let texts = ["150.5", "99999999999999999999", "-0.5", "1e300", "inf"];
    let broken = |odd: &str| ["RPUSH", "SET"][usize::from(texts.contains(&odd))];
    for odd in ["x"].iter().chain(&texts) {
        let keys: Vec<_> = (0..60).map(|n| Key::custom(&format!("{odd}{n}"))).collect();
        for n in [7, 8, 40] {
            let name = KeyNames::new("test");
            let (key, shard) = (&keys[n], keys[n].shard());
            let name = name.counter_parts(key, shard, kind, ("p", key)).concat();
            server.command(&[broken(odd), &name, odd]).await;
        }
        let limit = |n: usize| if n % 10 == 3 { 5 } else { 2 };
        for spent in 1..=3 {
            let all = keys
                .iter()
                .enumerate()
                .map(|(n, key)| send_charge(&store, single_charge(key, limit(n))));
            for (n, charged) in join_all(all).await.into_iter().enumerate() {
                let wanted = (u32::from(spent <= limit(n)), limit(n).saturating_sub(spent));
                let told =
                    charged.map(|charged| (charged.admitted, charged.snapshots[0].remaining));
                match told {
                    Ok(told) if matches!(n, 7 | 8 | 40) => assert_eq!(told, (0, 0), "{odd} {n}"),
                    Ok(told) => assert_eq!(told, wanted, "{odd} {n}"),
                    Err(error) => {
                        let is_odd = matches!(n, 7 | 8 | 40);
                        assert_eq!(
                            (is_odd, error.kind()),
                            (true, ErrorKind::Protocol),
                            "{odd} {n}"
                        );
                    }
                }
            }
        }
        let look = ChargeCommand { repetitions: 0, ..single_charge(&keys[7], 5) };
        let looked =
            join_all([send_charge(&store, look), send_charge(&store, single_charge(&keys[0], 5))])
                .await;
        assert_eq!(looked[1].as_ref().unwrap().snapshots[0].remaining, 2, "{odd}");
    }
}

/// Policy, subject, limit, cost; under which tag, how often, whether refusals count; and of the last charge of
/// those before, how much is given back of its first item after that.
type GeneratedCharge = (usize, Vec<(u8, usize, u8, u64)>, u32, bool, Option<u64>);

/// GCRA at a pace that gives nothing back while the test runs.
fn quota_rule(kind: u8) -> QuotaRule {
    match kind {
        0 => QuotaRule::Fixed { limit: 5, window: HOUR },
        1 => QuotaRule::Sliding { limit: 4, window: HOUR },
        _ => QuotaRule::Gcra { limit: 1, window: HOUR, burst: 6 },
    }
}

fn charge_sequences() -> impl Strategy<Value = Vec<GeneratedCharge>> {
    let few = || prop_oneof![3 => Just(0_usize), 1 => 1..3_usize];
    let item = (0..2_u8, few(), 0..3_u8, prop_oneof![3 => Just(1_u64), 1 => 0..3_u64]);
    let items = prop_oneof![
        3 => item.clone().prop_map(|item| vec![item]),
        1 => prop::collection::vec(item, 1..4),
    ];
    let times = prop_oneof![4 => Just(1_u32), 1 => 0..4_u32];
    let back = prop::option::weighted(0.1, 1..3_u64);
    prop::collection::vec((few(), items, times, prop::bool::weighted(0.2), back), 1..60)
}

fn charge_command(asked: &GeneratedCharge, keys: &[Key; 3]) -> ChargeCommand {
    let (tag, items, times, strict, _) = asked;
    let penalty = strict.then_some(Penalty { after_refusals: 2, block_for: HOUR });
    let item = |(policy, subject, kind, cost): &(u8, usize, u8, u64)| ChargeItem {
        rule: quota_rule(*kind),
        penalty,
        ..charge_item(&policy.to_string(), &keys[*subject], 0, *cost)
    };
    ChargeCommand {
        tag: keys[*tag].clone(),
        items: items.iter().map(item).collect(),
        repetitions: *times,
    }
}

fn assert_same_outcome(together: &ChargeOutcome, apart: &ChargeOutcome) {
    assert_eq!(together.admitted, apart.admitted);
    let exact = |charged: &ChargeOutcome| {
        let exact = |s: &crate::store::QuotaSnapshot| {
            (s.remaining, s.retry_after.is_zero(), s.full_after.is_zero(), s.blocked_for.is_some())
        };
        charged.snapshots.iter().map(exact).collect::<Vec<_>>()
    };
    assert_eq!(exact(together), exact(apart));
    for (a, b) in together.snapshots.iter().zip(&apart.snapshots) {
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
    // All on one lane: the order in which they were called is the one in which they go.
    let store = async || {
        let builder = Store::builder(&url(uuid::Uuid::new_v4())).call_timeout(10 * SECOND);
        builder.connections_per_node(1).connect().await.unwrap()
    };
    let named = std::env::var_os("PROPTEST_CASES").is_some();
    let usual = ProptestConfig::default();
    let config = if named { usual } else { ProptestConfig { cases: 100, ..usual } };
    proptest!(config, |(asked in charge_sequences())| {
        let keys = ["a", "b", "c"].map(Key::custom);
        runtime.block_on(async {
            let (one, other) = (store().await, store().await);
            // As far as the next that is given back they go together.
            for asked in asked.split_inclusive(|asked| asked.4.is_some()) {
                let together = join_all(asked.iter().map(|a| send_charge(&one, charge_command(a, &keys)))).await;
                for (asked, together) in asked.iter().zip(together) {
                    let (together, made) = (together.unwrap(), charge_command(asked, &keys));
                    let apart = send_charge(&other, made.clone()).await.unwrap();
                    assert_same_outcome(&together, &apart);
                    let Some(units) = asked.4.filter(|_| apart.admitted > 0) else { continue };
                    let back = async |store: &Store, charged: &ChargeOutcome| {
                        let by = AdjustmentKind::Refund { units, window: charged.snapshots[0].charged_window };
                        let call = SettleChargeCommand { tag: made.tag.clone(), ..settle_command(&made.items[0], by) };
                        store.backend().settle_charge(call).await.unwrap().remove(0).remaining
                    };
                    assert_eq!(back(&one, &together).await, back(&other, &apart).await);
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

/// What is told of a charge whose reply was lost is that it may have been made; it is never made twice.
#[tokio::test]
async fn charge_with_lost_reply_is_made_at_most_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, past) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let key = Key::custom("k");
    let (mut sure, mut doubtful) = (0, 0);
    for cuts in [0, 1, 2, 1, 3, 1] {
        proxy.lose_next_replies(cuts);
        for charged in
            join_all((0..20).map(|_| send_charge(&store, single_charge(&key, 1000)))).await
        {
            match charged {
                Ok(charged) => sure += u64::from(charged.admitted),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable));
                    doubtful += u64::from(error.may_have_run());
                }
            }
        }
        proxy.lose_next_replies(0);
        wait_until_usable(&store).await;
        let spent = 1000 - remaining_units(&past, &key, 1000).await;
        assert!(sure <= spent && spent <= sure + doubtful, "{sure} + {doubtful}, {spent} spent");
    }
    println!("figure: fewest replies lost {doubtful}");
    assert!(doubtful > 0, "no reply was lost");
}

/// Nor is what is given back: that would let somebody in.
#[tokio::test]
async fn refund_with_lost_reply_is_made_at_most_once() {
    let server = ServerProcess::start().await;
    let proxy = LossyProxy::to(server.port()).await;
    let (store, past) =
        (proxy.store_with_long_timeout().await, server.store_with_long_timeout().await);
    let mut lost = 0;
    for (n, kind) in (0..9).zip([0, 1, 2].into_iter().cycle()) {
        let key = Key::custom(&n.to_string());
        let item = ChargeItem { rule: quota_rule(kind), ..charge_item("p", &key, 0, 1) };
        let call = ChargeCommand { tag: key.clone(), items: [item.clone()].into(), repetitions: 3 };
        let charged = send_charge(&store, call.clone()).await.unwrap();
        assert_eq!(charged.admitted, 3);
        let look = ChargeCommand { repetitions: 0, ..call };
        let before = charged.snapshots[0].remaining;
        proxy.lose_next_replies(1);
        let refund =
            AdjustmentKind::Refund { units: 1, window: charged.snapshots[0].charged_window };
        let refunded = store.backend().settle_charge(settle_command(&item, refund)).await;
        proxy.lose_next_replies(0);
        wait_until_usable(&store).await;
        lost += usize::from(refunded.is_err());
        let after = send_charge(&past, look).await.unwrap().snapshots[0].remaining;
        assert!((before..=before + 1).contains(&after), "{before} {after} {kind}");
    }
    assert!(lost > 0, "no reply was lost");
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

/// Dropped after any number of looks, alone and among others: it is charged once or not at all, and the others
/// once each.
#[tokio::test]
async fn dropped_charge_does_not_affect_its_batch() {
    let server = ServerProcess::start().await;
    let store = server.store_with_long_timeout().await;
    for others in [0, 1, 5] {
        for polls in 0..8 {
            let key = Key::custom(&format!("{others}-{polls}"));
            let company: Vec<_> = (0..others)
                .map(|_| {
                    let (store, call) = (store.clone(), single_charge(&key, 100));
                    crate::store::spawn(async move { send_charge(&store, call).await })
                })
                .collect();
            tokio::task::yield_now().await;
            let mut dropped = Box::pin(send_charge(&store, single_charge(&key, 100)));
            for _ in 0..polls {
                let look = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(charged) = look {
                    assert_eq!(charged.unwrap().admitted, 1);
                    dropped = Box::pin(send_charge(&store, single_charge(&key, 100)));
                    break;
                }
                tokio::time::sleep(SECOND / 5000).await;
            }
            drop(dropped);
            for call in company {
                assert_eq!(call.await.unwrap().unwrap().admitted, 1);
            }
            let spent = 100 - remaining_units(&store, &key, 100).await;
            assert!(spent == others || spent == others + 1, "{spent} of {others}, {polls} looks");
        }
    }
}
