//! Enqueue of a parked request, and its reply.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{
    accept_span::{accept_span, record_accept_reply},
    defer_layer::{DeferLayer, RunSettings},
    defer_replies::{MIN_LOOKUP_TTL, RecordedJobReply, key_reused_reply, outcome_unknown_reply},
    gate_impl::DeferCandidate,
};
use crate::{
    defer::{
        envelope::{EnvelopeBinding, encode_request},
        missing_worker_warning::MissingWorkerWarning,
        status::gone_reply,
        stored_request_headers::stored_request_headers,
        webhook,
    },
    error::Error,
    gate::{BusyLockContext, HttpRequestHead, LockInstruction, RequestFingerprint, RequestKind},
    instruments::EnqueueResult,
    key::{digest_parts, hex},
    reply::Reply,
    store::{
        EnqueueCommand, EnqueueOutcome, HoldRoute, JobId, JobPolicy, JobState, MergePolicy,
        StorageLimits,
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
        let allows_rerun = self.allows_rerun(method);
        JobPolicy {
            retry_after_crash: allows_rerun,
            max_attempts: if allows_rerun { self.max_attempts } else { 1 },
            delay: self.delay,
            deadline: self.deadline,
            on_failure: self.on_failure,
            needs_worker,
        }
    }

    /// Returns the merge group of a request. Only requests of the same owner merge.
    fn merge_group(&self, owner: &str, head: &HttpRequestHead) -> Option<MergePolicy> {
        let mode = self.merge_mode.filter(|_| is_idempotent_method(&head.method))?;
        let parts = [owner, &head.method, &head.target].map(str::as_bytes);
        Some(MergePolicy { group: hex(&digest_parts(&parts)[..16]).into(), mode })
    }
}

/// Returns true if a deferrable method is idempotent (RFC 9110 section 9.2.2).
fn is_idempotent_method(method: &str) -> bool {
    matches!(method, "PUT" | "DELETE")
}

impl<R: RequestKind> DeferLayer<R> {
    pub(super) async fn store_request(
        &self,
        mut candidate: DeferCandidate,
        head: HttpRequestHead,
        body: &Bytes,
    ) -> Option<Reply> {
        let settings = &*self.0;
        let key = &candidate.parked.key;
        let id = JobId::new(key);
        let span = accept_span(&candidate, &id);
        let mut headers = stored_request_headers(&head.headers, &settings.storage.header_filter);
        candidate.parked.store.write_trace_context(&span, &mut headers);
        let webhook_url = settings.webhook_url.as_ref().and_then(|url| url(&head));
        let policy = settings.run.job_policy(&head.method, settings.trigger.require_worker);
        let fingerprint = RequestFingerprint::compute(&head.method, &head.target, body);
        let has_user = || {
            let header_filter = &settings.storage.header_filter;
            !candidate.saved_snapshots.is_empty()
                || head.headers.iter().any(|(name, _)| header_filter.is_credential(name))
        };
        let is_unnamed = settings.lacks_owner(&candidate.owner, has_user);
        let merge = settings.run.merge_group(&candidate.owner, &head).filter(|_| !is_unnamed);
        let snapshots = std::mem::take(&mut candidate.saved_snapshots);
        let key = &candidate.parked.key;
        let binding = EnvelopeBinding { store: &candidate.parked.store, id: &id, lock: key };
        let (max_attempts, route) = (policy.max_attempts, candidate.label.route());
        let stored_route = route.map(|route| HoldRoute::new(&head.method, route));
        let stored_route = stored_route.map_or_else(String::new, |route| route.as_str().to_owned());
        let command = EnqueueCommand {
            webhook: webhook_url.map(|url| webhook::new_webhook_job(binding.store, &id, url)),
            key: key.clone(),
            envelope: encode_request(binding, head, headers, snapshots, max_attempts, route, body),
            id,
            policy,
            idempotency_record: self.enqueue_record(&candidate, fingerprint),
            merge,
            limits: settings.storage_limits,
            owner: candidate.owner.clone(),
            route: stored_route,
        };
        let reply = self.enqueue(candidate, command).instrument(span.clone()).await;
        record_accept_reply(&span, reply.as_ref());
        reply
    }

    /// Looks up the record of a request without storing the request: with limits of zero, every
    /// queue is full.
    pub(super) async fn look_up_record(
        &self,
        candidate: DeferCandidate,
        fingerprint: Option<String>,
    ) -> Option<Reply> {
        let key = &candidate.parked.key;
        let fingerprint = fingerprint.unwrap_or_else(|| NO_FINGERPRINT.to_owned());
        let command = EnqueueCommand {
            key: key.clone(),
            id: JobId::new(key),
            envelope: Bytes::new(),
            policy: JobPolicy::default(),
            idempotency_record: self.enqueue_record(&candidate, fingerprint),
            merge: None,
            limits: StorageLimits::uniform(0),
            owner: candidate.owner.clone(),
            route: String::new(),
            webhook: None,
        };
        self.enqueue(candidate, command).await
    }

    fn enqueue_record(
        &self,
        candidate: &DeferCandidate,
        fingerprint: String,
    ) -> Option<(std::sync::Arc<str>, String, Duration)> {
        let record = candidate.slot.idempotency()?;
        Some((record.record_name.clone(), fingerprint, self.0.idempotency.ttl))
    }

    async fn enqueue(&self, candidate: DeferCandidate, command: EnqueueCommand) -> Option<Reply> {
        // The job that holds the record may be deleted between the calls; then this retry is
        // stored.
        let repetition = command.idempotency_record.is_some().then(|| command.clone());
        let first = match self.enqueue_once(&candidate, command).await {
            EnqueueResolution::Reply(reply) => return reply,
            EnqueueResolution::JobForgotten(job) => job,
        };
        let Some(command) = repetition else { return Some(gone_reply(None)) };
        match self.enqueue_once(&candidate, command).await {
            EnqueueResolution::Reply(reply) => reply,
            EnqueueResolution::JobForgotten(job) => (job == first).then(|| gone_reply(None)),
        }
    }

    async fn enqueue_once(
        &self,
        candidate: &DeferCandidate,
        command: EnqueueCommand,
    ) -> EnqueueResolution {
        let id = command.id.clone();
        let stores = !command.envelope.is_empty();
        let uncertain = UncertainEnqueue::before_call(&command);
        let record = command.idempotency_record.as_ref();
        let has_fingerprint =
            record.is_some_and(|(_, fingerprint, _)| fingerprint != NO_FINGERPRINT);
        let DeferCandidate { parked: BusyLockContext { store, key, .. }, label, .. } = candidate;
        let (node, lock) = (store.node(), store.log_name(key));
        let generation = store.backend().server_generation();
        let outcome = store.backend().enqueue(command).await;
        // A lookup of a record stores nothing: for it every queue is full.
        if stores {
            store.counters().record_enqueue(label.route(), enqueue_result(&outcome));
        }
        EnqueueResolution::Reply(match outcome {
            Ok(EnqueueOutcome::Stored { position }) => {
                tracing::info!(
                    %node, %lock, job = %id.log_prefix(), method = label.method(),
                    route = label.route(), position, "request deferred"
                );
                store.extension::<MissingWorkerWarning>().check_workers(store, &id).await;
                let reply = self.accepted_reply(candidate, &id, JobState::Queued, position);
                Some(self.reply_if_replicated(candidate, &id, (generation, uncertain), reply).await)
            }
            Ok(EnqueueOutcome::Duplicate(id) | EnqueueOutcome::Merged(id)) => {
                match self.look_up_recorded_job(candidate, &id).await {
                    // The first reply may have been a 503 for missing replicas.
                    RecordedJobReply::Reply(reply) => Some(
                        self.reply_if_replicated(candidate, &id, (generation, uncertain), reply)
                            .await,
                    ),
                    RecordedJobReply::RunningDirectly => None,
                    RecordedJobReply::Forgotten => return EnqueueResolution::JobForgotten(id),
                }
            }
            // An unread request can't be compared with the recorded one.
            Ok(EnqueueOutcome::FingerprintMismatch) => has_fingerprint.then(key_reused_reply),
            Ok(EnqueueOutcome::Full) => {
                crate::throttle::throttled!(
                    warn,
                    %node, %lock, "not deferred: a limit of stored jobs is reached"
                );
                None
            }
            Ok(EnqueueOutcome::TooManyRecords(retry_after)) => {
                crate::throttle::throttled!(
                    warn,
                    %node, %lock, "not deferred: too many idempotency keys"
                );
                Some(Reply::too_many_idempotency_keys(retry_after))
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
                    true => Some(uncertain.into_reply(self.status_location(candidate, &id))),
                    false => store_unavailable_reply(candidate),
                }
            }
        })
    }

    /// Returns `reply` if enough replicas have the job, otherwise the reply of an uncertain
    /// enqueue.
    async fn reply_if_replicated(
        &self,
        candidate: &DeferCandidate,
        id: &JobId,
        (generation, uncertain): (u64, UncertainEnqueue),
        reply: Reply,
    ) -> Reply {
        match self.is_replicated(candidate, id, generation).await {
            true => reply,
            false => uncertain.into_reply(self.status_location(candidate, id)),
        }
    }

    async fn is_replicated(&self, candidate: &DeferCandidate, id: &JobId, generation: u64) -> bool {
        let wanted = self.0.min_replicas;
        if wanted == 0 {
            return true;
        }
        let BusyLockContext { store, key, .. } = &candidate.parked;
        match store.backend().wait_for_replicas(key.shard(), wanted, generation).await {
            Ok(have) if have >= wanted => true,
            Ok(have) => {
                crate::throttle::throttled!(
                    warn,
                    job = %id.log_prefix(), have, wanted, "202 withheld: too few replicas acknowledged the job"
                );
                false
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    job = %id.log_prefix(), %error, wanted, "202 withheld: the replicas could not be asked"
                );
                false
            }
        }
    }
}

/// Returns a 503 if the lock was never tried. After an attempt, its busy response stands.
fn store_unavailable_reply(candidate: &DeferCandidate) -> Option<Reply> {
    let was_tried = matches!(candidate.slot.instruction(), LockInstruction::WaitFor(_));
    (!was_tried).then(Reply::store_unavailable)
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
    fn before_call(command: &EnqueueCommand) -> Self {
        let record_ttl = command.idempotency_record.as_ref().map(|(.., ttl)| *ttl);
        Self {
            sent_at: Instant::now(),
            lookup_ttl: record_ttl.unwrap_or_default().max(MIN_LOOKUP_TTL),
            has_idempotency_key: record_ttl.is_some(),
        }
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

fn enqueue_result(outcome: &Result<EnqueueOutcome, Error>) -> EnqueueResult {
    match outcome {
        Ok(EnqueueOutcome::Stored { .. }) => EnqueueResult::Deferred,
        Ok(EnqueueOutcome::Duplicate(_) | EnqueueOutcome::Merged(_)) => EnqueueResult::Known,
        Ok(
            EnqueueOutcome::FingerprintMismatch
            | EnqueueOutcome::Full
            | EnqueueOutcome::TooManyRecords(_)
            | EnqueueOutcome::NoWorker,
        ) => EnqueueResult::Refused,
        Err(_) => EnqueueResult::Failed,
    }
}
