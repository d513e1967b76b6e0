//! A request that is taken over.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    answers::{KNOWN, Known, idempotency_key_reused, outcome_unknown},
    passage::DeferParked,
    settings::{DeferGate, How},
};
use crate::{
    defer::{
        callback,
        envelope::{At, write_request},
        headers::of_request,
        status::no_longer_kept,
        unwatched::Workers,
    },
    gate::{Head, Parked, Print, Trying},
    key::{digest, hex},
    reply::Reply,
    store::{StorageLimits, EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, MergePolicy},
};

/// Of a request whose body is not known.
const NO_PRINT: &str = "-";

impl How {
    /// True if a request of unknown outcome may be repeated.
    pub(super) fn may_run_again(&self, method: &str) -> bool {
        self.retry_unsafe || is_idempotent(method)
    }

    /// By the method: what may have done its work is not begun anew unless doing it twice is doing it once.
    fn policy(&self, method: &str, needs_worker: bool) -> JobPolicy {
        let again = self.may_run_again(method);
        JobPolicy {
            retry_after_crash: again,
            max_attempts: if again { self.max_attempts } else { 1 },
            delay: self.delay,
            deadline: self.deadline,
            on_failure: self.on_failure,
            needs_worker,
        }
    }

    /// One owner's requests replace each other, and nobody else's.
    fn merge(&self, owner: &str, head: &Head) -> Option<MergePolicy> {
        let wins = self.wins.filter(|_| is_idempotent(&head.method))?;
        let parts = [owner, &head.method, &head.target].map(str::as_bytes);
        Some(MergePolicy { group: hex(&digest(&parts)[..16]).into(), mode: wins })
    }
}

/// Of the methods that are deferred (RFC 9110 section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(method, "PUT" | "DELETE")
}

impl<N: ?Sized> DeferGate<N> {
    pub(super) async fn store(
        &self,
        mut parked: DeferParked,
        head: Head,
        body: &Bytes,
    ) -> Option<Reply> {
        let settings = &*self.0;
        let headers = of_request(&head.headers, &settings.what.fields);
        let url = settings.callback.as_ref().and_then(|callback| callback(&head));
        let policy = settings.how.policy(&head.method, settings.when.needs_worker);
        let print = Print::of(&head.method, &head.target, body);
        let has_user = || {
            let fields = &settings.what.fields;
            !parked.carried.is_empty()
                || head.headers.iter().any(|(name, _)| fields.is_credential(name))
        };
        let is_unnamed = settings.is_unnamed(&parked.owner, has_user);
        let merge = settings.how.merge(&parked.owner, &head).filter(|_| !is_unnamed);
        let carried = std::mem::take(&mut parked.carried);
        let key = &parked.parked.key;
        let id = JobId::new(key);
        let at = At { store: &parked.parked.store, id: &id, lock: key };
        let call = EnqueueCommand {
            webhook: url.map(|url| callback::call(at.store, &id, url)),
            key: key.clone(),
            envelope: write_request(at, head, headers, carried, policy.max_attempts, body),
            id,
            policy,
            idempotency_record: self.record(&parked, print),
            merge,
            limits: settings.caps,
            owner: parked.owner.clone(),
        };
        self.enqueue(parked, call).await
    }

    /// Stores nothing: there is no room in the line for what is not known.
    pub(super) async fn look_up(
        &self,
        parked: DeferParked,
        print: Option<String>,
    ) -> Option<Reply> {
        let key = &parked.parked.key;
        let call = EnqueueCommand {
            key: key.clone(),
            id: JobId::new(key),
            envelope: Bytes::new(),
            policy: JobPolicy::default(),
            idempotency_record: self.record(&parked, print.unwrap_or_else(|| NO_PRINT.to_owned())),
            merge: None,
            limits: StorageLimits::uniform(0),
            owner: parked.owner.clone(),
            webhook: None,
        };
        self.enqueue(parked, call).await
    }

    fn record(
        &self,
        parked: &DeferParked,
        print: String,
    ) -> Option<(std::sync::Arc<str>, String, Duration)> {
        let record = parked.slot.record()?;
        Some((record.name.clone(), print, self.0.keys.life))
    }

    async fn enqueue(&self, parked: DeferParked, call: EnqueueCommand) -> Option<Reply> {
        // Who has the record may have been forgotten as it was looked at, so that a retry runs: this one.
        let again = call.idempotency_record.is_some().then(|| call.clone());
        let first = match self.enqueue_once(&parked, call).await {
            Told::Answer(reply) => return reply,
            Told::Gone(job) => job,
        };
        let Some(call) = again else { return Some(no_longer_kept(None)) };
        match self.enqueue_once(&parked, call).await {
            Told::Answer(reply) => reply,
            Told::Gone(job) => (job == first).then(|| no_longer_kept(None)),
        }
    }

    async fn enqueue_once(&self, parked: &DeferParked, call: EnqueueCommand) -> Told {
        let id = call.id.clone();
        let stores = !call.envelope.is_empty();
        let doubt = Doubt::of(&call);
        let has_print = call.idempotency_record.as_ref().is_some_and(|(_, print, _)| print != NO_PRINT);
        let Parked { store, key, .. } = &parked.parked;
        let (node, lock) = (store.node(), key.hashed());
        let since = store.backend().server_generation();
        Told::Answer(match store.backend().enqueue(call).await {
            Ok(EnqueueOutcome::Stored { position }) => {
                tracing::info!(%node, %lock, job = ?id, position, "request deferred");
                store.extension::<Workers>().look(store, &id).await;
                let reply = self.accepted(parked, &id, JobState::Queued, position);
                Some(self.if_replicated(parked, &id, (since, doubt), reply).await)
            }
            Ok(EnqueueOutcome::Duplicate(id) | EnqueueOutcome::Merged(id)) => match self.known(parked, &id).await {
                // The first answer may have been a 503 for want of replicas.
                Known::Reply(reply) => {
                    Some(self.if_replicated(parked, &id, (since, doubt), reply).await)
                }
                Known::RunsAtOnce => None,
                Known::Gone => return Told::Gone(id),
            },
            // Of a request that could not be read nobody knows whether it is the same.
            Ok(EnqueueOutcome::FingerprintMismatch) => has_print.then(idempotency_key_reused),
            Ok(EnqueueOutcome::Full) => {
                crate::throttle::throttled!(warn, %node, %lock, "not deferred: a line is full");
                None
            }
            Ok(EnqueueOutcome::TooManyRecords(left)) => {
                crate::throttle::throttled!(
                    warn,
                    %node, %lock, "not deferred: too many idempotency keys are kept"
                );
                Some(Reply::too_many_keys(left))
            }
            Ok(EnqueueOutcome::NoWorker) => {
                crate::throttle::throttled!(warn, %node, %lock, "not deferred: no worker is alive");
                None
            }
            Err(error) => {
                crate::throttle::throttled!(error, %node, %lock, %error, "not deferred: store away");
                // What was only looked up is stored under another id, if at all.
                match stores && error.may_have_run() {
                    true => Some(doubt.reply(self.location(&id))),
                    false => without_store(parked),
                }
            }
        })
    }

    /// This answer, if so many replicas have what was stored as the layer asks for.
    async fn if_replicated(
        &self,
        parked: &DeferParked,
        id: &JobId,
        (since, doubt): (u64, Doubt),
        reply: Reply,
    ) -> Reply {
        match self.is_replicated(parked, id, since).await {
            true => reply,
            false => doubt.reply(self.location(id)),
        }
    }

    async fn is_replicated(&self, parked: &DeferParked, id: &JobId, since: u64) -> bool {
        let wanted = self.0.replicas;
        if wanted == 0 {
            return true;
        }
        let Parked { store, key, .. } = &parked.parked;
        match store.backend().wait_for_replicas(key.shard(), wanted, since).await {
            Ok(have) if have >= wanted => true,
            Ok(have) => {
                crate::throttle::throttled!(
                    warn,
                    job = ?id, have, wanted, "not answered with 202: too few replicas have it"
                );
                false
            }
            Err(error) => {
                crate::throttle::throttled!(
                    warn,
                    job = ?id, %error, wanted, "not answered with 202: replicas"
                );
                false
            }
        }
    }
}

/// A lock that was found busy has said so. Of one that nobody has asked nothing is known.
fn without_store(parked: &DeferParked) -> Option<Reply> {
    let asked = matches!(parked.slot.trying(), Trying::For(_));
    (!asked).then(Reply::store_away)
}

/// What is told of a request whose outcome is not known: since when it may be stored, and whether it has a key.
#[derive(Clone, Copy)]
struct Doubt {
    since: Instant,
    known: Duration,
    keyed: bool,
}

impl Doubt {
    /// Of a call that is about to be sent.
    fn of(call: &EnqueueCommand) -> Self {
        let life = call.idempotency_record.as_ref().map(|(.., life)| *life);
        let known = life.unwrap_or_default().max(KNOWN);
        Self { since: Instant::now(), known, keyed: life.is_some() }
    }

    fn reply(self, location: String) -> Reply {
        outcome_unknown(location, self.known.saturating_sub(self.since.elapsed()), self.keyed)
    }
}

/// What asking the store comes to.
enum Told {
    /// `None`: as busy as it was.
    Answer(Option<Reply>),
    /// Its record names this job, of which nothing is kept.
    Gone(JobId),
}
