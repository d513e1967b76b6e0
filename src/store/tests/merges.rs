//! Of the waiting requests of a resource and group one is kept.

use std::time::Duration;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, deferred, done, key, settled, stranger},
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, JobState, MergeMode, MergePolicy, Settlement,
        StorageLimits,
    },
};

on_every_store!(
    the_last_wins,
    the_last_wins_where_there_is_no_bound,
    what_is_past_its_deadline_takes_in_nothing,
    a_late_one_is_put_off_by_each_new_one,
    a_merged_request_is_known_again,
    a_merged_request_is_known_as_long_as_what_it_was_merged_into,
    of_many_that_were_merged_some_are_known_for_their_own_time,
    sent_twice_it_is_merged_once,
    the_last_takes_the_room_of_the_one_before,
    what_waits_for_days_is_known_for_as_long,
);

fn call(key: &Key, wins: MergeMode) -> EnqueueCommand {
    EnqueueCommand { merge: Some(MergePolicy { group: "0f".into(), mode: wins }), ..deferred(key) }
}

async fn stored(rig: &Rig, call: EnqueueCommand) -> JobId {
    let id = call.id.clone();
    let stored = rig.enqueue(call).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
    id
}

async fn the_last_wins(rig: &Rig) {
    let (key, a) = (key(), stranger());
    rig.worker().await;
    rig.hold(&key, &a).await;
    let id = stored(rig, call(&key, MergeMode::Supersede)).await;
    let other = rig.put_off(&key).await;
    let next = call(&key, MergeMode::Supersede);
    assert_eq!(rig.enqueue(next.clone()).await, EnqueueOutcome::Stored { position: 2 });
    let job = rig.job(&id).await.unwrap();
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Cancelled, Some("superseded")));
    assert_eq!(job.position, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [Some(other.clone())]);
    // The one before was offered the lock: now it is the next one's.
    rig.cancel(&other).await;
    rig.release(&key, &a).await;
    let last = stored(rig, call(&key, MergeMode::Supersede)).await;
    assert_eq!(rig.state(&next.id).await, Some(JobState::Cancelled));
    assert_eq!(rig.start(&key, &last, &stranger()).await, 1);
}

async fn the_last_wins_where_there_is_no_bound(rig: &Rig) {
    let key = key();
    let one = || EnqueueCommand {
        limits: StorageLimits::uniform(u64::MAX),
        owner: "one".into(),
        ..call(&key, MergeMode::Supersede)
    };
    let first = stored(rig, one()).await;
    stored(rig, one()).await;
    assert_eq!(rig.state(&first).await, Some(JobState::Cancelled));
}

/// There is no worker that would have ended it.
async fn what_is_past_its_deadline_takes_in_nothing(rig: &Rig) {
    for wins in [MergeMode::Coalesce, MergeMode::Supersede] {
        let key = key();
        let mut first = call(&key, wins);
        first.policy.deadline = Some(SHORT);
        let old = stored(rig, first).await;
        rig.pass(SHORT).await;
        let new = stored(rig, call(&key, wins)).await;
        assert_eq!(rig.state(&old).await, Some(JobState::Expired));
        assert_eq!(rig.state(&new).await, Some(JobState::Queued));
    }
}

/// As a debounce.
async fn a_late_one_is_put_off_by_each_new_one(rig: &Rig) {
    let key = key();
    let late = || {
        let mut call = call(&key, MergeMode::Supersede);
        call.policy.delay = SHORT;
        call
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(stored(rig, late()).await);
        rig.pass(SHORT / 2).await;
        rig.due(key.shard(), 10).await;
        assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    }
    rig.pass(SHORT / 2).await;
    rig.due(key.shard(), 10).await;
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [ids.pop()]);
    for id in ids {
        assert_eq!(rig.state(&id).await, Some(JobState::Cancelled));
    }
}

async fn a_merged_request_is_known_again(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let keyed = |print: &str| EnqueueCommand {
        idempotency_record: Some(("idem".into(), print.into(), LONG)),
        ..call(&key, MergeMode::Coalesce)
    };
    let id = stored(rig, call(&key, MergeMode::Coalesce)).await;
    assert_eq!(rig.enqueue(keyed("one")).await, EnqueueOutcome::Merged(id.clone()));
    rig.start(&key, &id, &run).await;
    // Also when nothing could be merged into it any more.
    assert_eq!(rig.enqueue(keyed("one")).await, EnqueueOutcome::Duplicate(id));
    assert_eq!(rig.enqueue(keyed("two")).await, EnqueueOutcome::FingerprintMismatch);
}

fn keyed(key: &Key, record: &str) -> EnqueueCommand {
    let record = Some((record.into(), "print".into(), SHORT));
    EnqueueCommand { idempotency_record: record, ..call(key, MergeMode::Coalesce) }
}

/// Whether that was accepted under a key itself or not.
async fn a_merged_request_is_known_as_long_as_what_it_was_merged_into(rig: &Rig) {
    for end in ["done", "redriven", "purged"] {
        for first_is_keyed in [false, true] {
            let (key, run) = (Key::custom(&format!("{end} {first_is_keyed}")), stranger());
            let first =
                if first_is_keyed { keyed(&key, "own") } else { call(&key, MergeMode::Coalesce) };
            let id = stored(rig, first).await;
            let merged = ["one", "two"].map(|record| keyed(&key, record));
            for merged in &merged {
                assert_eq!(rig.enqueue(merged.clone()).await, EnqueueOutcome::Merged(id.clone()));
            }
            let are_known = async |when: &str| {
                for record in ["one", "two"] {
                    let told = rig.enqueue(keyed(&key, record)).await;
                    assert_eq!(
                        told,
                        EnqueueOutcome::Duplicate(id.clone()),
                        "{end}, {record}: {when}"
                    );
                }
            };
            rig.pass(SHORT * 2).await;
            are_known("it waits").await;
            rig.start(&key, &id, &run).await;
            let dead = Settlement::Dead { reason: "auth", retention: LONG };
            let verdict = if end == "done" { done() } else { dead };
            assert!(rig.settle(settled(&key, &id, &run, verdict)).await);
            are_known("it is kept").await;
            match end {
                "redriven" => {
                    assert_eq!(rig.redrive(&id).await, Some(JobState::Queued));
                    rig.pass(LONG).await;
                    are_known("it waits again").await;
                    rig.cancel(&id).await;
                }
                "purged" => {
                    assert!(rig.purge(&id).await);
                    are_known("it was purged").await;
                }
                _ => {}
            }
            rig.pass(LONG).await;
            let id = stored(rig, keyed(&key, "one")).await;
            rig.cancel(&id).await;
        }
    }
}

/// What is written on a job has its bounds.
async fn of_many_that_were_merged_some_are_known_for_their_own_time(rig: &Rig) {
    let key = key();
    let id = stored(rig, keyed(&key, "0")).await;
    for n in 1..=32 {
        let merged = keyed(&key, &n.to_string());
        assert_eq!(rig.enqueue(merged).await, EnqueueOutcome::Merged(id.clone()));
    }
    rig.pass(SHORT * 2).await;
    assert_eq!(rig.enqueue(keyed(&key, "31")).await, EnqueueOutcome::Duplicate(id.clone()));
    assert_eq!(rig.enqueue(keyed(&key, "32")).await, EnqueueOutcome::Merged(id));
}

/// Its answer was lost, and it comes again when that job runs.
async fn sent_twice_it_is_merged_once(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let id = stored(rig, call(&key, MergeMode::Coalesce)).await;
    let twice = call(&key, MergeMode::Coalesce);
    assert_eq!(rig.enqueue(twice.clone()).await, EnqueueOutcome::Merged(id.clone()));
    rig.start(&key, &id, &run).await;
    assert_eq!(rig.enqueue(twice).await, EnqueueOutcome::Merged(id.clone()));
    assert!(rig.finish(&key, &id, &run).await);
    // Of the last, the second call finds the job.
    let (one, two) = (call(&key, MergeMode::Supersede), call(&key, MergeMode::Supersede));
    stored(rig, one.clone()).await;
    stored(rig, two.clone()).await;
    assert_eq!(rig.enqueue(one.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.state(&one.id).await, Some(JobState::Cancelled));
    assert_eq!(rig.enqueue(two.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.state(&two.id).await, Some(JobState::Queued));
}

async fn the_last_takes_the_room_of_the_one_before(rig: &Rig) {
    let key = key();
    let caps = StorageLimits {
        resource_jobs: 1,
        resource_bytes: 7,
        shard_jobs: 1,
        shard_bytes: 7,
        ..StorageLimits::NONE
    };
    for delay in [Duration::ZERO, LONG, Duration::ZERO] {
        for _ in 0..3 {
            let mut call = call(&key, MergeMode::Supersede);
            call.policy.delay = delay;
            stored(rig, EnqueueCommand { limits: caps, ..call }).await;
        }
        assert_eq!(
            rig.enqueue(EnqueueCommand { limits: caps, ..deferred(&key) }).await,
            EnqueueOutcome::Full
        );
    }
}

/// Whatever its delay is.
async fn what_waits_for_days_is_known_for_as_long(rig: &Rig) {
    let hour = Duration::from_secs(60 * 60);
    for (delay, later) in [(48 * hour, 71 * hour), (Duration::ZERO, 23 * hour)] {
        let key = Key::custom(&format!("{delay:?}"));
        let mut first = call(&key, MergeMode::Coalesce);
        first.policy.delay = delay;
        let id = stored(rig, first).await;
        rig.advance(later).await;
        assert_eq!(rig.enqueue(call(&key, MergeMode::Coalesce)).await, EnqueueOutcome::Merged(id));
        rig.advance(2 * hour).await;
        stored(rig, call(&key, MergeMode::Coalesce)).await;
    }
}
