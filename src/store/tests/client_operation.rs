//! Random sequences of operations for [`store_model`](super::store_model) and
//! [`backend_equivalence`](super::backend_equivalence).
//!
//! A [`ClientOperation`] consists of numbers. The token, job or run that it concerns is looked up
//! when it is applied, in the state left by the operations before it. So a shrunk sequence is still
//! one that clients could send. It includes late duplicates: any token may be used again at any
//! time.
//!
//! Every duration is k s and a half, and time advances by whole seconds, so no deadline is near a
//! tie.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::simulated_clients::{NODE_COUNT, SIBLING_OFFSET, TOKEN_COUNT};
use crate::store::backend::{LockMode, MergeMode, Settlement};

#[derive(Debug, Clone)]
pub(super) enum ClientOperation {
    TryAcquire(usize, u64),
    /// Looks up a record first.
    TryAcquireWithRecord(usize, u64, u8),
    /// Acquires, joins the queue, renews the queue entry, confirms an offer, or rejoins after an
    /// offer has lapsed.
    AcquireOrWait(usize, u64, u64),
    Withdraw(usize),
    /// Releases by one of the tokens that last received a grant.
    Release(usize, usize),
    /// Releases, and acquires with the process's other token, in one call.
    ReleaseAndReacquire(usize, u64, u64),
    /// Reads the queue state of a held lock.
    RefreshGrant(usize),
    Downgrade(usize, u64),
    /// An operator takes a lock from its holders.
    ForceRelease(usize),
    Renew(usize, u64),
    Enqueue(JobTemplate),
    /// Repeats the latest enqueue command.
    RepeatEnqueue,
    /// Claims the first job of a lock with a new token.
    ClaimHead(usize, u64),
    /// Repeats the command that began a run, however late.
    RepeatClaim(usize, u64),
    /// Claims any job, first or not.
    ClaimAnyJob(usize, u64),
    /// Settles with or without a claim of the next run.
    Settle(usize, Settlement, NextRunLease),
    /// Repeats the latest settlement, however late.
    RepeatSettle,
    /// Undoes a claim, with or without its job id.
    Unclaim(usize, bool),
    Redrive(usize),
    Purge(usize),
    ReleaseRun(usize),
    RenewRun(usize, u64),
    Cancel(usize),
    Charge(Vec<ChargeTemplate>),
    /// Heartbeat; 0 means that the worker leaves.
    Heartbeat(usize, u64),
    SetPaused(bool),
    /// Polls for due locks in the shard of a lock.
    PollDue(usize),
    AdvanceTime(u64),
}

#[derive(Debug, Clone)]
pub(super) struct JobTemplate {
    pub(super) lock: usize,
    pub(super) bytes: usize,
    pub(super) retry_after_crash: bool,
    pub(super) max_attempts: u32,
    /// Name, fingerprint, retention.
    pub(super) record: Option<(u8, u8, u64)>,
    pub(super) delay: Option<u64>,
    pub(super) deadline: Option<u64>,
    pub(super) skip_on_failure: bool,
    pub(super) needs_worker: bool,
    /// Group and mode.
    pub(super) merge: Option<(u8, MergeMode)>,
}

/// Policy, subject, limit, window, cost.
pub(super) type ChargeTemplate = (u8, usize, u64, u64, u64);

/// Configuration with `default_cases` sequences, or `PROPTEST_CASES` of them if it is set.
pub(super) fn proptest_config(default_cases: u32) -> ProptestConfig {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig::default();
    if is_set { config } else { ProptestConfig { cases: default_cases, ..config } }
}

/// Returns k s and a half.
pub(super) fn seconds_and_half(k: u64) -> Duration {
    Duration::from_millis(k * 1000 + 500)
}

pub(super) fn operation_sequences(
    max_length: usize,
) -> impl Strategy<Value = Vec<ClientOperation>> {
    prop::collection::vec(any_operation(), 1..max_length)
}

/// Strategy for the mode of each token: all exclusive, or a mix with shared holds or permits.
pub(super) fn token_modes() -> impl Strategy<Value = Vec<LockMode>> {
    use LockMode::{Exclusive, Permits, Shared};
    let modes_from = |choices: &[LockMode]| {
        prop::collection::vec(prop::sample::select(choices.to_vec()), TOKEN_COUNT)
    };
    prop_oneof![
        Just(vec![Exclusive; TOKEN_COUNT]),
        modes_from(&[Exclusive, Shared, Shared]),
        modes_from(&[Exclusive, Permits(2), Permits(2), Permits(2), Permits(2)]),
        modes_from(&[Exclusive, Shared, Permits(2), Permits(3)]),
    ]
}

fn any_operation() -> impl Strategy<Value = ClientOperation> {
    // Mostly a few tokens of one lock, so that they contend.
    let few_tokens = || prop::sample::select(vec![0, 2, 4]);
    let token = || prop_oneof![3 => few_tokens(), 1 => few_tokens().prop_map(|n| n + SIBLING_OFFSET), 1 => 0..TOKEN_COUNT];
    let lock = || prop::sample::select(vec![0, 0, 0, 1_usize]);
    // Index from the latest, which is chosen most often.
    let recent = || prop::sample::select(vec![0, 0, 0, 0, 1, 2, 5_usize]);
    let lease = || 0..6_u64;
    let charge = (0..2_u8, 0..2_usize, 1..5_u64, 1..3_u64, 0..4_u64);
    prop_oneof![
        4 => (token(), lease()).prop_map(|(token, k)| ClientOperation::TryAcquire(token, k)),
        2 => (token(), lease(), 0..2_u8).prop_map(|(token, k, name)| ClientOperation::TryAcquireWithRecord(token, k, name)),
        8 => (token(), lease(), 0..9_u64).prop_map(|(token, k, wait)| ClientOperation::AcquireOrWait(token, k, wait)),
        2 => token().prop_map(ClientOperation::Withdraw),
        6 => (lock(), recent()).prop_map(|(lock, n)| ClientOperation::Release(lock, n)),
        3 => (token(), lease(), 0..9_u64).prop_map(|(token, k, wait)| ClientOperation::ReleaseAndReacquire(token, k, wait)),
        2 => token().prop_map(ClientOperation::RefreshGrant),
        2 => (token(), lease()).prop_map(|(token, k)| ClientOperation::Downgrade(token, k)),
        1 => lock().prop_map(ClientOperation::ForceRelease),
        2 => (token(), lease()).prop_map(|(token, k)| ClientOperation::Renew(token, k)),
        6 => job_templates().prop_map(ClientOperation::Enqueue),
        1 => Just(ClientOperation::RepeatEnqueue),
        7 => (lock(), lease()).prop_map(|(lock, k)| ClientOperation::ClaimHead(lock, k)),
        2 => (recent(), lease()).prop_map(|(run, k)| ClientOperation::RepeatClaim(run, k)),
        1 => (recent(), lease()).prop_map(|(job, k)| ClientOperation::ClaimAnyJob(job, k)),
        8 => (recent(), settlements(), next_run_leases())
            .prop_map(|(run, settlement, next)| ClientOperation::Settle(run, settlement, next)),
        2 => Just(ClientOperation::RepeatSettle),
        1 => (recent(), any::<bool>()).prop_map(|(run, with_job)| ClientOperation::Unclaim(run, with_job)),
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
    let policy = (
        prop::option::weighted(0.3, 0..6_u64),
        prop::option::weighted(0.3, 0..8_u64),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop::option::weighted(
            0.3,
            (0..2_u8, prop::sample::select(vec![MergeMode::Coalesce, MergeMode::Supersede])),
        ),
    );
    (lock, 1..25_usize, any::<bool>(), 1..4_u32, record, policy).prop_map(
        |(lock, bytes, retry_after_crash, max_attempts, record, policy)| {
            let (delay, deadline, skip_on_failure, needs_worker, merge) = policy;
            JobTemplate {
                lock,
                bytes,
                retry_after_crash,
                max_attempts,
                record,
                delay,
                deadline,
                skip_on_failure,
                needs_worker,
                merge,
            }
        },
    )
}

/// Lease of the run that is claimed together with a settlement.
pub(super) type NextRunLease = Option<u64>;

fn next_run_leases() -> impl Strategy<Value = NextRunLease> {
    prop::option::of(0..6_u64)
}

fn settlements() -> impl Strategy<Value = Settlement> {
    let response = Bytes::from_static(b"answer");
    (0..8_u64, 0..6_u8).prop_map(move |(k, kind)| match kind {
        0 => Settlement::Done {
            response: response.clone(),
            status: 200,
            retention: seconds_and_half(k),
        },
        1 => Settlement::Dead { reason: "auth", retention: seconds_and_half(k) },
        2 => Settlement::Retry { delay: seconds_and_half(k), reason: "status 503" },
        5 => Settlement::Cancelled { retention: seconds_and_half(k) },
        3 => Settlement::Postpone { delay: seconds_and_half(k), reason: "no key" },
        _ => Settlement::ReturnToQueue { delay: seconds_and_half(k), reason: "drained" },
    })
}
