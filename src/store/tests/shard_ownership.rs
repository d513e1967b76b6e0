//! What is not about one lock: quotas, the division of shards among workers, who is present.

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

/// Whether they are admitted together, and what is left of each.
async fn charge_items(rig: &StoreHarness, items: Vec<ChargeItem>) -> (bool, Vec<u64>) {
    let charged = rig.charge(grouped_charge(items)).await;
    (charged.admitted == 1, charged.snapshots.iter().map(|state| state.remaining).collect())
}

/// As above, for one charge of one.
async fn charge_one(rig: &StoreHarness, policy: &str, subject: &Key, limit: u64) -> (bool, u64) {
    let (admitted, left) =
        charge_items(rig, vec![short_window_item(policy, subject, limit, 1)]).await;
    (admitted, left[0])
}

async fn empty_charge_is_admitted(rig: &StoreHarness) {
    let none = rig.charge(grouped_charge(Vec::new())).await;
    assert!(none.admitted == 1 && none.snapshots.is_empty());
}

/// Two layers of one policy, checked in one call: together they are held to the limit.
async fn duplicate_counter_is_charged_twice(rig: &StoreHarness) {
    let key = test_key();
    let twice = || vec![short_window_item("p", &key, 5, 1), short_window_item("p", &key, 5, 2)];
    for admitted in [true, false] {
        assert_eq!(charge_items(rig, twice()).await, (admitted, vec![2, 2]));
    }
    assert_eq!(charge_one(rig, "p", &key, 5).await, (true, 1));
    // Its window is one too, the longer one: in a shorter one more might be let in than the other rule allows.
    let other = fixed_window_item("q", &key, (5, LONG_TIME), 1);
    let charged = rig.charge(grouped_charge(vec![short_window_item("q", &key, 5, 0), other])).await;
    let in_the_longer = |reset| reset > SHORT_TIME && reset <= LONG_TIME;
    assert!(charged.snapshots.iter().all(|state| in_the_longer(state.reset_after)), "{charged:?}");
}

/// Each worker's shards, after all of them have given up and taken theirs.
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
    // Taken are what the others have given up.
    assert_eq!(rig.heartbeat(&b, LONG_TIME).await.own_shards, [0; 0]);
    let two = owned_shards_after_rebalance(rig, &[&a, &b]).await;
    assert_eq!((two[0].len(), two[1].len()), (32, 32));
    let three = owned_shards_after_rebalance(rig, &[&a, &b, &c]).await;
    assert!(three.iter().all(|mine| mine.len() >= 20), "{three:?}");
    assert!(three[0].is_subset(&two[0]), "what it keeps is its own");
    let all = BTreeSet::from_iter(three.iter().flatten());
    assert_eq!(three.iter().map(BTreeSet::len).sum::<usize>(), all.len(), "two watchers");
    assert_eq!(all.len(), 64);
    assert_eq!(
        owned_shards_after_rebalance(rig, &[&a, &b, &c]).await,
        three,
        "nothing moves without need"
    );
}

/// Each is told how soon the next one's lease ends, so that the death of any is noticed when it does.
async fn heartbeat_returns_expiry_of_next_peer(rig: &StoreHarness) {
    let mut nodes = [NodeId::new(), NodeId::new(), NodeId::new()];
    nodes.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    let [a, b, c] = &nodes;
    assert_eq!(rig.peer_expiry(a, SHORT_TIME).await, None, "it is alone");
    let of = |lapse: Option<Duration>| lapse.expect("there is another one");
    // Behind the last comes the first.
    assert!(of(rig.peer_expiry(c, LONG_TIME).await) <= SHORT_TIME);
    assert!(of(rig.peer_expiry(b, LONG_TIME).await) > SHORT_TIME, "c");
    assert!(of(rig.peer_expiry(a, SHORT_TIME).await) > SHORT_TIME, "b");
    assert!(of(rig.peer_expiry(c, LONG_TIME).await) <= SHORT_TIME, "a");
    rig.advance_past(2 * SHORT_TIME).await;
    assert!(of(rig.peer_expiry(c, LONG_TIME).await) > SHORT_TIME, "b: a has died");
    assert!(of(rig.peer_expiry(b, LONG_TIME).await) > SHORT_TIME, "c");
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
    // The run that was under way ends; no other begins, and live requests pass the jobs.
    let next = Some(next_claim(&new_token()));
    let call =
        SettleCommand { next_claim: next, ..settle_command(&key, &id, &run, done_settlement()) };
    assert_eq!(rig.settle_and_claim(call).await, SettleOutcome::Settled(None));
    rig.acquire_exclusive(&key, &holder).await;
    rig.release(&key, &holder).await;
    let beat = rig.heartbeat(&node, LONG_TIME).await;
    assert_eq!((beat.own_shards.len(), beat.is_paused), (0, true));
    rig.set_jobs_paused(true).await;
    rig.set_jobs_paused(false).await;
    assert_eq!(rig.heartbeat(&node, LONG_TIME).await.own_shards.len(), 64);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(second)]);
    assert!(rig.expect_busy(&key, &holder).await <= OFFER_TIMEOUT, "jobs have their turn again");
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
    // Another one's shards are its own business.
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

/// The node that knows who lives is in trouble: what is watched on the others goes on being so, and nothing else is
/// taken or left.
#[cfg(feature = "redis")]
#[tokio::test]
async fn worker_keeps_shards_while_membership_is_unavailable() {
    use super::test_cluster::ClusterNamespace;

    let space = ClusterNamespace::new().await;
    let store = space.connect_store().await;
    let beat = |node: &NodeId, lease| store.backend().heartbeat(node.clone(), lease);
    let (a, b) = (NodeId::new(), NodeId::new());
    beat(&a, SHORT_TIME).await.unwrap();
    beat(&b, SHORT_TIME).await.unwrap();
    let mine = beat(&a, SHORT_TIME).await.unwrap().own_shards;
    assert_eq!(mine.len(), 32);
    for _ in 0..3 {
        space.shift_time(i64::try_from((SHORT_TIME / 2).as_millis()).unwrap()).await;
        space.delete_worker_index(true).await;
        let held = beat(&a, SHORT_TIME).await.unwrap();
        assert_eq!(held.own_shards, mine);
        assert!(
            held.peer_expires_in.is_some_and(|lapse| lapse <= SHORT_TIME),
            "it asks again soon"
        );
        space.delete_worker_index(false).await;
    }
    // So late that it is nobody's any more: who does not answer has taken its time.
    space.shift_time(2 * i64::try_from(SHORT_TIME.as_millis()).unwrap()).await;
    space.delete_worker_index(true).await;
    assert_eq!(beat(&a, SHORT_TIME).await.unwrap().own_shards, mine);
    assert!(beat(&b, SHORT_TIME).await.is_err(), "it has none to hold on to");
    assert!(beat(&a, Duration::ZERO).await.is_err());
}
