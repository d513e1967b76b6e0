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
            SettleChargeCommand, StoreFuture,
        },
        rate::check_item_count,
        wakeups::Wakeups,
    },
    MemoryBackend,
    memory_backend::{ready_ok, ready_result, update_live_nodes},
    memory_shard::ServerTime,
};
use crate::key::Key;

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

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        let acquired = self.with_lock(&call.key, |visit| visit.acquire(&call));
        #[cfg(any(test, feature = "test-kit"))]
        let acquired = self.apply_busy_simulation(&call, acquired);
        ready_ok(acquired)
    }

    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome> {
        ready_ok(self.with_lock(&key, |visit| visit.release(&me, mode)))
    }

    fn send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        Some(ready_ok(self.with_lock(&key, |visit| visit.release(&me, mode))))
    }

    fn release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        ready_ok(self.with_lock(&next.key, |visit| {
            let came = if next.record_name.is_none() { next.resume_seq } else { 0 };
            (visit.release_before_acquire(&me, mode, came), visit.acquire(&next))
        }))
    }

    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        ready_ok(self.with_lock(&key, |visit| visit.refresh_grant(&me)))
    }

    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        ready_ok(self.with_lock(&key, |visit| visit.downgrade(&me, lease)))
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        let one = |item: &LeaseRenewal| {
            self.with_shard(item.key.shard(), |shard, now| shard.renew_lease(item, now))
        };
        ready_ok(items.iter().map(one).collect())
    }

    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        ready_ok(
            self.with_shard(key.shard(), |shard, now| shard.advance_fence(&key, &me, fence, now)),
        )
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let charge = |call: &ChargeCommand| {
            self.with_shard(call.tag.shard(), |shard, now| shard.charge(call, now))
        };
        ChargeFuture::Boxed(ready_result(call.validate().map(|()| match call.merge_duplicates() {
            None => charge(&call),
            Some((merged, places)) => charge(&merged).expand_duplicates(&places),
        })))
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        let settle =
            |()| self.with_shard(call.tag.shard(), |shard, now| shard.settle_charge(&call, now));
        ready_result(call.validate().map(settle))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        let reset =
            |()| self.with_shard(tag.shard(), |shard, _| shard.reset_counters(&tag, &counters));
        ready_result(check_item_count(counters.len()).map(reset))
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        let now = ServerTime::from_micros(self.clock.now_us());
        ready_ok(update_live_nodes(&mut self.live_limiters.lock(), node, lease, now).1)
    }

    /// Ignores `mend`: data of this process cannot be edited by hand, so a finding is a bug of this
    /// store.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, _mend: bool) -> StoreFuture<'_, FsckPartResult> {
        // The scan is complete and the namespace never empty: its name cannot be mistyped.
        let mut found = FsckPartResult {
            is_complete_scan: true,
            namespace_keys: 1,
            ..FsckPartResult::default()
        };
        if let FsckPart::Shard { shard: number, .. } = part {
            let look = |shard: &mut MemoryShard, now| shard.check_consistency(number, now);
            (found.examined, found.findings) = self.with_shard(number, look);
        }
        ready_ok(found)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        ready_ok(())
    }

    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>> {
        self.pubsub.subscribe(&node, hints);
        None
    }
}
