//! Webhook jobs: they are scheduled when a job ends, and enqueued when the operation has left the
//! lock of that job.

use super::{
    job_record::JobRecord, lock_transaction::LockTransaction, shard_state::PendingWebhook,
};
use crate::store::backend::{JobId, WebhookJobSpec};

impl LockTransaction<'_> {
    /// Schedules the webhook of an ended job. A job that `may_be_redriven` keeps its webhook, to
    /// report its next end too.
    pub(super) fn schedule_webhook(&mut self, id: &JobId, may_be_redriven: bool) {
        let expires_ms = self.jobs.expiry_of(id);
        self.extend_job_records(id, expires_ms.unwrap_or(0));
        let Some(job) = self.jobs.get_mut(id, self.now.ms) else {
            return;
        };
        let spec = if may_be_redriven { job.webhook.clone() } else { job.webhook.take() };
        if let Some(spec) = spec {
            let webhook =
                PendingWebhook { spec, end_event: job.end_event(), owner: job.owner.clone() };
            self.shard.pending_webhooks.push(webhook);
        }
    }

    /// Enqueues a webhook job. If it is pending already, it reports the latest end, with all its
    /// attempts left.
    pub(super) fn enqueue_webhook(&mut self, webhook: PendingWebhook) {
        let PendingWebhook { spec, end_event, owner } = webhook;
        let WebhookJobSpec { id, envelope, max_attempts, .. } = spec;
        let pending_job = self.jobs.get_mut(&id, self.now.ms).filter(|job| job.state.is_pending());
        if let Some(job) = pending_job {
            (job.webhook_event, job.attempts) = (Some(end_event), 0);
            return;
        }
        self.shard.done_jobs.remove_manually(&id);
        self.shard.dead_jobs.remove_manually(&id);
        let (seq, bytes) = (self.next_seq(), envelope.len() as u64);
        // Counts against the owner of the request, which chose the receiver: its webhooks must not
        // fill the queue for others.
        self.shard.count_job(&owner, bytes);
        let job = JobRecord {
            seq,
            bytes,
            envelope,
            max_attempts,
            retry_after_crash: true,
            webhook_event: Some(end_event),
            owner,
            ..JobRecord::new(self.key, self.now)
        };
        self.jobs.insert(&id, job, None);
        self.insert_into_queue(seq, &id, bytes);
    }
}
