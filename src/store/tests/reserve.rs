//! The part of a shard that is reserved for locks with short queues and owners with few jobs.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    on_every_store,
    store_harness::{StoreHarness, enqueue_command, keys_of_one_shard},
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, MergeMode, MergePolicy, StorageLimits,
    },
};

on_every_store!(
    one_owner_on_many_locks_leaves_room_for_others,
    many_owners_on_few_locks_leave_room_for_other_locks,
    jobs_without_an_owner_leave_room_for_owners,
    large_jobs_leave_room_for_others,
    superseding_job_needs_no_reserve,
    random_jobs_match_reserve_rule,
);

const SHARD_JOBS: u64 = 64;

const SHARD_LIMITS: StorageLimits = StorageLimits { shard_jobs: SHARD_JOBS, ..StorageLimits::NONE };

const KIB: u64 = 1024;

async fn enqueue_if_fits(
    rig: &StoreHarness,
    key: &Key,
    owner: &str,
    caps: StorageLimits,
    bytes: u64,
) -> bool {
    let call = EnqueueCommand { owner: owner.into(), limits: caps, ..enqueue_command(key) };
    let envelope = Bytes::from(vec![b'x'; usize::try_from(bytes).unwrap()]);
    match rig.enqueue(EnqueueCommand { envelope, ..call }).await {
        EnqueueOutcome::Stored { .. } => true,
        EnqueueOutcome::Full => false,
        other => panic!("{other:?}"),
    }
}

/// Sends what is there until a round of all locks is refused. Returns how many were stored.
async fn fill_until_full(
    rig: &StoreHarness,
    keys: &[Key],
    caps: StorageLimits,
    owner: impl Fn(u64) -> String,
) -> u64 {
    let mut stored = 0;
    loop {
        let before = stored;
        for key in keys {
            stored += u64::from(enqueue_if_fits(rig, key, &owner(stored), caps, 1).await);
        }
        if stored == before {
            return stored;
        }
    }
}

async fn one_owner_on_many_locks_leaves_room_for_others(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<41>();
    let (victims, locks) = keys.split_first().unwrap();
    let few = StorageLimits { owner_jobs: SHARD_JOBS / 2, ..SHARD_LIMITS };
    assert_eq!(
        fill_until_full(rig, locks, few, |_| "eve".into()).await,
        SHARD_JOBS / 2,
        "its share"
    );
    // Without such a bound only the reserve is left.
    assert_eq!(fill_until_full(rig, locks, SHARD_LIMITS, |_| "eve".into()).await, SHARD_JOBS / 4);
    assert!(enqueue_if_fits(rig, victims, "ada", SHARD_LIMITS, 1).await);
    assert!(enqueue_if_fits(rig, victims, "", SHARD_LIMITS, 1).await);
}

async fn many_owners_on_few_locks_leave_room_for_other_locks(rig: &StoreHarness) {
    for owner in [|n: u64| format!("eve {n}"), |_: u64| String::new()] {
        let [victims, locks @ ..] = keys_of_one_shard::<5>();
        assert_eq!(fill_until_full(rig, &locks, SHARD_LIMITS, owner).await, SHARD_JOBS / 4 * 3);
        for owner in ["ada", ""] {
            assert!(enqueue_if_fits(rig, &victims, owner, SHARD_LIMITS, 1).await, "{owner:?}");
        }
        for key in [&victims].into_iter().chain(&locks) {
            while let Some(id) = rig.heads(std::slice::from_ref(key)).await[0].clone() {
                rig.cancel(&id).await;
            }
        }
    }
}

/// One client can send all of them, each for a lock of its own.
async fn jobs_without_an_owner_leave_room_for_owners(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<41>();
    let (victims, locks) = keys.split_first().unwrap();
    assert_eq!(
        fill_until_full(rig, locks, SHARD_LIMITS, |_| String::new()).await,
        SHARD_JOBS / 8 * 7
    );
    assert!(
        !enqueue_if_fits(rig, victims, "", SHARD_LIMITS, 1).await,
        "nothing tells it from the others"
    );
    for n in 1..=4 {
        assert!(enqueue_if_fits(rig, victims, "ada", SHARD_LIMITS, 1).await, "{n}");
    }
    assert!(
        !enqueue_if_fits(rig, victims, "ada", SHARD_LIMITS, 1).await,
        "its queue is short no more"
    );
}

async fn large_jobs_leave_room_for_others(rig: &StoreHarness) {
    let [hot, victims, other] = keys_of_one_shard::<3>();
    let caps = StorageLimits { shard_bytes: KIB * KIB, ..StorageLimits::NONE };
    for _ in 0..12 {
        assert!(enqueue_if_fits(rig, &hot, "eve", caps, 64 * KIB).await);
    }
    assert!(!enqueue_if_fits(rig, &hot, "eve", caps, 64 * KIB).await);
    assert!(!enqueue_if_fits(rig, &other, "eve", caps, 1).await, "it has enough");
    // The first of a lock and of an owner may be large.
    assert!(enqueue_if_fits(rig, &victims, "ada", caps, 64 * KIB).await);
    assert!(!enqueue_if_fits(rig, &victims, "ada", caps, 1).await);
    assert!(!enqueue_if_fits(rig, &victims, "bob", caps, 1).await, "its lock has enough");
    for _ in 0..2 {
        assert!(enqueue_if_fits(rig, &other, "bob", caps, 8 * KIB).await);
    }
    assert!(!enqueue_if_fits(rig, &other, "bob", caps, 1).await);
}

async fn superseding_job_needs_no_reserve(rig: &StoreHarness) {
    let [hot] = keys_of_one_shard::<1>();
    let merge = MergePolicy { group: "group".into(), mode: MergeMode::Supersede };
    let call = || EnqueueCommand {
        merge: Some(merge.clone()),
        owner: "eve".into(),
        limits: SHARD_LIMITS,
        ..enqueue_command(&hot)
    };
    rig.enqueue(call()).await;
    assert_eq!(
        fill_until_full(rig, std::slice::from_ref(&hot), SHARD_LIMITS, |_| "eve".into()).await,
        47
    );
    let stored = rig.enqueue(call()).await;
    assert!(matches!(stored, EnqueueOutcome::Stored { .. }), "{stored:?}");
}

/// A job of the model.
struct ModeledJob {
    id: JobId,
    lock_index: usize,
    owner: &'static str,
    bytes: u64,
    group: Option<Arc<str>>,
}

/// Number and bytes of these jobs.
fn count_and_bytes<'a>(jobs: impl Iterator<Item = &'a ModeledJob>) -> (u64, u64) {
    jobs.fold((0, 0), |sum, job| (sum.0 + 1, sum.1 + job.bytes))
}

/// The rule, as `DeferLayer::max_queue_jobs` tells it, of jobs that are not there yet. `rest`: those that stay.
fn fits_limits(
    rest: &[&ModeledJob],
    new: &ModeledJob,
    old: Option<u64>,
    caps: &StorageLimits,
) -> bool {
    let within = |(jobs, bytes): (u64, u64), most_jobs, most_bytes| {
        jobs < most_jobs && bytes + new.bytes <= most_bytes
    };
    let all = count_and_bytes(rest.iter().copied());
    let of_lock =
        count_and_bytes(rest.iter().copied().filter(|job| job.lock_index == new.lock_index));
    let of_owner = count_and_bytes(rest.iter().copied().filter(|job| job.owner == new.owner));
    let share = new.owner.is_empty() || within(of_owner, caps.owner_jobs, caps.owner_bytes);
    let part = |eighths: u64| {
        let (jobs, bytes) = (caps.shard_jobs / 8 * eighths, caps.shard_bytes / 8 * eighths);
        let grows = old.is_none_or(|old| old < new.bytes);
        (old.is_some() || all.0 < jobs) && (!grows || all.1 + new.bytes <= bytes)
    };
    let is_few = |(jobs, bytes): (u64, u64), few, part| {
        jobs < few && (jobs == 0 || bytes + new.bytes <= caps.shard_bytes / part)
    };
    let is_known = if new.owner.is_empty() { part(7) } else { is_few(of_owner, 16, 16) };
    within(all, caps.shard_jobs, caps.shard_bytes)
        && share
        && (part(6) || is_few(of_lock, 4, 64) && is_known)
}

/// The next number below `below`, of a sequence that is always the same.
fn next_random(dice: &mut u64, below: usize) -> usize {
    *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*dice >> 40).unwrap() % below
}

/// Now and then one lock, owner or size is that of most jobs.
fn random_job(dice: &mut u64, keys: &[Key], step: usize) -> ModeledJob {
    let phase = step / 60;
    let mut choose =
        |of: usize| if next_random(dice, 2) == 0 { phase % of } else { next_random(dice, of) };
    let (lock, owner) = (choose(keys.len()), ["", "eve", "ada", "bob"][choose(4)]);
    let bytes = if phase.is_multiple_of(2) { 1 } else { [1, KIB, 8 * KIB, 40 * KIB][choose(4)] };
    let group = (next_random(dice, 5) == 0).then(|| Arc::from(format!("group of {owner}")));
    ModeledJob { id: JobId::new(&keys[lock]), lock_index: lock, owner, bytes, group }
}

async fn random_jobs_match_reserve_rule(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<9>();
    let caps = StorageLimits {
        shard_jobs: 64,
        shard_bytes: KIB * KIB,
        owner_jobs: 40,
        ..StorageLimits::NONE
    };
    let (mut dice, mut jobs, mut full) = (7, Vec::<ModeledJob>::new(), 0);
    for step in 0..600 {
        if !jobs.is_empty() && next_random(&mut dice, 5) == 0 {
            let gone = jobs.swap_remove(next_random(&mut dice, jobs.len()));
            rig.cancel(&gone.id).await;
        }
        let new = random_job(&mut dice, &keys, step);
        let is_old = |job: &ModeledJob| {
            new.group.is_some() && job.lock_index == new.lock_index && job.group == new.group
        };
        let old = jobs.iter().find(|job| is_old(job)).map(|job| job.bytes);
        let rest = Vec::from_iter(jobs.iter().filter(|job| !is_old(job)));
        let expected = fits_limits(&rest, &new, old, &caps);
        let call = EnqueueCommand {
            id: new.id.clone(),
            envelope: Bytes::from(vec![b'x'; usize::try_from(new.bytes).unwrap()]),
            owner: new.owner.into(),
            merge: new.group.clone().map(|group| MergePolicy { group, mode: MergeMode::Supersede }),
            limits: caps,
            ..enqueue_command(&keys[new.lock_index])
        };
        let stored = rig.enqueue(call).await;
        let is_stored = matches!(stored, EnqueueOutcome::Stored { .. });
        assert_eq!(is_stored, expected, "step {step}: {stored:?}");
        if expected {
            jobs.retain(|job| !is_old(job));
            jobs.push(new);
        } else {
            full += 1;
        }
    }
    assert!((60..540).contains(&full), "{full} were refused");
}
