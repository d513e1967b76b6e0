//! Operations of the harness. Most expect the store to be available; some also expect their usual
//! outcome.

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
            EndedJobFilter, EnqueueCommand, EnqueueOutcome, HeartbeatReply, JobHistory, JobId,
            JobListPage, JobState, JobView, LeaseRenewal, LockMode, LockToken, NodeId,
            PendingCursor, QuotaSnapshot, ReleaseOutcome, SettleChargeCommand, SettleCommand,
            SettleOutcome, ShardStats, StoreFuture,
        },
        fsck::CheckReport,
        rate::{AdjustmentKind, QuotaRule},
    },
};

/// Operations on an available store.
impl StoreHarness {
    pub(in crate::store::tests) async fn acquire(&self, call: AcquireCommand) -> AcquireReply {
        self.backend().acquire(call).await.unwrap()
    }

    pub(in crate::store::tests) async fn release(
        &self,
        key: &Key,
        token: &LockToken,
    ) -> ReleaseOutcome {
        let (key, token) = (key.clone(), token.clone());
        self.backend().release(key, token, LockMode::Exclusive).await.unwrap()
    }

    pub(in crate::store::tests) fn send_release(
        &self,
        key: &Key,
        token: &LockToken,
    ) -> StoreFuture<'static, ReleaseOutcome> {
        let (key, token) = (key.clone(), token.clone());
        self.backend().send_release(key, token, LockMode::Exclusive).expect("there is a runtime")
    }

    pub(in crate::store::tests) async fn renew(&self, items: Vec<LeaseRenewal>) -> Vec<bool> {
        self.backend().renew(items).await.unwrap()
    }

    pub(in crate::store::tests) async fn charge(&self, call: ChargeCommand) -> ChargeOutcome {
        let items = Arc::clone(&call.items);
        let mut charged = self.backend().charge(call).await.unwrap();
        for (item, snapshot) in items.iter().zip(&mut charged.snapshots) {
            let boundary =
                snapshot.charged_window.boundary.checked_add_signed(self.window_shift(&item.rule));
            snapshot.charged_window.boundary = boundary.expect("a time of today");
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

    /// Returns the shift of a charged window. Moved data still carry the server's real time, while
    /// the caller assumes that time has passed.
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

    /// Settles a run. Returns true if the settlement stands.
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
        let started_us = self.job_history(id).await.map_or(0, |history| history.started_us);
        self.cancel_started_at(id, started_us).await
    }

    /// Cancels a job that was last seen with this start time.
    pub(in crate::store::tests) async fn cancel_started_at(
        &self,
        id: &JobId,
        started_us: u64,
    ) -> Option<JobState> {
        self.backend().cancel_waiting_job(id.clone(), started_us, LONG_TIME).await.unwrap()
    }

    /// Returns a job without its history, which [`Self::job_history`] returns.
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

    /// Polls without the first jobs of the locks.
    pub(in crate::store::tests) async fn poll_due(&self, shard: u16, limit: usize) -> DuePoll {
        let due = self.backend().poll_due(vec![shard], limit).await.unwrap().remove(0);
        DuePoll {
            locks: due.locks.into_iter().map(|(key, _)| key).collect(),
            next_due_in: due.next_due_in,
        }
    }

    /// Sends a heartbeat. The result has no `peer_expires_in`.
    pub(in crate::store::tests) async fn heartbeat(
        &self,
        node: &NodeId,
        lease: Duration,
    ) -> HeartbeatReply {
        HeartbeatReply {
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
        token: &LockToken,
        id: Option<&JobId>,
    ) -> bool {
        self.backend().unclaim(key.clone(), token.clone(), id.cloned()).await.unwrap()
    }

    pub(in crate::store::tests) async fn redrive(&self, id: &JobId) -> Option<JobState> {
        let ended_us = self.ended_us(id).await;
        self.backend().redrive_job(id.clone(), ended_us).await.unwrap()
    }

    pub(in crate::store::tests) async fn purge(&self, id: &JobId) -> bool {
        let ended_us = self.ended_us(id).await;
        self.backend().purge_job(id.clone(), ended_us).await.unwrap()
    }

    /// Returns the end time of a job, or 0.
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
        filter: EndedJobFilter,
        mark: u64,
        limit: usize,
    ) -> JobListPage {
        self.backend().list_ended(shard, filter, mark, limit).await.unwrap()
    }

    pub(in crate::store::tests) async fn list_pending(
        &self,
        shard: u16,
        cursor: PendingCursor,
        limit: usize,
    ) -> JobListPage<PendingCursor> {
        self.backend().list_pending(shard, cursor, limit).await.unwrap()
    }

    pub(in crate::store::tests) async fn run_check(&self, repair: bool) -> CheckReport {
        self.store.check().repair(repair).run().await.unwrap()
    }

    pub(in crate::store::tests) async fn ping(&self) {
        self.backend().ping().await.unwrap();
    }
}

/// Operations with an expected outcome; any other fails the case.
impl StoreHarness {
    /// Acquires the lock. Returns the fence.
    pub(in crate::store::tests) async fn acquire_exclusive(
        &self,
        key: &Key,
        token: &LockToken,
    ) -> u64 {
        match self.acquire(try_acquire_command(key, token)).await {
            AcquireReply::Granted { fence, .. } => fence,
            other => panic!("expected the lock, got {other:?}"),
        }
    }

    /// Joins the queue. Returns the sequence of the queue entry.
    pub(in crate::store::tests) async fn join_queue(&self, key: &Key, token: &LockToken) -> u64 {
        match self.acquire(wait_command(key, token)).await {
            AcquireReply::Busy { seq, .. } if seq > 0 => seq,
            other => panic!("expected a queue entry, got {other:?}"),
        }
    }

    /// Expects the lock to be busy. Returns the remaining lease.
    pub(in crate::store::tests) async fn expect_busy(
        &self,
        key: &Key,
        token: &LockToken,
    ) -> Duration {
        match self.acquire(try_acquire_command(key, token)).await {
            AcquireReply::Busy { lease_remaining, seq: 0, .. } => lease_remaining,
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

    /// Starts a run with a long lease. Returns its attempt.
    pub(in crate::store::tests) async fn start_run(
        &self,
        key: &Key,
        id: &JobId,
        token: &LockToken,
    ) -> u32 {
        match self.claim(claim_command(key, id, token)).await {
            ClaimOutcome::Claimed(run) => run.attempt,
            other => panic!("expected to run the job, got {other:?}"),
        }
    }

    pub(in crate::store::tests) async fn finish_run(
        &self,
        key: &Key,
        id: &JobId,
        token: &LockToken,
    ) -> bool {
        self.settle(settle_command(key, id, token, done_settlement())).await
    }

    /// Returns the state of a job; `None` for a tombstone too.
    pub(in crate::store::tests) async fn job_state(&self, id: &JobId) -> Option<JobState> {
        self.job_view(id).await.filter(|job| !job.is_tombstone).map(|job| job.state)
    }

    pub(in crate::store::tests) async fn is_tombstone(&self, id: &JobId) -> bool {
        self.job_view(id).await.is_some_and(|job| job.is_tombstone)
    }

    /// Registers a worker that watches every shard.
    pub(in crate::store::tests) async fn register_worker(&self) -> NodeId {
        let node = NodeId::new();
        assert_eq!(self.heartbeat(&node, LONG_TIME).await.own_shards.len(), 64);
        node
    }
}
