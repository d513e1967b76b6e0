//! Penalty of a counter: counts refusals, and blocks the counter after too many.

use super::{StoredCounter, StoredCounterKey};
use crate::{
    durations::ceil_millis,
    store::{
        memory::memory_shard::{MemoryShard, ServerTime},
        rate::{Penalty, QuotaRule},
    },
};

impl MemoryShard {
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
        let is_block = matches!(stored, StoredCounter::Blocked);
        // Neither a count nor a block may last longer than one that begins now.
        let max_duration = if is_block { penalty.block_for } else { rule.window() };
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
