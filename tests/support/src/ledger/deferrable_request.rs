//! `DeferrableRequest`: a request that may be deferred, and its records in the client's log.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    checker::{
        ProcessIncarnation,
        deferred::{self, AcceptedJob, AcceptedTerms, ClientExchange, DeferredHistory},
    },
    fleet::clock,
    http_client::{TestResponse, request},
};

/// Longer than any correct response takes under faults: a queue wait and calls that time out.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(40);

/// Result of a request as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// 202 with this job id.
    Accepted(String),
    /// 503 with a `Location`: the job may be stored under this id.
    PossiblyAccepted(String),
    /// Response of a direct run: status and body.
    RanDirectly(u16, String),
    /// Refusal: status and body.
    Refused(u16, String),
    /// No response.
    NoResponse,
}

/// Process that listens at each address.
pub(super) type ListenerMap = Arc<Mutex<HashMap<SocketAddr, ProcessIncarnation>>>;

/// Client that records the results of its requests.
#[derive(Debug, Clone)]
pub struct RecordingClient {
    pub(super) max_attempts: u32,
    pub(super) history: Arc<Mutex<DeferredHistory>>,
    pub(super) sent_requests: Arc<AtomicU64>,
    pub(super) listeners: ListenerMap,
}

impl RecordingClient {
    /// Prepares a POST to this node.
    pub fn deferrable_request(&self, node_addr: SocketAddr, resource: &str) -> DeferrableRequest {
        self.sent_requests.fetch_add(1, Ordering::Relaxed);
        let incarnation = self.listeners.lock().get(&node_addr).copied();
        DeferrableRequest::new(
            (node_addr, incarnation),
            resource,
            self.max_attempts,
            Arc::clone(&self.history),
        )
    }
}

/// Request before it is sent.
#[derive(Debug)]
#[must_use = "it is not sent yet"]
pub struct DeferrableRequest {
    node_addr: SocketAddr,
    incarnation: Option<ProcessIncarnation>,
    resource: String,
    method: &'static str,
    route: &'static str,
    query: String,
    idempotency_key: Option<String>,
    terms: AcceptedTerms,
    max_attempts: u32,
    history: Arc<Mutex<DeferredHistory>>,
}

impl DeferrableRequest {
    fn new(
        (node_addr, incarnation): (SocketAddr, Option<ProcessIncarnation>),
        resource: &str,
        max_attempts: u32,
        history: Arc<Mutex<DeferredHistory>>,
    ) -> Self {
        Self {
            node_addr,
            incarnation,
            resource: resource.to_owned(),
            method: "POST",
            route: "later",
            query: String::new(),
            idempotency_key: None,
            terms: AcceptedTerms::SINGLE_RUN,
            max_attempts,
            history,
        }
    }

    /// Uses PUT, which is repeatable.
    pub fn put(self) -> Self {
        Self { method: "PUT", terms: AcceptedTerms::retryable(self.max_attempts), ..self }
    }

    /// Sets the handler's instructions: `ms`, and the numbers of attempts that `fail`, `abort` or
    /// `panic`.
    pub fn instruct_handler(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    /// Adds an `Idempotency-Key`.
    pub fn idempotency_key(self, key: &str) -> Self {
        Self { idempotency_key: Some(format!("\"{key}\"")), ..self }
    }

    /// Lets later jobs overtake it while it waits for a retry.
    pub fn skip_on_failure(self) -> Self {
        let terms = AcceptedTerms { allows_overtaking: true, ..self.terms };
        Self { route: "skip", terms, ..self }
    }

    /// Requires a replica acknowledgement for the 202, and lets later jobs overtake it.
    pub fn replicated(self) -> Self {
        Self { route: "sure", ..self.skip_on_failure() }
    }

    /// Delays the run by [`RUN_DELAY`](crate::ledger::RUN_DELAY).
    pub fn delayed(self) -> Self {
        let terms = AcceptedTerms { is_unordered: true, ..self.terms };
        Self { route: "delayed", terms, ..self }
    }

    /// Sets a deadline of [`RUN_EXPIRY`](crate::ledger::RUN_EXPIRY) for the start of the run.
    pub fn expiring(self) -> Self {
        Self { route: "soon", ..self }
    }

    /// Records direct runs under their idempotency key too.
    pub fn idempotent_direct(self) -> Self {
        Self { route: "once", ..self }
    }

    /// Not deferred: the request is refused if its resource is busy.
    pub fn refused_if_busy(self) -> Self {
        Self { route: "pay", ..self }
    }

    /// Not deferred: the request waits if its resource is busy.
    pub fn waiting_if_busy(self) -> Self {
        Self { route: "ship", ..self }
    }

    /// Sends the request and records the result.
    pub async fn send(self) -> SendOutcome {
        let target = format!("/orders/{}/{}?{}", self.resource, self.route, self.query);
        let mut request = request(self.node_addr, self.method, &target);
        if let Some(key) = &self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let sent = clock::now_ns();
        let answer = request.send_within(CLIENT_TIMEOUT).await;
        let outcome = answer.map_or(SendOutcome::NoResponse, |answer| classify_response(&answer));
        self.record_outcome(&outcome, sent);
        outcome
    }

    /// Sends the request and expects that it is accepted.
    ///
    /// # Panics
    ///
    /// If it is not accepted.
    pub async fn send_accepted(self) -> String {
        match self.send().await {
            SendOutcome::Accepted(id) => id,
            other => panic!("not accepted: {other:?}"),
        }
    }

    fn record_outcome(&self, outcome: &SendOutcome, sent: u64) {
        let mut history = self.history.lock();
        history.exchanges.push(ClientExchange {
            resource: self.resource.clone(),
            incarnation: self.incarnation,
            sent_at: sent,
            answered_at: clock::now_ns(),
            answer: outcome.client_answer(),
        });
        let (id, is_certain) = match outcome {
            SendOutcome::Accepted(id) => (id, true),
            SendOutcome::PossiblyAccepted(id) => (id, false),
            SendOutcome::NoResponse => {
                *history.unanswered_counts.entry(self.resource.clone()).or_default() += 1;
                return;
            }
            SendOutcome::RanDirectly(..) | SendOutcome::Refused(..) => return,
        };
        // A retry belongs to the job of the first request and does not change its order.
        if let Some(accepted) = history.accepted.iter_mut().find(|accepted| accepted.id == *id) {
            accepted.is_certain |= is_certain;
            return;
        }
        history.accepted.push(AcceptedJob {
            id: id.clone(),
            resource: self.resource.clone(),
            sent_at: sent,
            answered_at: clock::now_ns(),
            terms: self.terms,
            is_certain,
        });
    }
}

impl SendOutcome {
    fn client_answer(&self) -> deferred::ClientAnswer {
        match self {
            Self::Accepted(_) => deferred::ClientAnswer::Accepted,
            Self::PossiblyAccepted(_) => deferred::ClientAnswer::PossiblyAccepted,
            Self::RanDirectly(status, body) | Self::Refused(status, body) => {
                deferred::ClientAnswer::Response { status: *status, body: body.clone() }
            }
            Self::NoResponse => deferred::ClientAnswer::NoResponse,
        }
    }
}

fn classify_response(answer: &TestResponse) -> SendOutcome {
    let status = answer.status.as_u16();
    let id = || answer.header("location").rsplit('/').next().unwrap_or_default().to_owned();
    match status {
        202 => SendOutcome::Accepted(id()),
        503 if answer.has_header("location") => SendOutcome::PossiblyAccepted(id()),
        200 | 500 => SendOutcome::RanDirectly(status, answer.text()),
        _ => SendOutcome::Refused(status, answer.text()),
    }
}
