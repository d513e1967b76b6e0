//! Random sequences of steps, for [`model`](super::model) and [`alike`](super::alike).
//!
//! A [`Move`] is made of numbers. Which token, job or run it is about is looked up when its turn comes,
//! in what the moves before it have left: so a sequence that has been shrunk is still one that clients
//! might make. Late duplicates are part of it: any token may come again at any time.
//!
//! Every duration is k s and a half, and time moves by whole seconds: no deadline is near a tie.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::clients::{NODES, SIBLING, TOKENS};
use crate::store::backend::{LockMode, MergeMode, Settlement};

#[derive(Debug, Clone)]
pub(super) enum Move {
    Try(usize, u64),
    /// Looks for a record first.
    TryNew(usize, u64, u8),
    /// Acquires, joins the line, keeps the place, confirms an offer, or comes back after one lapsed.
    Wait(usize, u64, u64),
    Leave(usize),
    /// One of those who were last told that they have the lock.
    Release(usize, usize),
    /// Gives back, and asks for the other token of the process, in one call.
    HandOn(usize, u64, u64),
    /// Who stands in line.
    Still(usize),
    Downgrade(usize, u64),
    Renew(usize, u64),
    Enqueue(Job),
    /// The call of the latest one again.
    EnqueueAgain,
    /// The first job of a lock, with a token that is new.
    Claim(usize, u64),
    /// The call that began a run again, however late.
    ClaimAgain(usize, u64),
    /// Some job, whether or not it is the first.
    ClaimAny(usize, u64),
    /// With the next run of the line or without.
    Settle(usize, Settlement, Next),
    /// The latest settlement again, however late.
    SettleAgain,
    /// The undo of a claim, by its job or without.
    Unclaim(usize, bool),
    Redrive(usize),
    Purge(usize),
    LeaveRun(usize),
    RenewRun(usize, u64),
    Cancel(usize),
    Charge(Vec<Item>),
    /// 0: it leaves.
    Beat(usize, u64),
    Pause(bool),
    /// Somebody looks what is due in the shard of a lock.
    Due(usize),
    Pass(u64),
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) lock: usize,
    pub(super) bytes: usize,
    pub(super) again: bool,
    pub(super) max_attempts: u32,
    /// Name, fingerprint, life.
    pub(super) record: Option<(u8, u8, u64)>,
    pub(super) delay: Option<u64>,
    pub(super) deadline: Option<u64>,
    pub(super) skip: bool,
    pub(super) needs_worker: bool,
    /// The group.
    pub(super) merge: Option<(u8, MergeMode)>,
}

/// Policy, subject, limit, window, cost.
pub(super) type Item = (u8, usize, u64, u64, u64);

/// How many sequences a test makes: so many, or as many as PROPTEST_CASES says.
pub(super) fn cases(usual: u32) -> ProptestConfig {
    let named = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig::default();
    if named { config } else { ProptestConfig { cases: usual, ..config } }
}

/// k s and a half.
pub(super) fn time(k: u64) -> Duration {
    Duration::from_millis(k * 1000 + 500)
}

pub(super) fn moves(most: usize) -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec(any_move(), 1..most)
}

/// The mode of each token: all exclude each other, or some share and some have permits.
pub(super) fn modes() -> impl Strategy<Value = Vec<LockMode>> {
    use LockMode::{Exclusive, Permits, Shared};
    let of = |some: &[LockMode]| prop::collection::vec(prop::sample::select(some.to_vec()), TOKENS);
    prop_oneof![
        Just(vec![Exclusive; TOKENS]),
        of(&[Exclusive, Shared, Shared]),
        of(&[Exclusive, Permits(2), Permits(2), Permits(2), Permits(2)]),
        of(&[Exclusive, Shared, Permits(2), Permits(3)]),
    ]
}

fn any_move() -> impl Strategy<Value = Move> {
    // Mostly a few, about one lock, who get in each other's way.
    let few = || prop::sample::select(vec![0, 2, 4]);
    let who = || prop_oneof![3 => few(), 1 => few().prop_map(|n| n + SIBLING), 1 => 0..TOKENS];
    let lock = || prop::sample::select(vec![0, 0, 0, 1_usize]);
    // Counted from the latest, which is mostly meant.
    let recent = || prop::sample::select(vec![0, 0, 0, 0, 1, 2, 5_usize]);
    let lease = || 0..6_u64;
    let charge = (0..2_u8, 0..2_usize, 1..5_u64, 1..3_u64, 0..4_u64);
    prop_oneof![
        4 => (who(), lease()).prop_map(|(who, k)| Move::Try(who, k)),
        2 => (who(), lease(), 0..2_u8).prop_map(|(who, k, name)| Move::TryNew(who, k, name)),
        8 => (who(), lease(), 0..9_u64).prop_map(|(who, k, wait)| Move::Wait(who, k, wait)),
        2 => who().prop_map(Move::Leave),
        6 => (lock(), recent()).prop_map(|(lock, n)| Move::Release(lock, n)),
        3 => (who(), lease(), 0..9_u64).prop_map(|(who, k, wait)| Move::HandOn(who, k, wait)),
        2 => who().prop_map(Move::Still),
        2 => (who(), lease()).prop_map(|(who, k)| Move::Downgrade(who, k)),
        2 => (who(), lease()).prop_map(|(who, k)| Move::Renew(who, k)),
        6 => job().prop_map(Move::Enqueue),
        1 => Just(Move::EnqueueAgain),
        7 => (lock(), lease()).prop_map(|(lock, k)| Move::Claim(lock, k)),
        2 => (recent(), lease()).prop_map(|(run, k)| Move::ClaimAgain(run, k)),
        1 => (recent(), lease()).prop_map(|(job, k)| Move::ClaimAny(job, k)),
        8 => (recent(), verdict(), next())
            .prop_map(|(run, verdict, next)| Move::Settle(run, verdict, next)),
        2 => Just(Move::SettleAgain),
        1 => (recent(), any::<bool>()).prop_map(|(run, known)| Move::Unclaim(run, known)),
        2 => recent().prop_map(Move::Redrive),
        1 => recent().prop_map(Move::Purge),
        1 => recent().prop_map(Move::LeaveRun),
        1 => (recent(), lease()).prop_map(|(run, k)| Move::RenewRun(run, k)),
        2 => recent().prop_map(Move::Cancel),
        2 => prop::collection::vec(charge, 1..4).prop_map(Move::Charge),
        3 => (0..NODES, 0..30_u64).prop_map(|(node, k)| Move::Beat(node, k)),
        1 => prop::bool::weighted(0.3).prop_map(Move::Pause),
        3 => lock().prop_map(Move::Due),
        5 => (1..5_u64).prop_map(Move::Pass),
    ]
}

fn job() -> impl Strategy<Value = Job> {
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
            Job {
                lock,
                bytes,
                again,
                max_attempts,
                record,
                delay,
                deadline,
                skip,
                needs_worker,
                merge,
            }
        },
    )
}

/// The lease of the run that goes along with a settlement.
pub(super) type Next = Option<u64>;

fn next() -> impl Strategy<Value = Next> {
    prop::option::of(0..6_u64)
}

fn verdict() -> impl Strategy<Value = Settlement> {
    let response = Bytes::from_static(b"answer");
    (0..8_u64, 0..5_u8).prop_map(move |(k, kind)| match kind {
        0 => Settlement::Done { response: response.clone(), status: 200, retention: time(k) },
        1 => Settlement::Dead { reason: "auth", retention: time(k) },
        2 => Settlement::Retry { delay: time(k), reason: "status 503" },
        3 => Settlement::Postpone { delay: time(k), reason: "no key" },
        _ => Settlement::ReturnToQueue { delay: time(k), reason: "drained" },
    })
}
