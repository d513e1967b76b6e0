//! `Backend` for `MemoryBackend`: each method calls the operation in its own file.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

#[cfg(any(test, feature = "fsck"))]
use super::{
    super::fsck::{FsckPart, FsckPartResult},
    memory_shard::MemoryShard,
};
use super::{
    super::{
        backend::{
            AcquireCommand, AcquireReply, Backend, ChargeCommand, ChargeFuture, CounterName,
            GrantRefresh, LeaseRenewal, LockMode, LockToken, NodeId, QuotaSnapshot, ReleaseOutcome,
            SettleChargeCommand, StoreFuture, StoredPolicyChanges,
        },
        rate::check_item_count,
        wakeup_listeners::WakeupListeners,
        wakeup_message::WakeupMessage,
    },
    MemoryBackend,
    local_pubsub::OutgoingWakeup,
    memory_backend::{ready_ok, ready_result, update_live_nodes},
    memory_shard::ServerTime,
};
use crate::key::{Key, SHARD_COUNT};

impl Backend for MemoryBackend {
    fn identities(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.identity)]
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.identity))))
    }

    fn estimated_now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn has_manual_clock(&self) -> bool {
        self.clock.is_manual()
    }

    #[cfg(any(test, feature = "test-kit"))]
    fn note_layer_keys(&self, keys: &[Key]) {
        self.remember_key_forms(keys);
    }

    fn volatile_job_count(&self) -> u64 {
        let pending = |shard| self.with_shard(shard, |shard, now| shard.shard_stats(now).pending);
        (0..SHARD_COUNT).map(pending).sum()
    }

    fn acquire(&self, command: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        let reply = self.with_lock(&command.key, |transaction| transaction.acquire(&command));
        #[cfg(any(test, feature = "test-kit"))]
        let reply = self.apply_busy_simulation(&command, reply);
        ready_ok(reply)
    }

    fn release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> StoreFuture<'_, ReleaseOutcome> {
        ready_ok(self.with_lock(&key, |transaction| transaction.release(&token, mode)))
    }

    fn send_release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        Some(ready_ok(self.with_lock(&key, |transaction| transaction.release(&token, mode))))
    }

    fn release_and_reacquire(
        &self,
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        ready_ok(self.with_lock(&next.key, |transaction| {
            let arrived_us = if next.record_name.is_none() { next.resume_seq } else { 0 };
            (
                transaction.release_before_acquire(&token, mode, arrived_us),
                transaction.acquire(&next),
            )
        }))
    }

    fn refresh_grant(&self, key: Key, token: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        ready_ok(self.with_lock(&key, |transaction| transaction.refresh_grant(&token)))
    }

    fn downgrade(&self, key: Key, token: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&key, |transaction| transaction.downgrade(&token, lease)))
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        let renew_item = |item: &LeaseRenewal| {
            self.with_shard(item.key.shard(), |shard, now| shard.renew_lease(item, now))
        };
        ready_ok(items.iter().map(renew_item).collect())
    }

    fn advance_fence(&self, key: Key, token: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        ready_ok(
            self.with_shard(key.shard(), |shard, now| {
                shard.advance_fence(&key, &token, fence, now)
            }),
        )
    }

    fn charge(&self, command: ChargeCommand) -> ChargeFuture<'_> {
        let charge = |command: &ChargeCommand| {
            self.with_shard(command.tag.shard(), |shard, now| shard.charge(command, now))
        };
        ChargeFuture::Boxed(ready_result(command.validate().map(|()| {
            match command.merge_duplicates() {
                None => charge(&command),
                Some((merged, positions)) => charge(&merged).expand_duplicates(&positions),
            }
        })))
    }

    fn settle_charge(&self, command: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        let settle = |()| {
            self.with_shard(command.tag.shard(), |shard, now| shard.settle_charge(&command, now))
        };
        ready_result(command.validate().map(settle))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        let reset =
            |()| self.with_shard(tag.shard(), |shard, _| shard.reset_counters(&tag, &counters));
        ready_result(check_item_count(counters.len()).map(reset))
    }

    fn block_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
        block: Duration,
    ) -> StoreFuture<'_, ()> {
        let set_blocks = |()| {
            self.with_shard(tag.shard(), |shard, now| {
                shard.block_counters(&tag, &counters, block, now);
            });
        };
        ready_result(check_item_count(counters.len()).map(set_blocks))
    }

    fn read_policy_changes(&self) -> StoreFuture<'_, StoredPolicyChanges> {
        ready_ok(self.policy_changes.lock().clone())
    }

    fn replace_policy_changes(
        &self,
        old_version: u64,
        new: StoredPolicyChanges,
    ) -> StoreFuture<'_, bool> {
        let mut stored = self.policy_changes.lock();
        // As in replace_policy_changes.lua.
        if stored.version == old_version {
            *stored = new;
        } else if *stored != new {
            return ready_ok(false);
        }
        drop(stored);
        let message = WakeupMessage::PoliciesChanged;
        self.pubsub.publish(vec![OutgoingWakeup { recipient: None, message }]);
        ready_ok(true)
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        let now = ServerTime::from_micros(self.clock.now_us());
        ready_ok(update_live_nodes(&mut self.live_limiters.lock(), node, lease, now).live_count)
    }

    /// Ignores `repair`: data of this process cannot be edited by hand, so a finding is a bug of
    /// this store.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, _repair: bool) -> StoreFuture<'_, FsckPartResult> {
        // The scan is complete and the namespace never empty: its name cannot be mistyped.
        let mut result = FsckPartResult {
            is_complete_scan: true,
            namespace_keys: 1,
            ..FsckPartResult::default()
        };
        if let FsckPart::Shard { shard: number, .. } = part {
            let check = |shard: &mut MemoryShard, now| shard.check_consistency(number, now);
            (result.examined, result.findings) = self.with_shard(number, check);
        }
        ready_ok(result)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready_ok(())
    }

    fn subscribe(
        &self,
        node: NodeId,
        wakeups: &Arc<WakeupListeners>,
    ) -> Option<BoxFuture<'static, ()>> {
        self.pubsub.subscribe(&node, wakeups);
        None
    }
}
