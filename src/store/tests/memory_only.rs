//! Tests of the embedded store alone: it frees memory.

use std::time::Duration;

use super::store_harness::{
    SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command, fixed_window_item,
    grouped_charge, new_token, settle_command, try_acquire_command,
};
use crate::{
    Key,
    clock::Clock,
    key::SHARD_COUNT,
    store::{
        ChargeItem, QuotaRule, Store,
        backend::{AcquireCommand, ChargeCommand, EnqueueCommand, Settlement},
    },
};

const KEY_COUNT: usize = 2000;

fn distinct_keys() -> impl Iterator<Item = Key> {
    (0..KEY_COUNT).map(|n| Key::custom(&n.to_string()))
}

fn charge_command(subject: &Key, cost: u64) -> ChargeCommand {
    grouped_charge(vec![fixed_window_item("p", subject, (1, SHORT_TIME), cost)])
}

/// Runs one operation per abandoned value, on keys of their own; each sweeps some expired values.
async fn run_later_steps(rig: &StoreHarness) {
    for n in 0..KEY_COUNT {
        let (key, token) = (Key::custom(&format!("later {n}")), new_token());
        rig.acquire_exclusive(&key, &token).await;
        rig.release(&key, &token).await;
        rig.charge(charge_command(&key, 0)).await;
    }
}

#[tokio::test]
async fn released_lock_leaves_nothing_stored() {
    let rig = StoreHarness::memory();
    for key in distinct_keys() {
        let (a, b) = (new_token(), new_token());
        rig.acquire_exclusive(&key, &a).await;
        rig.expect_busy(&key, &b).await;
        rig.join_queue(&key, &b).await;
        rig.release(&key, &a).await;
        rig.release(&key, &b).await;
        rig.release(&key, &b).await;
    }
    assert_eq!(rig.stored_value_count(), 0);
}

#[tokio::test]
async fn reused_lock_is_stored_once() {
    let rig = StoreHarness::memory();
    let (key, a) = (Key::custom("one"), new_token());
    for _ in 0..KEY_COUNT {
        rig.acquire_exclusive(&key, &a).await;
        rig.release(&key, &a).await;
        rig.acquire_exclusive(&key, &a).await;
        rig.charge(charge_command(&key, 1)).await;
    }
    assert_eq!(rig.stored_value_count(), 2, "the lock and the counter");
}

#[tokio::test]
async fn abandoned_locks_and_counters_are_swept_by_later_steps() {
    let rig = StoreHarness::memory();
    for key in distinct_keys() {
        rig.acquire(AcquireCommand {
            lease: SHORT_TIME,
            ..try_acquire_command(&key, &new_token())
        })
        .await;
        rig.acquire(AcquireCommand {
            max_wait: Some(SHORT_TIME),
            ..try_acquire_command(&key, &new_token())
        })
        .await;
        rig.charge(charge_command(&key, 1)).await;
    }
    assert_eq!(rig.stored_value_count(), 2 * KEY_COUNT);
    rig.advance_past(SHORT_TIME).await;
    run_later_steps(&rig).await;
    assert_eq!(rig.stored_value_count(), 0);
}

#[tokio::test]
async fn ended_jobs_and_records_are_swept_by_later_steps() {
    let rig = StoreHarness::memory();
    for key in distinct_keys() {
        let mut call = enqueue_command(&key);
        call.idempotency_record = Some((key.as_str().into(), "print".into(), SHORT_TIME));
        let (id, run) = (call.id.clone(), new_token());
        rig.enqueue(call).await;
        rig.start_run(&key, &id, &run).await;
        let Settlement::Done { response, .. } = done_settlement() else {
            unreachable!("it is Done")
        };
        let settlement = Settlement::Done { response, status: 200, retention: SHORT_TIME };
        assert!(rig.settle(settle_command(&key, &id, &run, settlement)).await);
    }
    let shards = usize::from(SHARD_COUNT);
    assert_eq!(
        rig.stored_value_count(),
        3 * KEY_COUNT + shards,
        "jobs, records, ended job entries, and one owner entry per shard"
    );
    rig.advance_past(SHORT_TIME).await;
    run_later_steps(&rig).await;
    assert_eq!(rig.stored_value_count(), 0);
}

/// The latest tombstones of an owner are kept, and all others for a minute from their acceptance.
#[tokio::test]
async fn tombstones_per_owner_are_limited() {
    let (rig, key) = (StoreHarness::memory(), Key::custom("one"));
    let mut ids = Vec::new();
    for _ in 0..16_384 + 2 {
        let call = EnqueueCommand { owner: "ada".into(), ..enqueue_command(&key) };
        ids.push(call.id.clone());
        rig.enqueue(call.clone()).await;
        rig.cancel(&call.id).await;
        assert!(rig.purge(&call.id).await);
    }
    assert!(rig.is_tombstone(&ids[0]).await);
    rig.advance_past(Duration::from_secs(61)).await;
    let mut evicted = 0;
    for id in &ids {
        evicted += usize::from(!rig.is_tombstone(id).await);
    }
    assert_eq!(evicted, 2);
}

#[tokio::test]
async fn waiting_jobs_are_never_swept() {
    let rig = StoreHarness::memory();
    let (key, run) = (Key::custom("one"), new_token());
    let id = rig.enqueue_job(&key).await;
    rig.advance_past(Duration::from_secs(100 * 24 * 3600)).await;
    run_later_steps(&rig).await;
    rig.start_run(&key, &id, &run).await;
    rig.advance_past(Duration::from_secs(100 * 24 * 3600)).await;
    run_later_steps(&rig).await;
    rig.claim(claim_command(&key, &id, &run)).await;
    assert_eq!(rig.job_view(&id).await.unwrap().attempts, 1);
}

/// Independent of the offset of the first charge within a millisecond of the clock.
#[tokio::test]
async fn gcra_refill_is_exact_to_the_microsecond() {
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
        for elapsed in [1, 500, 498] {
            clock.advance(micros(elapsed));
            assert_eq!(charge(10).await, 0, "{offset}");
        }
        clock.advance(micros(1));
        assert_eq!(charge(10).await, 1, "{offset}");
    }
}
