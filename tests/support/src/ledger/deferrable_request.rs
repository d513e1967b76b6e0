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

/// Longer than anything takes, whatever is done to the store meanwhile: a wait in line, and calls that run into their deadlines.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(40);

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// 202, with this id.
    Accepted(String),
    /// 503 with a `Location`: it may have been stored, under this id.
    PossiblyAccepted(String),
    /// It ran at once, and answered this.
    RanDirectly(u16, String),
    /// It was not taken: status and body.
    Refused(u16, String),
    /// There was no answer.
    NoResponse,
}

/// Who listens where.
pub(super) type ListenerMap = Arc<Mutex<HashMap<SocketAddr, ProcessIncarnation>>>;

/// Makes requests whose answers go into the books.
#[derive(Debug, Clone)]
pub struct RecordingClient {
    pub(super) max_attempts: u32,
    pub(super) history: Arc<Mutex<DeferredHistory>>,
    pub(super) sent_requests: Arc<AtomicU64>,
    pub(super) listeners: ListenerMap,
}

impl RecordingClient {
    /// A POST that may be deferred, to the node that listens there.
    pub fn deferrable_request(&self, at: SocketAddr, resource: &str) -> DeferrableRequest {
        self.sent_requests.fetch_add(1, Ordering::Relaxed);
        let life = self.listeners.lock().get(&at).copied();
        DeferrableRequest::new((at, life), resource, self.max_attempts, Arc::clone(&self.history))
    }
}

/// A request in the making.
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
        (to, life): (SocketAddr, Option<ProcessIncarnation>),
        resource: &str,
        most: u32,
        history: Arc<Mutex<DeferredHistory>>,
    ) -> Self {
        Self {
            node_addr: to,
            incarnation: life,
            resource: resource.to_owned(),
            method: "POST",
            route: "later",
            query: String::new(),
            idempotency_key: None,
            terms: AcceptedTerms::SINGLE_RUN,
            max_attempts: most,
            history,
        }
    }

    /// A PUT, which may run again.
    pub fn put(self) -> Self {
        Self { method: "PUT", terms: AcceptedTerms::retryable(self.max_attempts), ..self }
    }

    /// What the handler is to do: `ms`, and how many attempts `fail`, `abort` or `panic`.
    pub fn instruct_handler(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    /// With an `Idempotency-Key`.
    pub fn idempotency_key(self, key: &str) -> Self {
        Self { idempotency_key: Some(format!("\"{key}\"")), ..self }
    }

    /// Later ones pass it while it waits for a retry.
    pub fn skip_on_failure(self) -> Self {
        let terms = AcceptedTerms { allows_overtaking: true, ..self.terms };
        Self { route: "skip", terms, ..self }
    }

    /// Accepted only if a replica has it; later ones pass it, too.
    pub fn replicated(self) -> Self {
        Self { route: "sure", ..self.skip_on_failure() }
    }

    /// Does not run before [`RUN_DELAY`](crate::ledger::RUN_DELAY) has passed.
    pub fn delayed(self) -> Self {
        let terms = AcceptedTerms { is_unordered: true, ..self.terms };
        Self { route: "delayed", terms, ..self }
    }

    /// Is expired if it has not begun after [`RUN_EXPIRY`](crate::ledger::RUN_EXPIRY).
    pub fn expiring(self) -> Self {
        Self { route: "soon", ..self }
    }

    /// Remembered also if it runs at once.
    pub fn idempotent_direct(self) -> Self {
        Self { route: "once", ..self }
    }

    /// Not deferred: refused if its resource is busy.
    pub fn refused_if_busy(self) -> Self {
        Self { route: "pay", ..self }
    }

    /// Not deferred: waits if its resource is busy.
    pub fn waiting_if_busy(self) -> Self {
        Self { route: "ship", ..self }
    }

    /// Sends it, and writes down what the client was told.
    pub async fn send(self) -> SendOutcome {
        let target = format!("/orders/{}/{}?{}", self.resource, self.route, self.query);
        let mut request = request(self.node_addr, self.method, &target);
        if let Some(key) = &self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        let sent = clock::now_ns();
        let answer = request.send_within(CLIENT_TIMEOUT).await;
        let told = answer.map_or(SendOutcome::NoResponse, |answer| classify_response(&answer));
        self.record_outcome(&told, sent);
        told
    }

    /// Sends it; it has to be accepted.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub async fn send_accepted(self) -> String {
        match self.send().await {
            SendOutcome::Accepted(id) => id,
            other => panic!("not accepted: {other:?}"),
        }
    }

    fn record_outcome(&self, told: &SendOutcome, sent: u64) {
        let mut history = self.history.lock();
        history.exchanges.push(ClientExchange {
            resource: self.resource.clone(),
            incarnation: self.incarnation,
            sent_at: sent,
            answered_at: clock::now_ns(),
            answer: told.client_answer(),
        });
        let (id, sure) = match told {
            SendOutcome::Accepted(id) => (id, true),
            SendOutcome::PossiblyAccepted(id) => (id, false),
            SendOutcome::NoResponse => {
                *history.unanswered_counts.entry(self.resource.clone()).or_default() += 1;
                return;
            }
            SendOutcome::RanDirectly(..) | SendOutcome::Refused(..) => return,
        };
        // The same request once more: its place is that of the first.
        if let Some(known) = history.accepted.iter_mut().find(|known| known.id == *id) {
            known.is_certain |= sure;
            return;
        }
        history.accepted.push(AcceptedJob {
            id: id.clone(),
            resource: self.resource.clone(),
            sent_at: sent,
            answered_at: clock::now_ns(),
            terms: self.terms,
            is_certain: sure,
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
