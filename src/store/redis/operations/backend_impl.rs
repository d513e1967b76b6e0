//! `Backend` for `RedisBackend`: each method calls the operation in its own file.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::BoxFuture;

use super::super::{RedisBackend, subscriber::MessageSubscriber};
#[cfg(any(test, feature = "fsck"))]
use crate::store::fsck::{FsckPart, FsckPartResult};
use crate::{
    key::Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, Backend, ChargeCommand, ChargeFuture, CounterName,
            GrantRefresh, LeaseRenewal, LockMode, LockToken, NodeId, QuotaSnapshot, ReleaseOutcome,
            SettleChargeCommand, StoreFuture, StoredPolicyChanges,
        },
        wakeup_listeners::WakeupListeners,
    },
};

pub(super) type ScriptArgs = Vec<Vec<u8>>;

impl Backend for RedisBackend {
    fn identities(&self) -> Vec<Arc<str>> {
        self.lanes.server_tracker().identities()
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        Box::pin(self.read_store_identity())
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn acquire_all(&self, calls: &[AcquireCommand]) -> StoreFuture<'_, Option<Vec<AcquireReply>>> {
        Box::pin(self.acquire_lock_set(calls.to_vec()))
    }

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        Box::pin(self.acquire_lock(call))
    }

    fn release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> StoreFuture<'_, ReleaseOutcome> {
        Box::pin(self.release_lock(key, token, mode))
    }

    fn send_release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        self.submit_release(key, token, mode)
    }

    fn release_and_reacquire(
        &self,
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        Box::pin(self.release_and_reacquire_lock(token, mode, next))
    }

    fn refresh_grant(&self, key: Key, token: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        Box::pin(self.refresh_lock_grant(key, token))
    }

    fn downgrade(&self, key: Key, token: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        Box::pin(self.downgrade_lock(key, token, lease))
    }

    fn connection_resets(&self) -> u64 {
        self.lanes.connection_resets()
    }

    fn is_clustered(&self) -> bool {
        self.keys.is_clustered()
    }

    fn receives_messages(&self) -> bool {
        self.target.receives_messages()
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(self.renew_leases(items))
    }

    fn advance_fence(&self, key: Key, token: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        Box::pin(self.advance_lock_fence(key, token, fence))
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        self.charge_counters(call)
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        Box::pin(self.adjust_counters(call))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        Box::pin(self.delete_counters(tag, counters))
    }

    fn block_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
        block: Duration,
    ) -> StoreFuture<'_, ()> {
        Box::pin(self.set_counter_blocks(tag, counters, block))
    }

    fn read_policy_changes(&self) -> StoreFuture<'_, StoredPolicyChanges> {
        Box::pin(self.read_stored_policy_changes())
    }

    fn replace_policy_changes(
        &self,
        old_version: u64,
        new: StoredPolicyChanges,
    ) -> StoreFuture<'_, bool> {
        Box::pin(self.replace_stored_policy_changes(old_version, new))
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        Box::pin(self.register_limiter_node(node, lease))
    }

    fn has_open_breaker(&self) -> bool {
        self.is_any_breaker_open()
    }

    fn server_generation(&self) -> u64 {
        self.lanes.server_tracker().server_generation()
    }

    fn wait_for_replicas(&self, shard: u16, wanted: u32, since: u64) -> StoreFuture<'_, u32> {
        Box::pin(self.wait_for_replica_acks(shard, wanted, since))
    }

    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, repair: bool) -> StoreFuture<'_, FsckPartResult> {
        Box::pin(self.fsck_part(part, repair))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.ping_servers())
    }

    fn ping_shard(&self, shard: u16) -> StoreFuture<'_, ()> {
        Box::pin(self.probe_shard_write(shard))
    }

    fn on_new_server(&self, callback: Weak<dyn Fn() + Send + Sync>) {
        self.lanes.on_server_change(callback);
    }

    fn subscribe(
        &self,
        node: NodeId,
        wakeups: &Arc<WakeupListeners>,
    ) -> Option<BoxFuture<'static, ()>> {
        let subscriber = MessageSubscriber {
            target: self.target.clone(),
            keys: self.keys.clone(),
            node,
            connect_timeout: self.deadline * 4,
            server_changes: self.lanes.server_tracker().subscribe_changes(),
            job_events_wanted: wakeups.jobs_wanted(),
        };
        Some(Box::pin(subscriber.run(wakeups)))
    }
}

pub(super) fn number_arg(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}
