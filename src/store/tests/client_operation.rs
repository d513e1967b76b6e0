//! Random sequences of steps, for [`store_model`](super::store_model) and
//! [`backend_equivalence`](super::backend_equivalence).
//!
//! A [`ClientOperation`] is made of numbers. Which token, job or run it is about is looked up when
//! its turn comes, in what the operations before it have left: so a sequence that has been shrunk
//! is still one that clients might make. Late duplicates are part of it: any token may come again
//! at any time.
//!
//! Every duration is k s and a half, and time moves by whole seconds: no deadline is near a tie.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::simulated_clients::{NODE_COUNT, SIBLING_OFFSET, TOKEN_COUNT};
use crate::store::backend::{LockMode, MergeMode, Settlement};

#[derive(Debug, Clone)]
pub(super) enum ClientOperation {
    TryAcquire(usize, u64),
    /// Looks for a record first.
    TryAcquireWithRecord(usize, u64, u8),
    /// Acquires, joins the line, keeps the place, confirms an offer, or comes back after one lapsed.
    AcquireOrWait(usize, u64, u64),
    Withdraw(usize),
    /// One of those who were last told that they have the lock.
    Release(usize, usize),
    /// Gives back, and asks for the other token of the process, in one call.
    ReleaseAndReacquire(usize, u64, u64),
    /// Who stands in line.
    RefreshGrant(usize),
    Downgrade(usize, u64),
    Renew(usize, u64),
    Enqueue(JobTemplate),
    /// The call of the latest one again.
    RepeatEnqueue,
    /// The first job of a lock, with a token that is new.
    ClaimHead(usize, u64),
    /// The call that began a run again, however late.
    RepeatClaim(usize, u64),
    /// Some job, whether or not it is the first.
    ClaimAnyJob(usize, u64),
    /// With the next run of the line or without.
    Settle(usize, Settlement, NextRunLease),
    /// The latest settlement again, however late.
    RepeatSettle,
    /// The undo of a claim, by its job or without.
    Unclaim(usize, bool),
    Redrive(usize),
    Purge(usize),
    ReleaseRun(usize),
    RenewRun(usize, u64),
    Cancel(usize),
    Charge(Vec<ChargeTemplate>),
    /// 0: it leaves.
    Heartbeat(usize, u64),
    SetPaused(bool),
    /// Somebody looks what is due in the shard of a lock.
    PollDue(usize),
    AdvanceTime(u64),
}

#[derive(Debug, Clone)]
pub(super) struct JobTemplate {
    pub(super) lock: usize,
    pub(super) bytes: usize,
    pub(super) retry_after_crash: bool,
    pub(super) max_attempts: u32,
    /// Name, fingerprint, life.
    pub(super) record: Option<(u8, u8, u64)>,
    pub(super) delay: Option<u64>,
    pub(super) deadline: Option<u64>,
    pub(super) skip_on_failure: bool,
    pub(super) needs_worker: bool,
    /// The group.
    pub(super) merge: Option<(u8, MergeMode)>,
}

/// Policy, subject, limit, window, cost.
pub(super) type ChargeTemplate = (u8, usize, u64, u64, u64);

/// How many sequences a test makes: so many, or as many as PROPTEST_CASES says.
pub(super) fn proptest_config(usual: u32) -> ProptestConfig {
    let named = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig::default();
    if named { config } else { ProptestConfig { cases: usual, ..config } }
}

/// k s and a half.
pub(super) fn seconds_and_half(k: u64) -> Duration {
    Duration::from_millis(k * 1000 + 500)
}

pub(super) fn operation_sequences(most: usize) -> impl Strategy<Value = Vec<ClientOperation>> {
    prop::collection::vec(any_operation(), 1..most)
}

/// The mode of each token: all exclude each other, or some share and some have permits.
pub(super) fn token_modes() -> impl Strategy<Value = Vec<LockMode>> {
    use LockMode::{Exclusive, Permits, Shared};
    let of =
        |some: &[LockMode]| prop::collection::vec(prop::sample::select(some.to_vec()), TOKEN_COUNT);
    prop_oneof![
        Just(vec![Exclusive; TOKEN_COUNT]),
        of(&[Exclusive, Shared, Shared]),
        of(&[Exclusive, Permits(2), Permits(2), Permits(2), Permits(2)]),
        of(&[Exclusive, Shared, Permits(2), Permits(3)]),
    ]
}

fn any_operation() -> impl Strategy<Value = ClientOperation> {
    // Mostly a few, about one lock, who get in each other's way.
    let few = || prop::sample::select(vec![0, 2, 4]);
    let who = || prop_oneof![3 => few(), 1 => few().prop_map(|n| n + SIBLING_OFFSET), 1 => 0..TOKEN_COUNT];
    let lock = || prop::sample::select(vec![0, 0, 0, 1_usize]);
    // Counted from the latest, which is mostly meant.
    let recent = || prop::sample::select(vec![0, 0, 0, 0, 1, 2, 5_usize]);
    let lease = || 0..6_u64;
    let charge = (0..2_u8, 0..2_usize, 1..5_u64, 1..3_u64, 0..4_u64);
    prop_oneof![
        4 => (who(), lease()).prop_map(|(who, k)| ClientOperation::TryAcquire(who, k)),
        2 => (who(), lease(), 0..2_u8).prop_map(|(who, k, name)| ClientOperation::TryAcquireWithRecord(who, k, name)),
        8 => (who(), lease(), 0..9_u64).prop_map(|(who, k, wait)| ClientOperation::AcquireOrWait(who, k, wait)),
        2 => who().prop_map(ClientOperation::Withdraw),
        6 => (lock(), recent()).prop_map(|(lock, n)| ClientOperation::Release(lock, n)),
        3 => (who(), lease(), 0..9_u64).prop_map(|(who, k, wait)| ClientOperation::ReleaseAndReacquire(who, k, wait)),
        2 => who().prop_map(ClientOperation::RefreshGrant),
        2 => (who(), lease()).prop_map(|(who, k)| ClientOperation::Downgrade(who, k)),
        2 => (who(), lease()).prop_map(|(who, k)| ClientOperation::Renew(who, k)),
        6 => job_templates().prop_map(ClientOperation::Enqueue),
        1 => Just(ClientOperation::RepeatEnqueue),
        7 => (lock(), lease()).prop_map(|(lock, k)| ClientOperation::ClaimHead(lock, k)),
        2 => (recent(), lease()).prop_map(|(run, k)| ClientOperation::RepeatClaim(run, k)),
        1 => (recent(), lease()).prop_map(|(job, k)| ClientOperation::ClaimAnyJob(job, k)),
        8 => (recent(), settlements(), next_run_leases())
            .prop_map(|(run, verdict, next)| ClientOperation::Settle(run, verdict, next)),
        2 => Just(ClientOperation::RepeatSettle),
        1 => (recent(), any::<bool>()).prop_map(|(run, known)| ClientOperation::Unclaim(run, known)),
        2 => recent().prop_map(ClientOperation::Redrive),
        1 => recent().prop_map(ClientOperation::Purge),
        1 => recent().prop_map(ClientOperation::ReleaseRun),
        1 => (recent(), lease()).prop_map(|(run, k)| ClientOperation::RenewRun(run, k)),
        2 => recent().prop_map(ClientOperation::Cancel),
        2 => prop::collection::vec(charge, 1..4).prop_map(ClientOperation::Charge),
        3 => (0..NODE_COUNT, 0..30_u64).prop_map(|(node, k)| ClientOperation::Heartbeat(node, k)),
        1 => prop::bool::weighted(0.3).prop_map(ClientOperation::SetPaused),
        3 => lock().prop_map(ClientOperation::PollDue),
        5 => (1..5_u64).prop_map(ClientOperation::AdvanceTime),
    ]
}

fn job_templates() -> impl Strategy<Value = JobTemplate> {
    let record = prop::option::weighted(0.4, (0..2_u8, 0..2_u8, 0..8_u64));
    let lock = prop::sample::select(vec![0, 0, 0, 1_usize]);
    let terms = (
        prop::option::weighted(0.3, 0..6_u64),
        prop::option::weighted(0.3, 0..8_u64),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop::option::weighted(
            0.3,
            (0..2_u8, prop::sample::select(vec![MergeMode::Coalesce, MergeMode::Supersede])),
        ),
    );
    (lock, 1..25_usize, any::<bool>(), 1..4_u32, record, terms).prop_map(
        |(lock, bytes, again, max_attempts, record, terms)| {
            let (delay, deadline, skip, needs_worker, merge) = terms;
            JobTemplate {
                lock,
                bytes,
                retry_after_crash: again,
                max_attempts,
                record,
                delay,
                deadline,
                skip_on_failure: skip,
                needs_worker,
                merge,
            }
        },
    )
}

/// The lease of the run that goes along with a settlement.
pub(super) type NextRunLease = Option<u64>;

fn next_run_leases() -> impl Strategy<Value = NextRunLease> {
    prop::option::of(0..6_u64)
}

fn settlements() -> impl Strategy<Value = Settlement> {
    let response = Bytes::from_static(b"answer");
    (0..8_u64, 0..5_u8).prop_map(move |(k, kind)| match kind {
        0 => Settlement::Done {
            response: response.clone(),
            status: 200,
            retention: seconds_and_half(k),
        },
        1 => Settlement::Dead { reason: "auth", retention: seconds_and_half(k) },
        2 => Settlement::Retry { delay: seconds_and_half(k), reason: "status 503" },
        3 => Settlement::Postpone { delay: seconds_and_half(k), reason: "no key" },
        _ => Settlement::ReturnToQueue { delay: seconds_and_half(k), reason: "drained" },
    })
}
