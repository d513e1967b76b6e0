//! What is not about one lock: quotas, the division of shards among workers, who is present.

use std::{collections::BTreeSet, time::Duration};

use super::{
    on_every_store,
    rig::{
        LONG, Rig, SHORT, ask, done, fixed, key, neighbours, next_run, settled, stranger, together,
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
    no_charge_is_admitted,
    a_counter_named_twice_is_charged_twice,
    workers_divide_the_shards,
    workers_look_after_each_other,
    a_paused_queue_has_no_watcher,
    a_beat_names_the_shards_with_work,
    due_names_what_is_due_and_when_the_next_is,
);

fn charge(policy: &str, subject: &Key, limit: u64, cost: u64) -> ChargeItem {
    fixed(policy, subject, (limit, SHORT), cost)
}

/// Whether they are admitted together, and what is left of each.
async fn charged(rig: &Rig, items: Vec<ChargeItem>) -> (bool, Vec<u64>) {
    let charged = rig.charge(together(items)).await;
    (charged.admitted == 1, charged.snapshots.iter().map(|state| state.remaining).collect())
}

/// As above, for one charge of one.
async fn one(rig: &Rig, policy: &str, subject: &Key, limit: u64) -> (bool, u64) {
    let (admitted, left) = charged(rig, vec![charge(policy, subject, limit, 1)]).await;
    (admitted, left[0])
}

async fn no_charge_is_admitted(rig: &Rig) {
    let none = rig.charge(together(Vec::new())).await;
    assert!(none.admitted == 1 && none.snapshots.is_empty());
}

/// Two layers of one policy, checked in one call: together they are held to the limit.
async fn a_counter_named_twice_is_charged_twice(rig: &Rig) {
    let key = key();
    let twice = || vec![charge("p", &key, 5, 1), charge("p", &key, 5, 2)];
    for admitted in [true, false] {
        assert_eq!(charged(rig, twice()).await, (admitted, vec![2, 2]));
    }
    assert_eq!(one(rig, "p", &key, 5).await, (true, 1));
    // Its window is one too, the longer one: in a shorter one more might be let in than the other rule allows.
    let other = fixed("q", &key, (5, LONG), 1);
    let charged = rig.charge(together(vec![charge("q", &key, 5, 0), other])).await;
    let in_the_longer = |reset| reset > SHORT && reset <= LONG;
    assert!(charged.snapshots.iter().all(|state| in_the_longer(state.reset_after)), "{charged:?}");
}

/// Each worker's shards, after all of them have given up and taken theirs.
async fn divided(rig: &Rig, nodes: &[&NodeId]) -> Vec<BTreeSet<u16>> {
    let mut shards = Vec::new();
    for _ in 0..2 {
        shards.clear();
        for node in nodes {
            shards.push(BTreeSet::from_iter(rig.beat(node, LONG).await.own_shards));
        }
    }
    shards
}

async fn workers_divide_the_shards(rig: &Rig) {
    let (a, b, c) = (NodeId::new(), NodeId::new(), NodeId::new());
    assert_eq!(rig.beat(&a, LONG).await.own_shards.len(), 64);
    // Taken are what the others have given up.
    assert_eq!(rig.beat(&b, LONG).await.own_shards, [0; 0]);
    let two = divided(rig, &[&a, &b]).await;
    assert_eq!((two[0].len(), two[1].len()), (32, 32));
    let three = divided(rig, &[&a, &b, &c]).await;
    assert!(three.iter().all(|mine| mine.len() >= 20), "{three:?}");
    assert!(three[0].is_subset(&two[0]), "what it keeps is its own");
    let all = BTreeSet::from_iter(three.iter().flatten());
    assert_eq!(three.iter().map(BTreeSet::len).sum::<usize>(), all.len(), "two watchers");
    assert_eq!(all.len(), 64);
    assert_eq!(divided(rig, &[&a, &b, &c]).await, three, "nothing moves without need");
}

/// Each is told how soon the next one's lease ends, so that the death of any is noticed when it does.
async fn workers_look_after_each_other(rig: &Rig) {
    let mut nodes = [NodeId::new(), NodeId::new(), NodeId::new()];
    nodes.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    let [a, b, c] = &nodes;
    assert_eq!(rig.lapse(a, SHORT).await, None, "it is alone");
    let of = |lapse: Option<Duration>| lapse.expect("there is another one");
    // Behind the last comes the first.
    assert!(of(rig.lapse(c, LONG).await) <= SHORT);
    assert!(of(rig.lapse(b, LONG).await) > SHORT, "c");
    assert!(of(rig.lapse(a, SHORT).await) > SHORT, "b");
    assert!(of(rig.lapse(c, LONG).await) <= SHORT, "a");
    rig.pass(2 * SHORT).await;
    assert!(of(rig.lapse(c, LONG).await) > SHORT, "b: a has died");
    assert!(of(rig.lapse(b, LONG).await) > SHORT, "c");
    rig.beat(b, Duration::ZERO).await;
    assert_eq!(rig.lapse(c, LONG).await, None, "alone again");
}

async fn a_paused_queue_has_no_watcher(rig: &Rig) {
    let (key, holder, run) = (key(), stranger(), stranger());
    let node = rig.worker().await;
    let id = rig.put_off(&key).await;
    rig.start(&key, &id, &run).await;
    let second = rig.put_off(&key).await;
    rig.pause(true).await;
    assert!(!rig.job(&id).await.unwrap().is_watched);
    // The run that was under way ends; no other begins, and live requests pass the jobs.
    let next = Some(next_run(&stranger()));
    let call = SettleCommand { next_claim: next, ..settled(&key, &id, &run, done()) };
    assert_eq!(rig.settle_and_run(call).await, SettleOutcome::Settled(None));
    rig.hold(&key, &holder).await;
    rig.release(&key, &holder).await;
    let beat = rig.beat(&node, LONG).await;
    assert_eq!((beat.own_shards.len(), beat.is_paused), (0, true));
    rig.pause(true).await;
    rig.pause(false).await;
    assert_eq!(rig.beat(&node, LONG).await.own_shards.len(), 64);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(second)]);
    assert!(rig.refused(&key, &holder).await <= OFFER_TIMEOUT, "jobs have their turn again");
}

async fn a_beat_names_the_shards_with_work(rig: &Rig) {
    let node = rig.worker().await;
    assert_eq!(rig.beat(&node, LONG).await.busy_shards, [0; 0]);
    let (one, other) = (key(), Key::custom("elsewhere"));
    assert_ne!(one.shard(), other.shard());
    let id = rig.put_off(&one).await;
    assert_eq!(rig.beat(&node, LONG).await.busy_shards, [one.shard()]);
    rig.put_off(&other).await;
    assert_eq!(rig.beat(&node, LONG).await.busy_shards.len(), 2);
    rig.cancel(&id).await;
    assert_eq!(rig.beat(&node, LONG).await.busy_shards, [other.shard()]);
    // Another one's shards are its own business.
    assert_eq!(rig.beat(&NodeId::new(), LONG).await.busy_shards, [0; 0]);
}

async fn due_names_what_is_due_and_when_the_next_is(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    let shard = one.shard();
    let none = rig.due(shard, 10).await;
    assert_eq!((none.names.len(), none.next), (0, None));
    // A held lock with jobs is due when its lease ends.
    for (key, lease) in [(&one, SHORT), (&two, SHORT * 2), (&three, LONG)] {
        rig.acquire(AcquireCommand { lease, ..ask(key, &stranger()) }).await;
        rig.put_off(key).await;
    }
    let later = rig.due(shard, 10).await;
    assert_eq!(later.names, []);
    assert!(later.next.unwrap() > SHORT / 2 && later.next.unwrap() <= SHORT);
    rig.pass(SHORT * 2).await;
    let now = rig.due(shard, 10).await;
    assert_eq!(now.names, [one.clone(), two]);
    assert!(now.next.unwrap() > LONG / 2);
    assert_eq!(rig.due(shard, 1).await.names, [one], "no more than asked for");
}

/// The node that knows who lives is in trouble: what is watched on the others goes on being so, and nothing else is
/// taken or left.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_worker_holds_on_to_its_shards_while_nobody_knows_who_lives() {
    use super::cluster::Space;

    let space = Space::new().await;
    let store = space.store().await;
    let beat = |node: &NodeId, lease| store.backend().heartbeat(node.clone(), lease);
    let (a, b) = (NodeId::new(), NodeId::new());
    beat(&a, SHORT).await.unwrap();
    beat(&b, SHORT).await.unwrap();
    let mine = beat(&a, SHORT).await.unwrap().own_shards;
    assert_eq!(mine.len(), 32);
    for _ in 0..3 {
        space.shift(i64::try_from((SHORT / 2).as_millis()).unwrap()).await;
        space.forget_workers(true).await;
        let held = beat(&a, SHORT).await.unwrap();
        assert_eq!(held.own_shards, mine);
        assert!(held.peer_expires_in.is_some_and(|lapse| lapse <= SHORT), "it asks again soon");
        space.forget_workers(false).await;
    }
    // So late that it is nobody's any more: who does not answer has taken its time.
    space.shift(2 * i64::try_from(SHORT.as_millis()).unwrap()).await;
    space.forget_workers(true).await;
    assert_eq!(beat(&a, SHORT).await.unwrap().own_shards, mine);
    assert!(beat(&b, SHORT).await.is_err(), "it has none to hold on to");
    assert!(beat(&a, Duration::ZERO).await.is_err());
}
