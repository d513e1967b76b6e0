//! Builders of commands, with defaults for tests.

use std::time::Duration;

use bytes::Bytes;

use super::LONG_TIME;
use crate::{
    key::Key,
    store::{
        backend::{
            AcquireCommand, ChargeCommand, ClaimCommand, EnqueueCommand, JobId, JobPolicy,
            LockMode, LockToken, NextClaim, NodeId, SettleCommand, Settlement, StorageLimits,
        },
        rate::{ChargeItem, QuotaRule},
    },
};

/// Returns the token of a new process.
pub(in crate::store::tests) fn new_token() -> LockToken {
    LockToken::new(&NodeId::new())
}

pub(in crate::store::tests) fn test_key() -> Key {
    Key::path_param("id", "7")
}

/// Returns different keys of one shard.
pub(in crate::store::tests) fn keys_of_one_shard<const N: usize>() -> [Key; N] {
    let first = test_key();
    let mut keys = vec![first.clone()];
    let candidates = (0..).map(|n: u32| Key::custom(&n.to_string()));
    keys.extend(candidates.filter(|key| key.shard() == first.shard()).take(N - 1));
    keys.try_into().unwrap()
}

/// Tries to acquire, with a long lease.
pub(in crate::store::tests) fn try_acquire_command(key: &Key, token: &LockToken) -> AcquireCommand {
    AcquireCommand {
        key: key.clone(),
        token: token.clone(),
        mode: LockMode::Exclusive,
        lease: LONG_TIME,
        max_wait: None,
        resume_seq: 0,
        record_name: None,
    }
}

/// Acquires or waits, with a long lease and a long wait.
pub(in crate::store::tests) fn wait_command(key: &Key, token: &LockToken) -> AcquireCommand {
    AcquireCommand { max_wait: Some(LONG_TIME), ..try_acquire_command(key, token) }
}

/// A job that must not run again after a crash.
pub(in crate::store::tests) fn enqueue_command(key: &Key) -> EnqueueCommand {
    EnqueueCommand {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from_static(b"request"),
        policy: JobPolicy { max_attempts: 3, ..JobPolicy::default() },
        merge: None,
        idempotency_record: None,
        limits: StorageLimits {
            resource_jobs: 100,
            resource_bytes: 10_000,
            shard_jobs: 100,
            shard_bytes: 10_000,
            ..StorageLimits::NONE
        },
        owner: String::new(),
        route: String::new(),
        webhook: None,
    }
}

/// A job that may run again after a crash.
pub(in crate::store::tests) fn retryable_enqueue_command(key: &Key) -> EnqueueCommand {
    let call = enqueue_command(key);
    EnqueueCommand { policy: JobPolicy { retry_after_crash: true, ..call.policy }, ..call }
}

/// Charges all items once, in the shard of the first one's subject.
pub(in crate::store::tests) fn grouped_charge(items: Vec<ChargeItem>) -> ChargeCommand {
    let tag = items.first().map_or_else(test_key, |item| item.subject.clone());
    ChargeCommand { tag, items: items.into(), repetitions: 1 }
}

/// An item of a fixed window.
pub(in crate::store::tests) fn fixed_window_item(
    policy: &str,
    subject: &Key,
    (limit, window): (u64, Duration),
    cost: u64,
) -> ChargeItem {
    let (policy, subject) = (policy.into(), subject.clone());
    ChargeItem { policy, subject, rule: QuotaRule::Fixed { limit, window }, cost, penalty: None }
}

pub(in crate::store::tests) fn claim_command(
    key: &Key,
    id: &JobId,
    token: &LockToken,
) -> ClaimCommand {
    ClaimCommand {
        key: key.clone(),
        id: id.clone(),
        token: token.clone(),
        lease: LONG_TIME,
        retention: LONG_TIME,
    }
}

pub(in crate::store::tests) fn settle_command(
    key: &Key,
    id: &JobId,
    token: &LockToken,
    settlement: Settlement,
) -> SettleCommand {
    SettleCommand {
        key: key.clone(),
        id: id.clone(),
        token: token.clone(),
        settlement,
        next_claim: None,
    }
}

pub(in crate::store::tests) fn next_claim(token: &LockToken) -> NextClaim {
    NextClaim { token: token.clone(), lease: LONG_TIME, retention: LONG_TIME }
}

pub(in crate::store::tests) fn done_settlement() -> Settlement {
    Settlement::Done { response: Bytes::from_static(b"answer"), status: 200, retention: LONG_TIME }
}
