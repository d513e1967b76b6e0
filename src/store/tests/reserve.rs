//! The reserve of a shard for locks with short queues and owners with few jobs.

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

/// Enqueues jobs to all locks in turn until all of them are refused. Returns the number of stored
/// jobs.
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
    let (victim, locks) = keys.split_first().unwrap();
    let limited = StorageLimits { owner_jobs: SHARD_JOBS / 2, ..SHARD_LIMITS };
    assert_eq!(
        fill_until_full(rig, locks, limited, |_| "eve".into()).await,
        SHARD_JOBS / 2,
        "its share"
    );
    // Without a limit per owner, only the reserve is left.
    assert_eq!(fill_until_full(rig, locks, SHARD_LIMITS, |_| "eve".into()).await, SHARD_JOBS / 4);
    assert!(enqueue_if_fits(rig, victim, "ada", SHARD_LIMITS, 1).await);
    assert!(enqueue_if_fits(rig, victim, "", SHARD_LIMITS, 1).await);
}

async fn many_owners_on_few_locks_leave_room_for_other_locks(rig: &StoreHarness) {
    for owner in [|n: u64| format!("eve {n}"), |_: u64| String::new()] {
        let [victim, locks @ ..] = keys_of_one_shard::<5>();
        assert_eq!(fill_until_full(rig, &locks, SHARD_LIMITS, owner).await, SHARD_JOBS / 4 * 3);
        for owner in ["ada", ""] {
            assert!(enqueue_if_fits(rig, &victim, owner, SHARD_LIMITS, 1).await, "{owner:?}");
        }
        for key in [&victim].into_iter().chain(&locks) {
            while let Some(id) = rig.heads(std::slice::from_ref(key)).await[0].clone() {
                rig.cancel(&id).await;
            }
        }
    }
}

/// One client can send all of them, each for its own lock.
async fn jobs_without_an_owner_leave_room_for_owners(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<41>();
    let (victim, locks) = keys.split_first().unwrap();
    assert_eq!(
        fill_until_full(rig, locks, SHARD_LIMITS, |_| String::new()).await,
        SHARD_JOBS / 8 * 7
    );
    assert!(
        !enqueue_if_fits(rig, victim, "", SHARD_LIMITS, 1).await,
        "a job without an owner can't use the reserve"
    );
    for n in 1..=4 {
        assert!(enqueue_if_fits(rig, victim, "ada", SHARD_LIMITS, 1).await, "{n}");
    }
    assert!(
        !enqueue_if_fits(rig, victim, "ada", SHARD_LIMITS, 1).await,
        "its queue is short no more"
    );
}

async fn large_jobs_leave_room_for_others(rig: &StoreHarness) {
    let [hot, victim, other] = keys_of_one_shard::<3>();
    let caps = StorageLimits { shard_bytes: KIB * KIB, ..StorageLimits::NONE };
    for _ in 0..12 {
        assert!(enqueue_if_fits(rig, &hot, "eve", caps, 64 * KIB).await);
    }
    assert!(!enqueue_if_fits(rig, &hot, "eve", caps, 64 * KIB).await);
    assert!(!enqueue_if_fits(rig, &other, "eve", caps, 1).await, "it has enough");
    // The first job of a lock and of an owner may be large.
    assert!(enqueue_if_fits(rig, &victim, "ada", caps, 64 * KIB).await);
    assert!(!enqueue_if_fits(rig, &victim, "ada", caps, 1).await);
    assert!(!enqueue_if_fits(rig, &victim, "bob", caps, 1).await, "its lock has enough");
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

/// Returns the number and bytes of the jobs.
fn count_and_bytes<'a>(jobs: impl Iterator<Item = &'a ModeledJob>) -> (u64, u64) {
    jobs.fold((0, 0), |sum, job| (sum.0 + 1, sum.1 + job.bytes))
}

/// The rule of `DeferLayer::max_queue_jobs` for a new job. `others` are the jobs that stay.
fn fits_limits(
    others: &[&ModeledJob],
    new: &ModeledJob,
    replaced_bytes: Option<u64>,
    caps: &StorageLimits,
) -> bool {
    let within = |(jobs, bytes): (u64, u64), max_jobs, max_bytes| {
        jobs < max_jobs && bytes + new.bytes <= max_bytes
    };
    let all = count_and_bytes(others.iter().copied());
    let of_lock =
        count_and_bytes(others.iter().copied().filter(|job| job.lock_index == new.lock_index));
    let of_owner = count_and_bytes(others.iter().copied().filter(|job| job.owner == new.owner));
    let fits_owner = new.owner.is_empty() || within(of_owner, caps.owner_jobs, caps.owner_bytes);
    let fits_share = |eighths: u64| {
        let (jobs, bytes) = (caps.shard_jobs / 8 * eighths, caps.shard_bytes / 8 * eighths);
        let grows = replaced_bytes.is_none_or(|replaced_bytes| replaced_bytes < new.bytes);
        (replaced_bytes.is_some() || all.0 < jobs) && (!grows || all.1 + new.bytes <= bytes)
    };
    let is_few = |(jobs, bytes): (u64, u64), max_few, part| {
        jobs < max_few && (jobs == 0 || bytes + new.bytes <= caps.shard_bytes / part)
    };
    let fits_owner_reserve =
        if new.owner.is_empty() { fits_share(7) } else { is_few(of_owner, 16, 16) };
    within(all, caps.shard_jobs, caps.shard_bytes)
        && fits_owner
        && (fits_share(6) || is_few(of_lock, 4, 64) && fits_owner_reserve)
}

/// Returns the next number below `bound` of a fixed pseudo-random sequence.
fn next_random(rng_state: &mut u64, bound: usize) -> usize {
    *rng_state =
        rng_state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*rng_state >> 40).unwrap() % bound
}

/// Returns a random job. In each phase, one lock, owner or size is the most frequent.
fn random_job(rng_state: &mut u64, keys: &[Key], step: usize) -> ModeledJob {
    let phase = step / 60;
    let mut choose = |count: usize| {
        if next_random(rng_state, 2) == 0 { phase % count } else { next_random(rng_state, count) }
    };
    let (lock, owner) = (choose(keys.len()), ["", "eve", "ada", "bob"][choose(4)]);
    let bytes = if phase.is_multiple_of(2) { 1 } else { [1, KIB, 8 * KIB, 40 * KIB][choose(4)] };
    let group = (next_random(rng_state, 5) == 0).then(|| Arc::from(format!("group of {owner}")));
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
    let (mut rng_state, mut jobs, mut refused_count) = (7, Vec::<ModeledJob>::new(), 0);
    for step in 0..600 {
        if !jobs.is_empty() && next_random(&mut rng_state, 5) == 0 {
            let cancelled = jobs.swap_remove(next_random(&mut rng_state, jobs.len()));
            rig.cancel(&cancelled.id).await;
        }
        let new = random_job(&mut rng_state, &keys, step);
        let is_replaced = |job: &ModeledJob| {
            new.group.is_some() && job.lock_index == new.lock_index && job.group == new.group
        };
        let replaced_bytes = jobs.iter().find(|job| is_replaced(job)).map(|job| job.bytes);
        let others = Vec::from_iter(jobs.iter().filter(|job| !is_replaced(job)));
        let expected = fits_limits(&others, &new, replaced_bytes, &caps);
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
            jobs.retain(|job| !is_replaced(job));
            jobs.push(new);
        } else {
            refused_count += 1;
        }
    }
    assert!((60..540).contains(&refused_count), "{refused_count} were refused");
}
