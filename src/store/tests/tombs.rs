//! Tombstones of evicted and purged jobs, fairness among owners, and bounds on idempotency records.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;

use super::{
    on_every_store,
    rig::{LONG, Rig, SHORT, deferred, key, settled, stranger},
};
use crate::{
    Key,
    store::backend::{
        BeginDirectOutcome, DirectRunCommand, ENDED_JOB_OVERHEAD, EnqueueCommand, EnqueueOutcome,
        JobId, JobState, LockMode, MergeMode, MergePolicy, Settlement, StorageLimits,
    },
};

on_every_store!(
    a_stranger_evicts_nothing_of_others,
    the_largest_owner_makes_room_for_a_small_one,
    an_equal_share_is_nobody_elses,
    what_was_evicted_leaves_a_tombstone_for_its_time,
    a_retry_of_what_was_evicted_or_purged_does_not_run,
    what_ran_at_once_is_bounded_as_its_layer_says,
    new_keys_are_refused_and_old_ones_are_kept,
    what_is_looked_up_or_merged_needs_no_more_keys_than_there_are,
    a_key_that_is_forgotten_makes_room,
);

/// How a job ends.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Done,
    Dead,
    AtOnce,
}

/// A 16th of what a shard keeps, as a response of a megabyte is by default.
const LARGE: u64 = 1 << 14;

fn room(bytes: u64) -> StorageLimits {
    StorageLimits { ended_bytes: bytes, ..StorageLimits::NONE }
}

fn direct(key: &Key, owner: &str, caps: StorageLimits, record: &str) -> DirectRunCommand {
    DirectRunCommand {
        key: key.clone(),
        token: stranger(),
        mode: LockMode::Exclusive,
        record_name: record.into(),
        id: JobId::new(key),
        owner: owner.to_owned(),
        retention: LONG,
        lease: LONG,
        retry_after_crash: false,
        limits: caps,
        fingerprint: None,
    }
}

async fn begin(rig: &Rig, call: &DirectRunCommand) -> BeginDirectOutcome {
    rig.hold(&call.key, &call.token).await;
    let began = rig.backend().begin_direct(call.clone()).await.unwrap();
    rig.release(&call.key, &call.token).await;
    began
}

fn keyed(key: &Key, owner: &str, caps: StorageLimits, record: &str) -> EnqueueCommand {
    let record = Some((record.into(), "print".into(), LONG));
    EnqueueCommand {
        idempotency_record: record,
        limits: caps,
        owner: owner.into(),
        ..deferred(key)
    }
}

/// A job of this owner that has ended so, with so many bytes kept of it.
async fn ended(
    rig: &Rig,
    key: &Key,
    (owner, how): (&str, How),
    bytes: u64,
    caps: StorageLimits,
) -> JobId {
    let kept = Bytes::from(vec![b'x'; usize::try_from(bytes).unwrap()]);
    if how == How::AtOnce {
        let call = direct(key, owner, caps, &stranger().as_str().replace(':', ""));
        assert_eq!(begin(rig, &call).await, BeginDirectOutcome::Started);
        assert!(rig.backend().finish_direct(call.clone(), Some(kept)).await.unwrap());
        return call.id;
    }
    let mut call = EnqueueCommand { limits: caps, owner: owner.into(), ..deferred(key) };
    let verdict = if how == How::Dead {
        call.envelope = kept;
        Settlement::Dead { reason: "auth", retention: LONG }
    } else {
        Settlement::Done { response: kept, status: 200, retention: LONG }
    };
    let (id, run) = (call.id.clone(), stranger());
    assert!(matches!(rig.enqueue(call).await, EnqueueOutcome::Stored { .. }));
    rig.start(key, &id, &run).await;
    assert!(rig.settle(settled(key, &id, &run, verdict)).await);
    id
}

/// Whether each of them is kept whole; of the others there are tombstones.
async fn kept(rig: &Rig, ids: &[JobId]) -> Vec<bool> {
    let mut kept = Vec::new();
    for id in ids {
        kept.push(!rig.is_tombstone(id).await);
        assert!(rig.job(id).await.is_some(), "nothing is left of it");
    }
    assert!(rig.fsck(false).await.is_clean(), "{}", rig.fsck(false).await);
    kept
}

/// 17 large responses are more than a shard keeps.
async fn a_stranger_evicts_nothing_of_others(rig: &Rig) {
    let mut shards = HashSet::new();
    let keys = (0..).map(|n: u32| Key::custom(&n.to_string()));
    let mut keys = keys.filter(|key| shards.insert(key.shard()));
    for how in [How::Done, How::Dead, How::AtOnce] {
        for owners in [["ada", "bob"], ["", "bob"], ["ada", ""]] {
            let key = keys.next().expect("there are 64 shards");
            let ([mine, stranger], caps) = (owners, room(16 * LARGE));
            let mut ids = vec![ended(rig, &key, (mine, how), 1000, caps).await];
            for _ in 0..17 {
                let _ = ended(rig, &key, (stranger, how), LARGE, caps).await;
            }
            for _ in 0..3 {
                ids.push(ended(rig, &key, (mine, how), LARGE / 100, caps).await);
            }
            assert_eq!(kept(rig, &ids).await, [true; 4], "{owners:?}");
        }
    }
}

async fn the_largest_owner_makes_room_for_a_small_one(rig: &Rig) {
    let (key, caps) = (key(), room(4 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for owner in ["ada", "bob", "bob", "bob", "ada", "eve", ""] {
        ids.push(ended(rig, &key, (owner, How::Done), 100, caps).await);
    }
    // Bob's first for Ada's second, which are two each; Bob's second, of two that are the largest, for Eve's; and Ada's
    // first, of the largest that is left, for the one without an owner.
    assert_eq!(kept(rig, &ids).await, [false, false, false, true, true, true, true]);
}

/// Of what is below that nothing goes, also where it is the oldest.
async fn an_equal_share_is_nobody_elses(rig: &Rig) {
    let (key, caps) = (key(), room(6 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for owner in ["ada", "ada", "ada"] {
        ids.push(ended(rig, &key, (owner, How::Dead), 100, caps).await);
    }
    for _ in 0..9 {
        ids.push(ended(rig, &key, ("bob", How::Dead), 100, caps).await);
    }
    let expected = [[true; 3], [false; 3], [false; 3], [true; 3]].concat();
    assert_eq!(kept(rig, &ids).await, expected);
}

async fn what_was_evicted_leaves_a_tombstone_for_its_time(rig: &Rig) {
    let (key, caps) = (key(), room(0));
    for how in [How::Done, How::Dead, How::AtOnce] {
        let first = ended(rig, &key, ("ada", how), 100, caps).await;
        let before = rig.backend().job_view(first.clone()).await.unwrap().unwrap();
        let _ = ended(rig, &key, ("ada", how), 100, caps).await;
        rig.pass(LONG / 2).await;
        let tomb = rig.backend().job_view(first.clone()).await.unwrap().unwrap();
        assert!(
            tomb.is_tombstone && tomb.response.is_none() && tomb.history.recent_runs.is_empty()
        );
        assert_eq!((&*tomb.owner, tomb.state), ("ada", before.state));
        assert_eq!((tomb.reason, tomb.history.ended_us), (before.reason, before.history.ended_us));
        assert_eq!(rig.backend().job_envelope(first.clone()).await.unwrap(), None);
        for _ in 0..2 {
            assert_eq!(rig.cancel(&first).await, Some(before.state));
            assert_eq!(rig.redrive(&first).await, Some(before.state));
            assert!(!rig.purge(&first).await);
        }
        assert!(rig.is_tombstone(&first).await);
        rig.pass(LONG / 2).await;
        assert_eq!(rig.job(&first).await, None);
    }
}

async fn a_retry_of_what_was_evicted_or_purged_does_not_run(rig: &Rig) {
    let caps = room(0);
    for (name, at_once, purged) in
        [("a", false, false), ("b", false, true), ("c", true, false), ("d", true, true)]
    {
        let key = Key::custom(name);
        let id = if at_once {
            let call = direct(&key, "ada", caps, "idem");
            assert_eq!(begin(rig, &call).await, BeginDirectOutcome::Started);
            assert!(rig.backend().finish_direct(call.clone(), Some("x".into())).await.unwrap());
            call.id
        } else {
            let (call, run) = (keyed(&key, "ada", caps, "idem"), stranger());
            assert!(matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }));
            rig.start(&key, &call.id, &run).await;
            assert!(rig.finish(&key, &call.id, &run).await);
            call.id
        };
        if purged {
            assert!(rig.purge(&id).await);
        } else {
            let _ = ended(rig, &key, ("ada", How::Done), 100, caps).await;
        }
        assert!(rig.is_tombstone(&id).await, "{name}");
        let retry = rig.enqueue(keyed(&key, "ada", caps, "idem")).await;
        assert_eq!(retry, EnqueueOutcome::Duplicate(id.clone()), "{name}");
        let retry = begin(rig, &direct(&key, "ada", caps, "idem")).await;
        assert_eq!(retry, BeginDirectOutcome::RecordTaken(id), "{name}");
        assert!(rig.fsck(false).await.is_clean());
    }
}

/// Also where no request was ever deferred.
async fn what_ran_at_once_is_bounded_as_its_layer_says(rig: &Rig) {
    let (key, caps) = (key(), room(2 * (ENDED_JOB_OVERHEAD + 100)));
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(ended(rig, &key, ("ada", How::AtOnce), 100, caps).await);
    }
    assert_eq!(kept(rig, &ids).await, [false, false, true, true]);
}

async fn new_keys_are_refused_and_old_ones_are_kept(rig: &Rig) {
    let (key, caps) = (key(), StorageLimits { owner_records: 2, ..StorageLimits::NONE });
    let first = keyed(&key, "ada", caps, "one");
    assert!(matches!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { .. }));
    rig.pass(SHORT).await;
    let second = direct(&key, "ada", caps, "two");
    rig.cancel(&first.id).await;
    assert_eq!(begin(rig, &second).await, BeginDirectOutcome::Started);
    assert!(rig.backend().finish_direct(second.clone(), Some("x".into())).await.unwrap());
    // Both ways, and nothing of it is left.
    let third = keyed(&key, "ada", caps, "three");
    let refused = rig.enqueue(third.clone()).await;
    let EnqueueOutcome::TooManyRecords(left) = refused else { panic!("{refused:?}") };
    assert!(left <= LONG && left > LONG / 2, "until the first ends: {left:?}");
    let refused = begin(rig, &direct(&key, "ada", caps, "three")).await;
    assert!(
        matches!(refused, BeginDirectOutcome::TooManyRecords(left) if left > LONG / 2),
        "{refused:?}"
    );
    assert_eq!(rig.job(&third.id).await, None);
    assert_eq!(rig.heads(std::slice::from_ref(&key)).await, [None]);
    // Old ones are known, also to the other way, and others have a bound of their own.
    let known = rig.enqueue(keyed(&key, "ada", caps, "one")).await;
    assert_eq!(known, EnqueueOutcome::Duplicate(first.id.clone()));
    assert_eq!(
        begin(rig, &direct(&key, "ada", caps, "two")).await,
        BeginDirectOutcome::RecordTaken(second.id)
    );
    for other in ["bob", ""] {
        let call = EnqueueCommand { id: JobId::new(&key), ..keyed(&key, other, caps, other) };
        assert!(
            matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }),
            "{other}"
        );
        rig.cancel(&call.id).await;
    }
    // Without a key there is nothing to be remembered.
    let plain = EnqueueCommand { limits: caps, owner: "ada".into(), ..deferred(&key) };
    assert!(matches!(rig.enqueue(plain).await, EnqueueOutcome::Stored { .. }));
    assert!(rig.fsck(false).await.is_clean());
    rig.pass(LONG).await;
    let stored = rig.enqueue(third).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "the first has ended: {stored:?}");
}

async fn what_is_looked_up_or_merged_needs_no_more_keys_than_there_are(rig: &Rig) {
    let (key, caps) = (key(), StorageLimits { owner_records: 1, ..StorageLimits::NONE });
    let merge = || Some(MergePolicy { group: "0f".into(), mode: MergeMode::Coalesce });
    let first = EnqueueCommand { merge: merge(), ..keyed(&key, "ada", caps, "one") };
    assert!(matches!(rig.enqueue(first.clone()).await, EnqueueOutcome::Stored { .. }));
    let refused =
        rig.enqueue(EnqueueCommand { merge: merge(), ..keyed(&key, "ada", caps, "two") }).await;
    assert!(matches!(refused, EnqueueOutcome::TooManyRecords(_)), "{refused:?}");
    let plain =
        EnqueueCommand { limits: caps, owner: "ada".into(), merge: merge(), ..deferred(&key) };
    assert_eq!(rig.enqueue(plain).await, EnqueueOutcome::Merged(first.id.clone()));
    // As a layer looks up what it can't store: not there, and no refusal of its own.
    let look = keyed(&key, "ada", StorageLimits::uniform(0), "two");
    assert_eq!(rig.enqueue(look).await, EnqueueOutcome::Full);
    let look = keyed(&key, "ada", StorageLimits::uniform(0), "one");
    assert_eq!(rig.enqueue(look).await, EnqueueOutcome::Duplicate(first.id));
}

async fn a_key_that_is_forgotten_makes_room(rig: &Rig) {
    let (key, caps) = (key(), StorageLimits { owner_records: 1, ..StorageLimits::NONE });
    for _ in 0..3 {
        let call = direct(&key, "ada", caps, "one");
        assert_eq!(begin(rig, &call).await, BeginDirectOutcome::Started);
        let other = begin(rig, &direct(&key, "ada", caps, "two")).await;
        assert!(matches!(other, BeginDirectOutcome::TooManyRecords(_)), "{other:?}");
        assert!(rig.backend().finish_direct(call.clone(), None).await.unwrap());
        assert_eq!(rig.job(&call.id).await, None);
    }
    // A dead one that is put back keeps its key for as long as it waits.
    let (call, run) = (keyed(&key, "ada", caps, "three"), stranger());
    assert!(matches!(rig.enqueue(call.clone()).await, EnqueueOutcome::Stored { .. }));
    rig.start(&key, &call.id, &run).await;
    let dead = Settlement::Dead { reason: "auth", retention: LONG };
    assert!(rig.settle(settled(&key, &call.id, &run, dead)).await);
    assert_eq!(rig.redrive(&call.id).await, Some(JobState::Queued));
    rig.pass(Duration::from_secs(60 * 60)).await;
    let other = rig.enqueue(keyed(&key, "ada", caps, "four")).await;
    assert!(matches!(other, EnqueueOutcome::TooManyRecords(_)), "{other:?}");
    assert!(rig.fsck(false).await.is_clean());
}
