//! What is not about one lock: quotas, the division of shards among workers, who is present.

use std::{collections::BTreeSet, time::Duration};

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, ask, fixed, key, neighbours, stranger, together},
};
use crate::{
    Key,
    store::{
        Charge, Item,
        backend::{Acquire, Node},
    },
};

on_every_store!(
    a_quota_is_spent_and_comes_back_with_its_window,
    a_refused_charge_takes_from_none,
    a_look_costs_nothing,
    a_window_never_moves,
    subjects_and_policies_are_apart,
    no_charge_is_admitted,
    a_counter_named_twice_is_charged_twice,
    workers_divide_the_shards,
    a_worker_gives_up_what_is_too_much,
    a_dead_workers_shards_are_free,
    present_workers_are_counted,
    a_short_lease_does_not_end_a_long_one,
    due_names_what_is_due_and_when_the_next_is,
);

fn charge(policy: &str, subject: &Key, limit: u64, cost: u64) -> Item {
    fixed(policy, subject, (limit, SHORT), cost)
}

/// Whether they are admitted together, and what is left of each.
async fn charged(rig: &Rig, items: Vec<Item>) -> (bool, Vec<u64>) {
    let charged = rig.charge(together(items)).await;
    (charged.admitted == 1, charged.states.iter().map(|state| state.remaining).collect())
}

/// As above, for one charge of one.
async fn one(rig: &Rig, policy: &str, subject: &Key, limit: u64) -> (bool, u64) {
    let (admitted, left) = charged(rig, vec![charge(policy, subject, limit, 1)]).await;
    (admitted, left[0])
}

async fn a_quota_is_spent_and_comes_back_with_its_window(rig: &Rig) {
    let key = key();
    for left in (0..3).rev() {
        assert_eq!(one(rig, "p", &key, 3).await, (true, left));
    }
    assert_eq!(one(rig, "p", &key, 3).await, (false, 0));
    let refused = rig.charge(together(vec![charge("p", &key, 3, 1)])).await;
    let left = refused.states[0].reset;
    assert!(left > SHORT / 2 && left <= SHORT, "{left:?}");
    rig.pass(left).await;
    assert_eq!(one(rig, "p", &key, 3).await, (true, 2));
}

async fn a_refused_charge_takes_from_none(rig: &Rig) {
    let key = key();
    let both = |a, b| vec![charge("a", &key, 10, a), charge("b", &key, 2, b)];
    assert_eq!(charged(rig, both(4, 1)).await, (true, vec![6, 1]));
    assert_eq!(charged(rig, both(4, 2)).await, (false, vec![6, 1]));
    assert_eq!(charged(rig, both(6, 1)).await, (true, vec![0, 0]));
    // Too much for an empty window: nothing is spent, and no window has begun.
    let fresh = vec![charge("c", &key, 2, 1), charge("d", &key, 2, 3)];
    let fresh = rig.charge(together(fresh)).await;
    let states: Vec<_> = fresh.states.iter().map(|s| (s.remaining, s.reset, s.retry)).collect();
    let [passes, never] = [Duration::ZERO, Duration::MAX].map(|retry| (2, SHORT, retry));
    assert_eq!((fresh.admitted, states), (0, vec![passes, never]));
}

async fn a_look_costs_nothing(rig: &Rig) {
    let key = key();
    let look = async || {
        let charge = together(vec![charge("p", &key, 1, 1)]);
        let mut looked = rig.charge(Charge { times: 0, ..charge }).await;
        assert_eq!(looked.admitted, 0);
        let state = looked.states.remove(0);
        (state.remaining, state.reset, state.retry)
    };
    assert_eq!(look().await, (1, SHORT, Duration::ZERO));
    rig.pass(SHORT / 2).await;
    assert_eq!(look().await, (1, SHORT, Duration::ZERO), "looking began a window");
    assert_eq!(one(rig, "p", &key, 1).await, (true, 0));
    let (remaining, reset, retry) = look().await;
    assert_eq!((remaining, reset), (0, retry));
    assert_eq!(charged(rig, vec![charge("p", &key, 1, 0)]).await, (true, vec![0]));
}

async fn a_window_never_moves(rig: &Rig) {
    let key = key();
    assert_eq!(one(rig, "p", &key, 3).await, (true, 2));
    rig.pass(SHORT / 2).await;
    assert_eq!(one(rig, "p", &key, 3).await, (true, 1));
    rig.pass(SHORT / 2).await;
    assert_eq!(one(rig, "p", &key, 3).await, (true, 2));
}

async fn subjects_and_policies_are_apart(rig: &Rig) {
    let [a, b] = neighbours::<2>();
    assert_eq!(one(rig, "p", &a, 1).await, (true, 0));
    assert_eq!(one(rig, "p", &b, 1).await, (true, 0));
    assert_eq!(one(rig, "q", &a, 1).await, (true, 0));
    assert_eq!(one(rig, "p", &a, 1).await, (false, 0));
    // The lock of that name is something else again.
    rig.hold(&a, &stranger()).await;
}

async fn no_charge_is_admitted(rig: &Rig) {
    let none = rig.charge(together(Vec::new())).await;
    assert!(none.admitted == 1 && none.states.is_empty());
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
    assert!(charged.states.iter().all(|state| in_the_longer(state.reset)), "{charged:?}");
}

async fn workers_divide_the_shards(rig: &Rig) {
    let (a, b, c) = (Node::new(), Node::new(), Node::new());
    let mine = rig.watch(&a, LONG, 32).await;
    let theirs = rig.watch(&b, LONG, 32).await;
    assert_eq!((mine.len(), theirs.len()), (32, 32));
    let all: BTreeSet<u16> = mine.iter().chain(&theirs).copied().collect();
    assert_eq!(all.len(), 64, "a shard has two watchers");
    assert_eq!(rig.watch(&c, LONG, 64).await, [0; 0]);
    assert_eq!(rig.watch(&a, LONG, 64).await, mine, "its own, extended");
}

async fn a_worker_gives_up_what_is_too_much(rig: &Rig) {
    let (a, b) = (Node::new(), Node::new());
    assert_eq!(rig.watch(&a, LONG, 64).await.len(), 64);
    let kept = rig.watch(&a, LONG, 40).await;
    assert_eq!(kept.len(), 40);
    let given = rig.watch(&b, LONG, 64).await;
    assert_eq!(given.len(), 24);
    assert!(given.iter().all(|shard| !kept.contains(shard)));
    assert_eq!(rig.watch(&a, LONG, 0).await, [0; 0]);
    assert_eq!(rig.watch(&b, LONG, 64).await.len(), 64);
}

async fn a_dead_workers_shards_are_free(rig: &Rig) {
    let (dead, b) = (Node::new(), Node::new());
    assert_eq!(rig.watch(&dead, SHORT, 64).await.len(), 64);
    rig.pass(SHORT / 2).await;
    assert_eq!(rig.watch(&b, LONG, 64).await, [0; 0]);
    assert_eq!(rig.watch(&dead, SHORT, 10).await.len(), 10);
    rig.pass(SHORT / 2).await;
    assert_eq!(rig.watch(&b, LONG, 64).await.len(), 54, "ten were extended");
    rig.pass(SHORT / 2).await;
    assert_eq!(rig.watch(&b, LONG, 64).await.len(), 64);
}

async fn present_workers_are_counted(rig: &Rig) {
    let (a, b) = (Node::new(), Node::new());
    assert_eq!(rig.present(&a, Duration::ZERO).await, 0);
    assert_eq!(rig.present(&a, LONG).await, 1);
    assert_eq!(rig.present(&a, LONG).await, 1);
    assert_eq!(rig.present(&b, SHORT).await, 2);
    assert_eq!(rig.present(&a, Duration::ZERO).await, 1);
    rig.pass(SHORT).await;
    assert_eq!(rig.present(&a, LONG).await, 1);
}

async fn a_short_lease_does_not_end_a_long_one(rig: &Rig) {
    let (a, b) = (Node::new(), Node::new());
    rig.present(&a, LONG).await;
    rig.present(&b, SHORT).await;
    rig.pass(SHORT).await;
    assert_eq!(rig.present(&b, SHORT).await, 2);
}

async fn due_names_what_is_due_and_when_the_next_is(rig: &Rig) {
    let [one, two, three] = neighbours::<3>();
    let shard = one.shard();
    let none = rig.due(shard, 10).await;
    assert_eq!((none.names.len(), none.next), (0, None));
    // A held lock with jobs is due when its lease ends.
    for (key, lease) in [(&one, SHORT), (&two, SHORT * 2), (&three, LONG)] {
        rig.acquire(Acquire { lease, ..ask(key, &stranger()) }).await;
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
