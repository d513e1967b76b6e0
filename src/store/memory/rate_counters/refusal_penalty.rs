//! Penalty of a counter: counts refusals, and blocks the counter after too many.

use std::{sync::Arc, time::Duration};

use super::{StoredCounter, StoredCounterKey};
use crate::{
    durations::ceil_millis,
    key::Key,
    store::{
        memory::memory_shard::{MemoryShard, ServerTime},
        rate::{CounterName, Penalty, QuotaRule},
    },
};

impl MemoryShard {
    /// `block_counters.lua`: blocks counters, or ends their blocks if the duration is zero.
    pub(in crate::store::memory) fn block_counters(
        &mut self,
        tag: &Key,
        counters: &[CounterName],
        block: Duration,
        now: ServerTime,
    ) {
        for CounterName { policy, subject, algorithm } in counters {
            let key = StoredCounterKey {
                algorithm: *algorithm,
                is_refusal_count: true,
                policy: Arc::clone(policy),
                subject: subject.clone(),
                tag: tag.clone(),
            };
            if block.is_zero() {
                self.counters.remove(&key);
            } else {
                let stored = StoredCounter::BlockedByOperator(ceil_millis(block));
                self.counters.insert(&key, stored, Some(now.deadline_after(block)));
            }
        }
    }

    /// Returns the remaining time for which the counter is blocked, in ms.
    pub(super) fn block_remaining_ms(
        &mut self,
        key: &StoredCounterKey,
        rule: &QuotaRule,
        penalty: Penalty,
        now: ServerTime,
    ) -> u64 {
        let key = refusals_key(key);
        let Some((stored, expires_ms)) = self.stored_counter(&key, now) else { return 0 };
        let (is_block, max_duration) = match stored {
            StoredCounter::Blocked => (true, penalty.block_for),
            StoredCounter::BlockedByOperator(block_ms) => (true, Duration::from_millis(block_ms)),
            _ => (false, rule.window()),
        };
        // Neither a count nor a block may last longer than one that begins now.
        let max_expires_ms = now.deadline_after(max_duration);
        if expires_ms > max_expires_ms {
            self.counters.set_expiry(&key, Some(max_expires_ms));
        }
        if is_block { expires_ms.min(max_expires_ms) - now.ms } else { 0 }
    }

    /// Counts refusals. Returns the time for which the counter is blocked, in ms.
    pub(super) fn count_refusals(
        &mut self,
        key: &StoredCounterKey,
        rule: &QuotaRule,
        penalty: Penalty,
        refused: u64,
        now: ServerTime,
    ) -> u64 {
        let key = refusals_key(key);
        let max_expires_ms = now.deadline_after(rule.window());
        let (old_count, expires_ms) = match self.stored_counter(&key, now) {
            Some((StoredCounter::Refusals(count), expires_ms)) => {
                (count, expires_ms.min(max_expires_ms))
            }
            _ => (0, max_expires_ms),
        };
        let refusal_count = old_count + refused;
        if refusal_count < u64::from(penalty.after_refusals) {
            self.counters.insert(&key, StoredCounter::Refusals(refusal_count), Some(expires_ms));
            return 0;
        }
        self.counters.insert(
            &key,
            StoredCounter::Blocked,
            Some(now.deadline_after(penalty.block_for)),
        );
        ceil_millis(penalty.block_for)
    }
}

fn refusals_key(key: &StoredCounterKey) -> StoredCounterKey {
    StoredCounterKey { is_refusal_count: true, ..key.clone() }
}
