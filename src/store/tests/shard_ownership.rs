//! Operations without a lock: quotas, the division of shards among workers, membership.

use std::{collections::BTreeSet, time::Duration};

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, done_settlement, fixed_window_item, grouped_charge,
        keys_of_one_shard, new_token, next_claim, settle_command, test_key, try_acquire_command,
    },
};
use crate::{
    Key,
    store::{
        ChargeItem,
        backend::{AcquireCommand, NodeId, OFFER_TIMEOUT, SettleCommand, SettleOutcome},
    },
};

on_every_store!(
    empty_charge_is_admitted,
    duplicate_counter_is_charged_twice,
    workers_divide_shards_evenly,
    heartbeat_returns_expiry_of_next_peer,
    paused_jobs_have_no_shard_watch,
    heartbeat_returns_busy_owned_shards,
    poll_due_returns_due_locks_and_next_due_time,
);

fn short_window_item(policy: &str, subject: &Key, limit: u64, cost: u64) -> ChargeItem {
    fixed_window_item(policy, subject, (limit, SHORT_TIME), cost)
}

/// Charges the items together. Returns whether they were admitted, and the remaining units of each.
async fn charge_items(rig: &StoreHarness, items: Vec<ChargeItem>) -> (bool, Vec<u64>) {
    let charged = rig.charge(grouped_charge(items)).await;
    (charged.admitted == 1, charged.snapshots.iter().map(|snapshot| snapshot.remaining).collect())
}

/// Like `charge_items`, for one item.
async fn charge_one(rig: &StoreHarness, policy: &str, subject: &Key, limit: u64) -> (bool, u64) {
    let (admitted, remaining) =
        charge_items(rig, vec![short_window_item(policy, subject, limit, 1)]).await;
    (admitted, remaining[0])
}

async fn empty_charge_is_admitted(rig: &StoreHarness) {
    let none = rig.charge(grouped_charge(Vec::new())).await;
    assert!(none.admitted == 1 && none.snapshots.is_empty());
}

/// Two layers with one policy, checked in one call, share its limit.
async fn duplicate_counter_is_charged_twice(rig: &StoreHarness) {
    let key = test_key();
    let items = || vec![short_window_item("p", &key, 5, 1), short_window_item("p", &key, 5, 2)];
    for admitted in [true, false] {
        assert_eq!(charge_items(rig, items()).await, (admitted, vec![2, 2]));
    }
    assert_eq!(charge_one(rig, "p", &key, 5).await, (true, 1));
    // The counter has one window, the longer one. A shorter one might admit more than the other
    // rule allows.
    let other = fixed_window_item("q", &key, (5, LONG_TIME), 1);
    let charged = rig.charge(grouped_charge(vec![short_window_item("q", &key, 5, 0), other])).await;
    let is_longer_window = |reset| reset > SHORT_TIME && reset <= LONG_TIME;
    assert!(
        charged.snapshots.iter().all(|snapshot| is_longer_window(snapshot.reset_after)),
        "{charged:?}"
    );
}

/// Returns the shards of each worker after all of them have given up and taken shares.
async fn owned_shards_after_rebalance(rig: &StoreHarness, nodes: &[&NodeId]) -> Vec<BTreeSet<u16>> {
    let mut shards = Vec::new();
    for _ in 0..2 {
        shards.clear();
        for node in nodes {
            shards.push(BTreeSet::from_iter(rig.heartbeat(node, LONG_TIME).await.own_shards));
        }
    }
    shards
}

async fn workers_divide_shards_evenly(rig: &StoreHarness) {
    let (a, b, c) = (NodeId::new(), NodeId::new(), NodeId::new());
    assert_eq!(rig.heartbeat(&a, LONG_TIME).await.own_shards.len(), 64);
    // A worker takes only shards that others have given up.
    assert_eq!(rig.heartbeat(&b, LONG_TIME).await.own_shards, [0; 0]);
    let two = owned_shards_after_rebalance(rig, &[&a, &b]).await;
    assert_eq!((two[0].len(), two[1].len()), (32, 32));
    let three = owned_shards_after_rebalance(rig, &[&a, &b, &c]).await;
    assert!(three.iter().all(|own_shards| own_shards.len() >= 20), "{three:?}");
    assert!(three[0].is_subset(&two[0]), "a worker keeps only shards that it owned");
    let all = BTreeSet::from_iter(three.iter().flatten());
    assert_eq!(three.iter().map(BTreeSet::len).sum::<usize>(), all.len(), "two watchers");
    assert_eq!(all.len(), 64);
    assert_eq!(
        owned_shards_after_rebalance(rig, &[&a, &b, &c]).await,
        three,
        "nothing moves without need"
    );
}

/// Each worker learns the expiry of its successor, so that a dead worker is noticed at once.
async fn heartbeat_returns_expiry_of_next_peer(rig: &StoreHarness) {
    let mut nodes = [NodeId::new(), NodeId::new(), NodeId::new()];
    nodes.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    let [a, b, c] = &nodes;
    assert_eq!(rig.peer_expiry(a, SHORT_TIME).await, None, "it is alone");
    let expiry = |peer_expiry: Option<Duration>| peer_expiry.expect("there is another one");
    // The first worker is the successor of the last.
    assert!(expiry(rig.peer_expiry(c, LONG_TIME).await) <= SHORT_TIME);
    assert!(expiry(rig.peer_expiry(b, LONG_TIME).await) > SHORT_TIME, "c");
    assert!(expiry(rig.peer_expiry(a, SHORT_TIME).await) > SHORT_TIME, "b");
    assert!(expiry(rig.peer_expiry(c, LONG_TIME).await) <= SHORT_TIME, "a");
    rig.advance_past(2 * SHORT_TIME).await;
    assert!(expiry(rig.peer_expiry(c, LONG_TIME).await) > SHORT_TIME, "b: a has died");
    assert!(expiry(rig.peer_expiry(b, LONG_TIME).await) > SHORT_TIME, "c");
    rig.heartbeat(b, Duration::ZERO).await;
    assert_eq!(rig.peer_expiry(c, LONG_TIME).await, None, "alone again");
}

async fn paused_jobs_have_no_shard_watch(rig: &StoreHarness) {
    let (key, holder, run) = (test_key(), new_token(), new_token());
    let node = rig.register_worker().await;
    let id = rig.enqueue_job(&key).await;
    rig.start_run(&key, &id, &run).await;
    let second = rig.enqueue_job(&key).await;
    rig.set_jobs_paused(true).await;
    assert!(!rig.job_view(&id).await.unwrap().is_watched);
    // The current run ends; no other begins, and live requests overtake the jobs.
    let next = Some(next_claim(&new_token()));
    let call =
        SettleCommand { next_claim: next, ..settle_command(&key, &id, &run, done_settlement()) };
    assert_eq!(rig.settle_and_claim(call).await, SettleOutcome::Settled(None));
    rig.acquire_exclusive(&key, &holder).await;
    rig.release(&key, &holder).await;
    let heartbeat = rig.heartbeat(&node, LONG_TIME).await;
    assert_eq!((heartbeat.own_shards.len(), heartbeat.is_paused), (0, true));
    rig.set_jobs_paused(true).await;
    rig.set_jobs_paused(false).await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.own_shards.len(), 64);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(second)]);
    assert!(
        rig.expect_busy(&key, &holder).await <= OFFER_TIMEOUT,
        "jobs are offered the lock again"
    );
}

async fn heartbeat_returns_busy_owned_shards(rig: &StoreHarness) {
    let node = rig.register_worker().await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.busy_shards, [0; 0]);
    let (one, other) = (test_key(), Key::custom("elsewhere"));
    assert_ne!(one.shard(), other.shard());
    let id = rig.enqueue_job(&one).await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.busy_shards, [one.shard()]);
    rig.enqueue_job(&other).await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.busy_shards.len(), 2);
    rig.cancel(&id).await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.busy_shards, [other.shard()]);
    // Shards of other workers are not reported.
    assert_eq!(rig.heartbeat(&NodeId::new(), LONG_TIME).await.busy_shards, [0; 0]);
}

async fn poll_due_returns_due_locks_and_next_due_time(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    let shard = one.shard();
    let none = rig.poll_due(shard, 10).await;
    assert_eq!((none.locks.len(), none.next_due_in), (0, None));
    // A held lock with jobs is due when its lease ends.
    for (key, lease) in [(&one, SHORT_TIME), (&two, SHORT_TIME * 2), (&three, LONG_TIME)] {
        rig.acquire(AcquireCommand { lease, ..try_acquire_command(key, &new_token()) }).await;
        rig.enqueue_job(key).await;
    }
    let later = rig.poll_due(shard, 10).await;
    assert_eq!(later.locks, []);
    assert!(
        later.next_due_in.unwrap() > SHORT_TIME / 2 && later.next_due_in.unwrap() <= SHORT_TIME
    );
    rig.advance_past(SHORT_TIME * 2).await;
    let now = rig.poll_due(shard, 10).await;
    assert_eq!(now.locks, [one.clone(), two]);
    assert!(now.next_due_in.unwrap() > LONG_TIME / 2);
    assert_eq!(rig.poll_due(shard, 1).await.locks, [one], "no more than asked for");
}

/// The node with the membership data has failed. Watches on the other nodes are renewed; no other
/// shard is taken or given up.
#[cfg(feature = "redis")]
#[tokio::test]
async fn worker_keeps_shards_while_membership_is_unavailable() {
    use super::test_cluster::ClusterNamespace;

    let namespace = ClusterNamespace::new().await;
    let store = namespace.connect_store().await;
    let heartbeat = |node: &NodeId, lease| store.backend().heartbeat(node.clone(), lease);
    let (a, b) = (NodeId::new(), NodeId::new());
    heartbeat(&a, SHORT_TIME).await.unwrap();
    heartbeat(&b, SHORT_TIME).await.unwrap();
    let own_shards = heartbeat(&a, SHORT_TIME).await.unwrap().own_shards;
    assert_eq!(own_shards.len(), 32);
    for _ in 0..3 {
        namespace.shift_time(i64::try_from((SHORT_TIME / 2).as_millis()).unwrap()).await;
        namespace.delete_worker_index(true).await;
        let reply = heartbeat(&a, SHORT_TIME).await.unwrap();
        assert_eq!(reply.own_shards, own_shards);
        assert!(
            reply.peer_expires_in.is_some_and(|expiry| expiry <= SHORT_TIME),
            "it asks again soon"
        );
        namespace.delete_worker_index(false).await;
    }
    // Its watches have expired meanwhile, and it takes its shards again.
    namespace.shift_time(2 * i64::try_from(SHORT_TIME.as_millis()).unwrap()).await;
    namespace.delete_worker_index(true).await;
    assert_eq!(heartbeat(&a, SHORT_TIME).await.unwrap().own_shards, own_shards);
    assert!(heartbeat(&b, SHORT_TIME).await.is_err(), "it has none to hold on to");
    assert!(heartbeat(&a, Duration::ZERO).await.is_err());
}
