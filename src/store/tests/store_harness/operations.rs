//! Each step, for which the store is there; and those whose outcome a case takes for granted.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    DuePoll, LONG_TIME, StoreHarness,
    command_builders::{
        claim_command, done_settlement, enqueue_command, settle_command, try_acquire_command,
        wait_command,
    },
};
use crate::{
    key::Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, ChargeCommand, ChargeOutcome, ClaimCommand, ClaimOutcome,
            EndedJobFilter, EnqueueCommand, EnqueueOutcome, Heartbeat, JobHistory, JobId,
            JobListPage, JobState, JobView, LeaseRenewal, LockMode, LockToken, NodeId,
            PendingCursor, QuotaSnapshot, ReleaseOutcome, SettleChargeCommand, SettleCommand,
            SettleOutcome, ShardStats, StoreFuture,
        },
        fsck::CheckReport,
        rate::{AdjustmentKind, QuotaRule},
    },
};

/// Each step, for which the store is there.
impl StoreHarness {
    pub(in crate::store::tests) async fn acquire(&self, call: AcquireCommand) -> AcquireReply {
        self.backend().acquire(call).await.unwrap()
    }

    pub(in crate::store::tests) async fn release(
        &self,
        key: &Key,
        me: &LockToken,
    ) -> ReleaseOutcome {
        let (key, me) = (key.clone(), me.clone());
        self.backend().release(key, me, LockMode::Exclusive).await.unwrap()
    }

    pub(in crate::store::tests) fn send_release(
        &self,
        key: &Key,
        me: &LockToken,
    ) -> StoreFuture<'static, ReleaseOutcome> {
        let (key, me) = (key.clone(), me.clone());
        self.backend().send_release(key, me, LockMode::Exclusive).expect("there is a runtime")
    }

    pub(in crate::store::tests) async fn renew(&self, items: Vec<LeaseRenewal>) -> Vec<bool> {
        self.backend().renew(items).await.unwrap()
    }

    pub(in crate::store::tests) async fn charge(&self, call: ChargeCommand) -> ChargeOutcome {
        let items = Arc::clone(&call.items);
        let mut charged = self.backend().charge(call).await.unwrap();
        for (item, state) in items.iter().zip(&mut charged.snapshots) {
            let at =
                state.charged_window.boundary.checked_add_signed(self.window_shift(&item.rule));
            state.charged_window.boundary = at.expect("a time of today");
        }
        charged
    }

    pub(in crate::store::tests) async fn settle_charge(
        &self,
        mut call: SettleChargeCommand,
    ) -> Vec<QuotaSnapshot> {
        for item in &mut call.items {
            if let AdjustmentKind::Refund { window, .. } = &mut item.kind {
                window.boundary =
                    window.boundary.checked_add_signed(-self.window_shift(&item.rule)).unwrap();
            }
        }
        self.backend().settle_charge(call).await.unwrap()
    }

    /// What has been moved into the past is still named by the server's time as it was, which it is not for
    /// those who think that time has passed.
    fn window_shift(&self, rule: &QuotaRule) -> i64 {
        let ms = self.shifted_ms.load(Ordering::SeqCst);
        if matches!(rule, QuotaRule::Gcra { .. }) { ms * 1000 } else { ms }
    }

    pub(in crate::store::tests) async fn enqueue(&self, call: EnqueueCommand) -> EnqueueOutcome {
        self.backend().enqueue(call).await.unwrap()
    }

    pub(in crate::store::tests) async fn claim(&self, call: ClaimCommand) -> ClaimOutcome {
        self.backend().claim(call).await.unwrap()
    }

    /// Whether the verdict stands.
    pub(in crate::store::tests) async fn settle(&self, call: SettleCommand) -> bool {
        self.settle_and_claim(call).await != SettleOutcome::RunLost
    }

    pub(in crate::store::tests) async fn settle_and_claim(
        &self,
        call: SettleCommand,
    ) -> SettleOutcome {
        self.backend().settle(call).await.unwrap()
    }

    pub(in crate::store::tests) async fn cancel(&self, id: &JobId) -> Option<JobState> {
        let began_us = self.job_history(id).await.map_or(0, |past| past.started_us);
        self.cancel_started_at(id, began_us).await
    }

    /// As it was seen.
    pub(in crate::store::tests) async fn cancel_started_at(
        &self,
        id: &JobId,
        began_us: u64,
    ) -> Option<JobState> {
        self.backend().cancel_waiting_job(id.clone(), began_us, LONG_TIME).await.unwrap()
    }

    /// Without its past, which [`Self::job_history`] tells.
    pub(in crate::store::tests) async fn job_view(&self, id: &JobId) -> Option<JobView> {
        let job = self.backend().job_view(id.clone()).await.unwrap();
        job.map(|job| JobView { history: JobHistory::default(), ..job })
    }

    pub(in crate::store::tests) async fn job_history(&self, id: &JobId) -> Option<JobHistory> {
        self.backend().job_view(id.clone()).await.unwrap().map(|job| job.history)
    }

    pub(in crate::store::tests) async fn heads(&self, keys: &[Key]) -> Vec<Option<JobId>> {
        self.backend().heads(keys.to_vec()).await.unwrap()
    }

    /// Without the heads.
    pub(in crate::store::tests) async fn poll_due(&self, shard: u16, most: usize) -> DuePoll {
        let due = self.backend().poll_due(vec![shard], most).await.unwrap().remove(0);
        DuePoll {
            locks: due.locks.into_iter().map(|(name, _)| name).collect(),
            next_due_in: due.next_due_in,
        }
    }

    /// Without `lapse`.
    pub(in crate::store::tests) async fn heartbeat(
        &self,
        node: &NodeId,
        lease: Duration,
    ) -> Heartbeat {
        Heartbeat {
            peer_expires_in: None,
            ..self.backend().heartbeat(node.clone(), lease).await.unwrap()
        }
    }

    pub(in crate::store::tests) async fn peer_expiry(
        &self,
        node: &NodeId,
        lease: Duration,
    ) -> Option<Duration> {
        self.backend().heartbeat(node.clone(), lease).await.unwrap().peer_expires_in
    }

    pub(in crate::store::tests) async fn set_jobs_paused(&self, paused: bool) {
        self.backend().set_jobs_paused(paused).await.unwrap();
    }

    pub(in crate::store::tests) async fn unclaim(
        &self,
        key: &Key,
        me: &LockToken,
        id: Option<&JobId>,
    ) -> bool {
        self.backend().unclaim(key.clone(), me.clone(), id.cloned()).await.unwrap()
    }

    pub(in crate::store::tests) async fn redrive(&self, id: &JobId) -> Option<JobState> {
        let died = self.ended_us(id).await;
        self.backend().redrive_job(id.clone(), died).await.unwrap()
    }

    pub(in crate::store::tests) async fn purge(&self, id: &JobId) -> bool {
        let ended = self.ended_us(id).await;
        self.backend().purge_job(id.clone(), ended).await.unwrap()
    }

    /// When it ended, or 0.
    pub(in crate::store::tests) async fn ended_us(&self, id: &JobId) -> u64 {
        let job = self.backend().job_view(id.clone()).await.unwrap();
        job.map_or(0, |job| job.history.ended_us)
    }

    pub(in crate::store::tests) async fn shard_stats(&self, shard: u16) -> ShardStats {
        self.backend().shard_stats(shard).await.unwrap()
    }

    pub(in crate::store::tests) async fn list_ended(
        &self,
        shard: u16,
        which: EndedJobFilter,
        from: u64,
        most: usize,
    ) -> JobListPage {
        self.backend().list_ended(shard, which, from, most).await.unwrap()
    }

    pub(in crate::store::tests) async fn list_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> JobListPage<PendingCursor> {
        self.backend().list_pending(shard, from, most).await.unwrap()
    }

    pub(in crate::store::tests) async fn run_check(&self, repair: bool) -> CheckReport {
        self.store.check().repair(repair).run().await.unwrap()
    }

    pub(in crate::store::tests) async fn ping(&self) {
        self.backend().ping().await.unwrap();
    }
}

/// Steps whose outcome is plain; any other fails the case.
impl StoreHarness {
    /// The fence.
    pub(in crate::store::tests) async fn acquire_exclusive(
        &self,
        key: &Key,
        me: &LockToken,
    ) -> u64 {
        match self.acquire(try_acquire_command(key, me)).await {
            AcquireReply::Granted { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// The sequence of the place.
    pub(in crate::store::tests) async fn join_queue(&self, key: &Key, me: &LockToken) -> u64 {
        match self.acquire(wait_command(key, me)).await {
            AcquireReply::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a place in the line, got {other:?}"),
        }
    }

    /// How long it will be busy.
    pub(in crate::store::tests) async fn expect_busy(&self, key: &Key, me: &LockToken) -> Duration {
        match self.acquire(try_acquire_command(key, me)).await {
            AcquireReply::Busy { lease_remaining: left, seq: 0, .. } => left,
            other => panic!("expected it to be busy, got {other:?}"),
        }
    }

    pub(in crate::store::tests) async fn enqueue_job(&self, key: &Key) -> JobId {
        let call = enqueue_command(key);
        let id = call.id.clone();
        match self.enqueue(call).await {
            EnqueueOutcome::Stored { .. } => id,
            other => panic!("expected it to be stored, got {other:?}"),
        }
    }

    /// Starts a run that lasts; its attempt.
    pub(in crate::store::tests) async fn start_run(
        &self,
        key: &Key,
        id: &JobId,
        me: &LockToken,
    ) -> u32 {
        match self.claim(claim_command(key, id, me)).await {
            ClaimOutcome::Claimed(run) => run.attempt,
            other => panic!("expected to run the job, got {other:?}"),
        }
    }

    pub(in crate::store::tests) async fn finish_run(
        &self,
        key: &Key,
        id: &JobId,
        me: &LockToken,
    ) -> bool {
        self.settle(settle_command(key, id, me, done_settlement())).await
    }

    /// `None` also for a tombstone.
    pub(in crate::store::tests) async fn job_state(&self, id: &JobId) -> Option<JobState> {
        self.job_view(id).await.filter(|job| !job.is_tombstone).map(|job| job.state)
    }

    pub(in crate::store::tests) async fn is_tombstone(&self, id: &JobId) -> bool {
        self.job_view(id).await.is_some_and(|job| job.is_tombstone)
    }

    /// A worker that watches every shard.
    pub(in crate::store::tests) async fn register_worker(&self) -> NodeId {
        let node = NodeId::new();
        assert_eq!(self.heartbeat(&node, LONG_TIME).await.own_shards.len(), 64);
        node
    }
}
