//! What can only be seen in the embedded store: that it gives memory back.

use std::time::Duration;

use super::rig::{Rig, SHORT, ask, deferred, done, fixed, settled, stranger, together, visit};
use crate::{
    Key,
    clock::Clock,
    key::SHARD_COUNT,
    store::{
        ChargeItem, QuotaRule, Store,
        backend::{AcquireCommand, ChargeCommand, EnqueueCommand, Settlement},
    },
};

const MANY: usize = 2000;

fn keys() -> impl Iterator<Item = Key> {
    (0..MANY).map(|n| Key::custom(&n.to_string()))
}

fn charge(subject: &Key, cost: u64) -> ChargeCommand {
    together(vec![fixed("p", subject, (1, SHORT), cost)])
}

/// As many later steps as there were ones that left something, about keys of their own.
async fn go_on(rig: &Rig) {
    for n in 0..MANY {
        let (key, me) = (Key::custom(&format!("later {n}")), stranger());
        rig.hold(&key, &me).await;
        rig.release(&key, &me).await;
        rig.charge(charge(&key, 0)).await;
    }
}

#[tokio::test]
async fn a_lock_given_back_leaves_nothing() {
    let rig = Rig::memory();
    for key in keys() {
        let (a, b) = (stranger(), stranger());
        rig.hold(&key, &a).await;
        rig.refused(&key, &b).await;
        rig.join(&key, &b).await;
        rig.release(&key, &a).await;
        rig.release(&key, &b).await;
        rig.release(&key, &b).await;
    }
    assert_eq!(rig.stored(), 0);
}

#[tokio::test]
async fn a_lock_used_again_and_again_is_kept_once() {
    let rig = Rig::memory();
    let (key, a) = (Key::custom("one"), stranger());
    for _ in 0..MANY {
        rig.hold(&key, &a).await;
        rig.release(&key, &a).await;
        rig.hold(&key, &a).await;
        rig.charge(charge(&key, 1)).await;
    }
    assert_eq!(rig.stored(), 2, "the lock and the counter");
}

#[tokio::test]
async fn what_nobody_comes_back_for_is_swept_by_later_steps() {
    let rig = Rig::memory();
    for key in keys() {
        rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &stranger()) }).await;
        rig.acquire(AcquireCommand { max_wait: Some(SHORT), ..ask(&key, &stranger()) }).await;
        rig.charge(charge(&key, 1)).await;
    }
    assert_eq!(rig.stored(), 2 * MANY);
    rig.pass(SHORT).await;
    go_on(&rig).await;
    assert_eq!(rig.stored(), 0);
}

#[tokio::test]
async fn ended_jobs_and_records_are_swept_by_later_steps() {
    let rig = Rig::memory();
    for key in keys() {
        let mut call = deferred(&key);
        call.idempotency_record = Some((key.as_str().into(), "print".into(), SHORT));
        let (id, run) = (call.id.clone(), stranger());
        rig.enqueue(call).await;
        rig.start(&key, &id, &run).await;
        let Settlement::Done { response, .. } = done() else { unreachable!("it is Done") };
        let verdict = Settlement::Done { response, status: 200, retention: SHORT };
        assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
    }
    let shards = usize::from(SHARD_COUNT);
    assert_eq!(rig.stored(), 3 * MANY + shards, "jobs, records, that they are done, and whose");
    rig.pass(SHORT).await;
    go_on(&rig).await;
    assert_eq!(rig.stored(), 0);
}

/// Of one owner the last ones are kept, and the others for a minute from their acceptance.
#[tokio::test]
async fn tombstones_of_an_owner_are_bounded() {
    let (rig, key) = (Rig::memory(), Key::custom("one"));
    let mut ids = Vec::new();
    for _ in 0..16_384 + 2 {
        let call = EnqueueCommand { owner: "ada".into(), ..deferred(&key) };
        ids.push(call.id.clone());
        rig.enqueue(call.clone()).await;
        rig.cancel(&call.id).await;
        assert!(rig.purge(&call.id).await);
    }
    assert!(rig.is_tombstone(&ids[0]).await);
    rig.pass(Duration::from_secs(61)).await;
    let mut gone = 0;
    for id in &ids {
        gone += usize::from(!rig.is_tombstone(id).await);
    }
    assert_eq!(gone, 2);
}

#[tokio::test]
async fn waiting_jobs_are_never_swept() {
    let rig = Rig::memory();
    let (key, run) = (Key::custom("one"), stranger());
    let id = rig.put_off(&key).await;
    rig.pass(Duration::from_secs(100 * 24 * 3600)).await;
    go_on(&rig).await;
    rig.start(&key, &id, &run).await;
    rig.pass(Duration::from_secs(100 * 24 * 3600)).await;
    go_on(&rig).await;
    rig.claim(visit(&key, &id, &run)).await;
    assert_eq!(rig.job(&id).await.unwrap().attempts, 1);
}

/// Wherever in a millisecond of the store's clock it began.
#[tokio::test]
async fn a_pace_is_kept_to_the_microsecond() {
    let micros = Duration::from_micros;
    let rule = QuotaRule::Gcra { limit: 1000, window: Duration::from_secs(1), burst: 10 };
    for offset in (0..1000).step_by(37).chain([999]) {
        let clock = Clock::manual();
        let store = Store::memory_with_clock(clock.clone());
        let charge = async |cost| {
            let (policy, subject) = ("p".into(), Key::custom("x"));
            let item = ChargeItem { policy, subject: subject.clone(), rule, cost, penalty: None };
            let call = ChargeCommand { tag: subject, items: [item].into(), repetitions: 1 };
            store.backend().charge(call).await.expect("it is here").admitted
        };
        clock.advance(micros(offset));
        assert_eq!(charge(1).await, 1);
        for waited in [1, 500, 498] {
            clock.advance(micros(waited));
            assert_eq!(charge(10).await, 0, "{offset}");
        }
        clock.advance(micros(1));
        assert_eq!(charge(10).await, 1, "{offset}");
    }
}
