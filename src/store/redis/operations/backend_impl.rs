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
            SettleChargeCommand, StoreFuture,
        },
        wakeups::Wakeups,
    },
};

pub(super) type ScriptArgs = Vec<Vec<u8>>;

impl Backend for RedisBackend {
    fn identities(&self) -> Vec<Arc<str>> {
        self.lanes.server_tracker().identities()
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        Box::pin(self.do_current_identity())
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn acquire_all(&self, calls: &[AcquireCommand]) -> StoreFuture<'_, Option<Vec<AcquireReply>>> {
        Box::pin(self.do_acquire_all(calls.to_vec()))
    }

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        Box::pin(self.do_acquire(call))
    }

    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome> {
        Box::pin(self.do_release(key, me, mode))
    }

    fn send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        self.do_send_release(key, me, mode)
    }

    fn release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        Box::pin(self.do_release_and_reacquire(me, mode, next))
    }

    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        Box::pin(self.do_refresh_grant(key, me))
    }

    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        Box::pin(self.do_downgrade(key, me, lease))
    }

    fn connection_resets(&self) -> u64 {
        self.lanes.connection_resets()
    }

    fn is_clustered(&self) -> bool {
        self.keys.is_clustered()
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        Box::pin(self.do_renew(items))
    }

    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        Box::pin(self.do_advance_fence(key, me, fence))
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        self.do_charge(call)
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        Box::pin(self.do_settle_charge(call))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        Box::pin(self.do_reset_counters(tag, counters))
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        Box::pin(self.do_register_limiter(node, lease))
    }

    fn server_generation(&self) -> u64 {
        self.lanes.server_tracker().server_generation()
    }

    fn wait_for_replicas(&self, shard: u16, wanted: u32, since: u64) -> StoreFuture<'_, u32> {
        Box::pin(self.do_wait_for_replicas(shard, wanted, since))
    }

    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, mend: bool) -> StoreFuture<'_, FsckPartResult> {
        Box::pin(self.fsck_part(part, mend))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.do_ping())
    }

    fn ping_shard(&self, shard: u16) -> StoreFuture<'_, ()> {
        Box::pin(self.do_ping_shard(shard))
    }

    fn on_new_server(&self, tell: Weak<dyn Fn() + Send + Sync>) {
        self.lanes.on_server_change(tell);
    }

    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>> {
        let listener = MessageSubscriber {
            target: self.target.clone(),
            keys: self.keys.clone(),
            node,
            connect_timeout: self.deadline * 4,
            server_changes: self.lanes.server_tracker().subscribe_changes(),
            job_events_wanted: hints.jobs_wanted(),
        };
        Some(Box::pin(listener.run(hints)))
    }
}

pub(super) fn number_arg(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}
