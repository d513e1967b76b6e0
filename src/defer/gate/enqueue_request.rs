//! Enqueue of a parked request, and its reply.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    defer_layer::{DeferLayer, RunSettings},
    defer_replies::{MIN_LOOKUP_TTL, RecordedJobReply, key_reused_reply, outcome_unknown_reply},
    gate_impl::DeferCandidate,
};
use crate::{
    defer::{
        envelope::{EnvelopeBinding, encode_request},
        missing_worker_warning::MissingWorkerWarning,
        status::gone_reply,
        stored_headers::stored_request_headers,
        webhook,
    },
    gate::{AttemptMode, HttpRequestHead, ParkingContext, RequestFingerprint, RequestKind},
    key::{digest_parts, hex},
    reply::Reply,
    store::{
        EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, MergePolicy, StorageLimits,
    },
};

/// Fingerprint of a request with an unread body.
const NO_FINGERPRINT: &str = "-";

impl RunSettings {
    /// Returns true if a request with an unknown outcome may be repeated.
    pub(super) fn allows_rerun(&self, method: &str) -> bool {
        self.retry_unsafe || is_idempotent_method(method)
    }

    /// Returns the policy of a job by its method: a run that may have done its work is repeated
    /// only if the method is idempotent, or the layer allows it.
    fn job_policy(&self, method: &str, needs_worker: bool) -> JobPolicy {
        let again = self.allows_rerun(method);
        JobPolicy {
            retry_after_crash: again,
            max_attempts: if again { self.max_attempts } else { 1 },
            delay: self.delay,
            deadline: self.deadline,
            on_failure: self.on_failure,
            needs_worker,
        }
    }

    /// Returns the merge group of a request. Only requests of the same owner merge.
    fn merge_group(&self, owner: &str, head: &HttpRequestHead) -> Option<MergePolicy> {
        let wins = self.merge_mode.filter(|_| is_idempotent_method(&head.method))?;
        let parts = [owner, &head.method, &head.target].map(str::as_bytes);
        Some(MergePolicy { group: hex(&digest_parts(&parts)[..16]).into(), mode: wins })
    }
}

/// Returns true if a deferrable method is idempotent (RFC 9110 section 9.2.2).
fn is_idempotent_method(method: &str) -> bool {
    matches!(method, "PUT" | "DELETE")
}

impl<R: RequestKind> DeferLayer<R> {
    pub(super) async fn store_request(
        &self,
        mut parked: DeferCandidate,
        head: HttpRequestHead,
        body: &Bytes,
    ) -> Option<Reply> {
        let settings = &*self.0;
        let headers = stored_request_headers(&head.headers, &settings.storage.header_filter);
        let url = settings.webhook_url.as_ref().and_then(|callback| callback(&head));
        let policy = settings.run.job_policy(&head.method, settings.trigger.require_worker);
        let print = RequestFingerprint::compute(&head.method, &head.target, body);
        let has_user = || {
            let fields = &settings.storage.header_filter;
            !parked.saved_snapshots.is_empty()
                || head.headers.iter().any(|(name, _)| fields.is_credential(name))
        };
        let is_unnamed = settings.lacks_owner(&parked.owner, has_user);
        let merge = settings.run.merge_group(&parked.owner, &head).filter(|_| !is_unnamed);
        let carried = std::mem::take(&mut parked.saved_snapshots);
        let key = &parked.parked.key;
        let id = JobId::new(key);
        let at = EnvelopeBinding { store: &parked.parked.store, id: &id, lock: key };
        let call = EnqueueCommand {
            webhook: url.map(|url| webhook::new_webhook_job(at.store, &id, url)),
            key: key.clone(),
            envelope: encode_request(at, head, headers, carried, policy.max_attempts, body),
            id,
            policy,
            idempotency_record: self.enqueue_record(&parked, print),
            merge,
            limits: settings.storage_limits,
            owner: parked.owner.clone(),
        };
        self.enqueue(parked, call).await
    }

    /// Looks up the record of a request without storing the request: with limits of zero, every
    /// queue is full.
    pub(super) async fn look_up_record(
        &self,
        parked: DeferCandidate,
        print: Option<String>,
    ) -> Option<Reply> {
        let key = &parked.parked.key;
        let call = EnqueueCommand {
            key: key.clone(),
            id: JobId::new(key),
            envelope: Bytes::new(),
            policy: JobPolicy::default(),
            idempotency_record: self
                .enqueue_record(&parked, print.unwrap_or_else(|| NO_FINGERPRINT.to_owned())),
            merge: None,
            limits: StorageLimits::uniform(0),
            owner: parked.owner.clone(),
            webhook: None,
        };
        self.enqueue(parked, call).await
    }

    fn enqueue_record(
        &self,
        parked: &DeferCandidate,
        print: String,
    ) -> Option<(std::sync::Arc<str>, String, Duration)> {
        let record = parked.slot.idempotency()?;
        Some((record.record_name.clone(), print, self.0.idempotency.ttl))
    }

    async fn enqueue(&self, parked: DeferCandidate, call: EnqueueCommand) -> Option<Reply> {
        // The job that holds the record may be deleted between the calls; then this retry is
        // stored.
        let again = call.idempotency_record.is_some().then(|| call.clone());
        let first = match self.enqueue_once(&parked, call).await {
            EnqueueResolution::Reply(reply) => return reply,
            EnqueueResolution::JobForgotten(job) => job,
        };
        let Some(call) = again else { return Some(gone_reply(None)) };
        match self.enqueue_once(&parked, call).await {
            EnqueueResolution::Reply(reply) => reply,
            EnqueueResolution::JobForgotten(job) => (job == first).then(|| gone_reply(None)),
        }
    }

    async fn enqueue_once(
        &self,
        parked: &DeferCandidate,
        call: EnqueueCommand,
    ) -> EnqueueResolution {
        let id = call.id.clone();
        let stores = !call.envelope.is_empty();
        let doubt = UncertainEnqueue::before_call(&call);
        let has_print =
            call.idempotency_record.as_ref().is_some_and(|(_, print, _)| print != NO_FINGERPRINT);
        let ParkingContext { store, key, .. } = &parked.parked;
        let (node, lock) = (store.node(), key.log_hash());
        let since = store.backend().server_generation();
        EnqueueResolution::Reply(match store.backend().enqueue(call).await {
            Ok(EnqueueOutcome::Stored { position }) => {
                tracing::info!(%node, %lock, job = ?id, position, "request deferred");
                store.extension::<MissingWorkerWarning>().check_workers(store, &id).await;
                let reply = self.accepted_reply(parked, &id, JobState::Queued, position);
                Some(self.reply_if_replicated(parked, &id, (since, doubt), reply).await)
            }
            Ok(EnqueueOutcome::Duplicate(id) | EnqueueOutcome::Merged(id)) => {
                match self.look_up_recorded_job(parked, &id).await {
                    // The first reply may have been a 503 for missing replicas.
                    RecordedJobReply::Reply(reply) => {
                        Some(self.reply_if_replicated(parked, &id, (since, doubt), reply).await)
                    }
                    RecordedJobReply::RunningDirectly => None,
                    RecordedJobReply::Forgotten => return EnqueueResolution::JobForgotten(id),
                }
            }
            // An unread request can't be compared with the recorded one.
            Ok(EnqueueOutcome::FingerprintMismatch) => has_print.then(key_reused_reply),
            Ok(EnqueueOutcome::Full) => {
                crate::throttle::throttled!(
                    warn,
                    %node, %lock, "not deferred: a limit of stored jobs is reached"
                );
                None
            }
            Ok(EnqueueOutcome::TooManyRecords(left)) => {
                crate::throttle::throttled!(
                    warn,
                    %node, %lock, "not deferred: too many idempotency keys"
                );
                Some(Reply::too_many_idempotency_keys(left))
            }
            Ok(EnqueueOutcome::NoWorker) => {
                crate::throttle::throttled!(warn, %node, %lock, "not deferred: no worker is alive");
                None
            }
            Err(error) => {
                crate::throttle::throttled!(
                    error,
                    %node, %lock, %error, "not deferred: the store is unavailable"
                );
                // A lookup stores nothing; an accepted request has another id.
                match stores && error.may_have_run() {
                    true => Some(doubt.into_reply(self.status_location(&id))),
                    false => store_unavailable_reply(parked),
                }
            }
        })
    }

    /// Returns `reply` if enough replicas have the job, otherwise the reply of an uncertain
    /// enqueue.
    async fn reply_if_replicated(
        &self,
        parked: &DeferCandidate,
        id: &JobId,
        (since, doubt): (u64, UncertainEnqueue),
        reply: Reply,
    ) -> Reply {
        match self.is_replicated(parked, id, since).await {
            true => reply,
            false => doubt.into_reply(self.status_location(id)),
        }
    }

    async fn is_replicated(&self, parked: &DeferCandidate, id: &JobId, since: u64) -> bool {
        let wanted = self.0.min_replicas;
        if wanted == 0 {
            return true;
        }
        let ParkingContext { store, key, .. } = &parked.parked;
        match store.backend().wait_for_replicas(key.shard(), wanted, since).await {
            Ok(have) if have >= wanted => true,
            Ok(have) => {
                crate::throttle::throttled!(
                    warn,
                    job = ?id, have, wanted, "202 withheld: too few replicas acknowledged the job"
                );
                false
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    job = ?id, %error, wanted, "202 withheld: the replicas could not be asked"
                );
                false
            }
        }
    }
}

/// Returns a 503 if the lock was never tried. After an attempt, its busy response stands.
fn store_unavailable_reply(parked: &DeferCandidate) -> Option<Reply> {
    let asked = matches!(parked.slot.mode(), AttemptMode::WaitFor(_));
    (!asked).then(Reply::store_unavailable)
}

/// Data for the reply of an enqueue with an unknown outcome.
#[derive(Clone, Copy)]
struct UncertainEnqueue {
    sent_at: Instant,
    lookup_ttl: Duration,
    has_idempotency_key: bool,
}

impl UncertainEnqueue {
    /// Call it before the enqueue is sent.
    fn before_call(call: &EnqueueCommand) -> Self {
        let life = call.idempotency_record.as_ref().map(|(.., life)| *life);
        let known = life.unwrap_or_default().max(MIN_LOOKUP_TTL);
        Self { sent_at: Instant::now(), lookup_ttl: known, has_idempotency_key: life.is_some() }
    }

    fn into_reply(self, location: String) -> Reply {
        outcome_unknown_reply(
            location,
            self.lookup_ttl.saturating_sub(self.sent_at.elapsed()),
            self.has_idempotency_key,
        )
    }
}

/// Result of one enqueue call.
enum EnqueueResolution {
    /// `None` means the lock's busy response.
    Reply(Option<Reply>),
    /// The record names this job, but the job is deleted.
    JobForgotten(JobId),
}
