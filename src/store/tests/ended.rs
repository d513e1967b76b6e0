//! Bounds on what is kept of jobs that have ended.

use std::time::Duration;

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, deferred, key, neighbours, settled, stranger},
};
use crate::{
    Key,
    store::backend::{
        BeginDirectOutcome, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome,
        JobId, JobState, LockMode, Settlement, StorageLimits, WebhookJobSpec,
    },
};

on_every_store!(
    bytes_of_responses_are_bounded,
    bytes_of_dead_letters_are_bounded,
    what_was_remembered_is_bounded_too,
    the_newest_stays_whatever_the_bound,
    a_large_one_makes_room_for_itself,
    what_is_gone_makes_room,
    a_late_copy_of_what_made_room_is_not_stored_again,
    what_is_said_of_one_end_is_not_done_to_another,
    a_late_copy_of_what_was_purged_is_not_stored_again,
    a_callback_counts_with_its_request,
    the_oldest_dead_job_goes_when_there_are_too_many,
);

/// Room for so many responses of a hundred bytes.
fn room_for(number: u64) -> StorageLimits {
    StorageLimits { ended_bytes: number * (ENDED_JOB_OVERHEAD + 100), ..StorageLimits::NONE }
}

fn kept(bytes: usize, retention: Duration) -> Settlement {
    Settlement::Done { response: vec![b'x'; bytes].into(), status: 200, retention }
}

const DEAD: Settlement = Settlement::Dead { reason: "auth", retention: LONG };

/// A job that has ended so, of a request of a hundred bytes.
async fn ended(rig: &Rig, key: &Key, caps: StorageLimits, verdict: Settlement) -> JobId {
    let envelope = Bytes::from_static(&[b'e'; 100]);
    let call = EnqueueCommand { limits: caps, envelope, ..deferred(key) };
    let (id, run) = (call.id.clone(), stranger());
    assert!(matches!(rig.enqueue(call).await, EnqueueOutcome::Stored { .. }));
    rig.start(key, &id, &run).await;
    let settle = settled(key, &id, &run, verdict);
    assert!(rig.settle(settle.clone()).await);
    // Repeated it counts once.
    assert!(rig.settle(settle).await);
    id
}

/// Which of these are known still.
async fn known(rig: &Rig, ids: &[JobId]) -> Vec<bool> {
    let mut known = Vec::new();
    for id in ids {
        known.push(rig.state(id).await.is_some());
        let envelope = rig.backend().job_envelope(id.clone()).await.unwrap();
        assert!(known.last() == Some(&true) || envelope.is_none(), "nothing is left of it");
    }
    known
}

async fn bytes_of_responses_are_bounded(rig: &Rig) {
    // All of them of one shard.
    let [one, two] = neighbours::<2>();
    let mut ids = Vec::new();
    for key in [&one, &two, &one, &two] {
        ids.push(ended(rig, key, room_for(2), kept(100, LONG)).await);
    }
    assert_eq!(known(rig, &ids).await, [false, false, true, true], "the oldest go");
    let tally = rig.tally(one.shard()).await;
    assert_eq!((tally.done, tally.trimmed_done), (2, 2));
    // Another shard has room of its own.
    let elsewhere = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let other = elsewhere.into_iter().find(|key| key.shard() != one.shard()).unwrap();
    let _ = ended(rig, &other, room_for(2), kept(100, LONG)).await;
    assert_eq!(rig.tally(one.shard()).await, tally);
    // As much as there may be from now on.
    ids.push(ended(rig, &one, room_for(4), kept(100, LONG)).await);
    ids.push(ended(rig, &one, room_for(4), kept(100, LONG)).await);
    assert_eq!(known(rig, &ids).await, [false, false, true, true, true, true]);
}

/// Of each kind so many: results do not drive out the dead, which somebody has to look at.
async fn bytes_of_dead_letters_are_bounded(rig: &Rig) {
    let key = key();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ended(rig, &key, room_for(2), DEAD).await);
    }
    let mut done = Vec::new();
    for _ in 0..3 {
        done.push(ended(rig, &key, room_for(2), kept(100, LONG)).await);
    }
    assert_eq!(known(rig, &ids).await, [false, true, true]);
    assert_eq!(known(rig, &done).await, [false, true, true]);
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.dead, tally.trimmed_dead), (2, 1));
    // What is put back, or forgotten by hand, leaves its room.
    assert_eq!(rig.redrive(&ids[1]).await, Some(JobState::Queued));
    assert!(rig.purge(&ids[2]).await);
    assert_eq!(rig.cancel(&ids[1]).await, Some(JobState::Cancelled));
    let mut more = Vec::new();
    for _ in 0..2 {
        more.push(ended(rig, &key, room_for(2), DEAD).await);
    }
    assert_eq!(known(rig, &more).await, [true, true]);
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.dead, tally.trimmed_dead), (2, 1));
}

async fn what_was_remembered_is_bounded_too(rig: &Rig) {
    let key = key();
    let first = ended(rig, &key, room_for(2), kept(100, LONG)).await;
    let mut ids = vec![first];
    for n in 0..2 {
        let record = format!("idem{n}").into();
        let (id, owner) = (JobId::new(&key), String::new());
        let (key, me) = (key.clone(), stranger());
        rig.hold(&key, &me).await;
        let call = DirectRunCommand {
            key,
            token: me,
            mode: LockMode::Exclusive,
            record_name: record,
            id,
            owner,
            retention: LONG,
            lease: LONG,
            retry_after_crash: false,
            limits: room_for(2),
            fingerprint: None,
        };
        assert_eq!(
            rig.backend().begin_direct(call.clone()).await.unwrap(),
            BeginDirectOutcome::Started
        );
        rig.release(&call.key, &call.token).await;
        let response = Bytes::from_static(&[b'x'; 100]);
        rig.backend().finish_direct(call.clone(), Some(response)).await.unwrap();
        ids.push(call.id);
    }
    assert_eq!(known(rig, &ids).await, [false, true, true]);
}

/// Whoever waits for it gets it.
async fn the_newest_stays_whatever_the_bound(rig: &Rig) {
    let key = key();
    let none = StorageLimits { ended_bytes: 0, ..StorageLimits::NONE };
    let mut ids = Vec::new();
    // Also where it is forgotten before the others.
    for retention in [LONG, LONG / 2, LONG] {
        ids.push(ended(rig, &key, none, kept(100, retention)).await);
        let mut so_far = vec![false; ids.len()];
        *so_far.last_mut().unwrap() = true;
        assert_eq!(known(rig, &ids).await, so_far);
    }
}

/// Of many small ones a step forgets some; the next one goes on.
async fn a_large_one_makes_room_for_itself(rig: &Rig) {
    let key = key();
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(ended(rig, &key, room_for(30), kept(100, LONG)).await);
    }
    let large = ended(rig, &key, room_for(30), kept(20 * 612, LONG)).await;
    assert!(known(rig, std::slice::from_ref(&large)).await[0]);
    let left = known(rig, &ids).await.into_iter().filter(|known| *known).count();
    // It takes 20 of them and its own facts.
    assert_eq!(left, 9);
}

/// By their time, though nobody has looked meanwhile.
async fn what_is_gone_makes_room(rig: &Rig) {
    let key = key();
    let caps = room_for(3);
    let stays = ended(rig, &key, caps, kept(100, LONG)).await;
    for _ in 0..2 {
        let _ = ended(rig, &key, caps, kept(100, SHORT)).await;
    }
    rig.pass(SHORT).await;
    let mut ids = vec![stays];
    for _ in 0..2 {
        ids.push(ended(rig, &key, caps, kept(100, LONG)).await);
    }
    assert_eq!(known(rig, &ids).await, [true, true, true]);
    let tally = rig.tally(key.shard()).await;
    assert_eq!((tally.done, tally.trimmed_done), (3, 2));
    // All of them: what was counted of them is gone with them.
    rig.pass(2 * LONG).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(ended(rig, &key, caps, kept(100, LONG)).await);
    }
    assert_eq!(known(rig, &ids).await, [true, true, true]);
}

/// It is stored along with it, and so are its bytes, until it is a request of its own.
async fn a_callback_counts_with_its_request(rig: &Rig) {
    let key = key();
    let [_, to] = neighbours::<2>();
    let told = |caps| {
        let envelope = Bytes::from_static(&[b'c'; 50]);
        let call =
            WebhookJobSpec { id: JobId::new(&to), key: to.clone(), envelope, max_attempts: 1 };
        EnqueueCommand { webhook: Some(call), limits: caps, ..deferred(&key) }
    };
    let full = StorageLimits { shard_bytes: 56, ..StorageLimits::NONE };
    assert_eq!(rig.enqueue(told(full)).await, EnqueueOutcome::Full);
    let fits = StorageLimits { shard_bytes: 57, resource_bytes: 57, ..StorageLimits::NONE };
    let call = told(fits);
    assert_eq!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { position: 1 });
    assert_eq!(rig.tally(key.shard()).await.bytes, 57);
    let run = stranger();
    rig.start(&key, &call.id, &run).await;
    assert!(rig.finish(&key, &call.id, &run).await);
    // The call alone.
    assert_eq!(rig.tally(key.shard()).await.bytes, 50);
    let id = call.webhook.unwrap().id;
    let run = stranger();
    rig.start(&to, &id, &run).await;
    assert!(rig.finish(&to, &id, &run).await);
    assert_eq!(rig.tally(key.shard()).await.bytes, 0);
}

/// The newest stays, also where it is forgotten before all the others: its callback is made, and its record goes with it.
async fn the_oldest_dead_job_goes_when_there_are_too_many(rig: &Rig) {
    let key = key();
    rig.fill_graves(key.shard(), 10_000).await;
    let keyed = |record: &str| EnqueueCommand {
        idempotency_record: Some((record.into(), "print".into(), SHORT)),
        ..deferred(&key)
    };
    let mut dead = Vec::new();
    for name in ["one", "two", "three"] {
        let to = Key::for_webhook(name, key.shard());
        let envelope = Bytes::from_static(b"call");
        let call = WebhookJobSpec { id: JobId::new(&to), key: to, envelope, max_attempts: 3 };
        let job = EnqueueCommand { webhook: Some(call.clone()), ..keyed(name) };
        let (id, run) = (job.id.clone(), stranger());
        assert_eq!(rig.enqueue(job).await, EnqueueOutcome::Stored { position: 1 });
        rig.start(&key, &id, &run).await;
        assert!(rig.settle(settled(&key, &id, &run, DEAD)).await);
        assert_eq!(rig.state(&id).await, Some(JobState::Dead), "{name}");
        assert_eq!(rig.state(&call.id).await, Some(JobState::Queued), "{name}: nobody is told");
        assert_eq!(rig.enqueue(keyed(name)).await, EnqueueOutcome::Duplicate(id.clone()), "{name}");
        dead.push(id);
    }
    // Of them, each goes for the next one.
    assert_eq!(known(rig, &dead).await, [false, false, true]);
    assert_eq!(rig.tally(key.shard()).await.dead, 10_000);
    rig.pass(LONG).await;
    for name in ["one", "two", "three"] {
        let stored = rig.enqueue(keyed(name)).await;
        assert!(
            matches!(stored, EnqueueOutcome::Stored { .. }),
            "{name} is remembered for ever: {stored:?}"
        );
    }
}

/// It has run, and would run again.
async fn a_late_copy_of_what_made_room_is_not_stored_again(rig: &Rig) {
    let key = key();
    let call = EnqueueCommand {
        limits: StorageLimits { ended_bytes: 0, ..StorageLimits::NONE },
        ..deferred(&key)
    };
    for call in [call.clone(), EnqueueCommand { id: JobId::new(&key), ..call.clone() }] {
        rig.enqueue(call.clone()).await;
        let run = stranger();
        rig.start(&key, &call.id, &run).await;
        assert!(rig.settle(settled(&key, &call.id, &run, kept(100, LONG))).await);
    }
    assert!(rig.is_tombstone(&call.id).await, "room was made");
    let copy = rig.enqueue(call.clone()).await;
    assert!(matches!(copy, EnqueueOutcome::Stored { .. }), "{copy:?}");
    assert!(rig.is_tombstone(&call.id).await);
    assert_eq!(rig.backend().job_envelope(call.id.clone()).await.unwrap(), None);
    assert!(!rig.purge(&call.id).await, "there is none");
}

/// Who purged it, or put it back, has seen the first one.
async fn what_is_said_of_one_end_is_not_done_to_another(rig: &Rig) {
    let key = key();
    let call = deferred(&key);
    rig.enqueue(call.clone()).await;
    let id = &call.id;
    let mut ends = Vec::new();
    for verdict in [DEAD, DEAD, kept(100, LONG)] {
        if !ends.is_empty() {
            assert_eq!(rig.redrive(id).await, Some(JobState::Queued));
        }
        let run = stranger();
        rig.start(&key, id, &run).await;
        assert!(rig.settle(settled(&key, id, &run, verdict)).await);
        ends.push(rig.ended(id).await);
        rig.pass(SHORT).await;
        let state = rig.state(id).await;
        for seen in &ends[..ends.len() - 1] {
            assert_eq!(rig.backend().redrive_job(id.clone(), *seen).await.unwrap(), state);
            assert!(!rig.backend().purge_job(id.clone(), *seen).await.unwrap());
        }
        assert_eq!(rig.state(id).await, state);
    }
    assert_eq!(rig.state(id).await, Some(JobState::Done));
}

async fn a_late_copy_of_what_was_purged_is_not_stored_again(rig: &Rig) {
    let key = key();
    let record = Some(("idem".into(), "print".to_owned(), LONG));
    let call = EnqueueCommand { idempotency_record: record, ..deferred(&key) };
    rig.enqueue(call.clone()).await;
    let run = stranger();
    rig.start(&key, &call.id, &run).await;
    assert!(rig.settle(settled(&key, &call.id, &run, DEAD)).await);
    assert!(rig.purge(&call.id).await);
    let copy = rig.enqueue(call.clone()).await;
    assert!(matches!(copy, EnqueueOutcome::Stored { .. }), "{copy:?}");
    assert!(rig.is_tombstone(&call.id).await);
    // Nor is a retry.
    let retry = EnqueueCommand { id: JobId::new(&key), ..call.clone() };
    assert_eq!(rig.enqueue(retry).await, EnqueueOutcome::Duplicate(call.id));
}
