//! A request that may be deferred, and the line of the client's log about it.

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
    http::{Answer, request},
};

/// Longer than anything takes, whatever is done to the store meanwhile: a wait in line, and calls that run into their deadlines.
const GIVES_UP: Duration = Duration::from_secs(40);

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// 202, with this id.
    Accepted(String),
    /// 503 with a `Location`: it may have been stored, under this id.
    Perhaps(String),
    /// It ran at once, and answered this.
    Ran(u16, String),
    /// It was not taken: status and body.
    Refused(u16, String),
    /// There was no answer.
    Nothing,
}

/// Who listens where.
pub(super) type Listeners = Arc<Mutex<HashMap<SocketAddr, ProcessIncarnation>>>;

/// Makes requests whose answers go into the books.
#[derive(Debug, Clone)]
pub struct Requests {
    pub(super) most: u32,
    pub(super) history: Arc<Mutex<DeferredHistory>>,
    pub(super) sent: Arc<AtomicU64>,
    pub(super) listeners: Listeners,
}

impl Requests {
    /// A POST that may be deferred, to the node that listens there.
    pub fn later(&self, at: SocketAddr, resource: &str) -> Later {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let life = self.listeners.lock().get(&at).copied();
        Later::new((at, life), resource, self.most, Arc::clone(&self.history))
    }
}

/// A request in the making.
#[derive(Debug)]
#[must_use = "it is not sent yet"]
pub struct Later {
    to: SocketAddr,
    life: Option<ProcessIncarnation>,
    resource: String,
    method: &'static str,
    route: &'static str,
    query: String,
    key: Option<String>,
    terms: AcceptedTerms,
    most: u32,
    history: Arc<Mutex<DeferredHistory>>,
}

impl Later {
    fn new(
        (to, life): (SocketAddr, Option<ProcessIncarnation>),
        resource: &str,
        most: u32,
        history: Arc<Mutex<DeferredHistory>>,
    ) -> Self {
        Self {
            to,
            life,
            resource: resource.to_owned(),
            method: "POST",
            route: "later",
            query: String::new(),
            key: None,
            terms: AcceptedTerms::SINGLE_RUN,
            most,
            history,
        }
    }

    /// A PUT, which may run again.
    pub fn put(self) -> Self {
        Self { method: "PUT", terms: AcceptedTerms::retryable(self.most), ..self }
    }

    /// What the handler is to do: `ms`, and how many attempts `fail`, `abort` or `panic`.
    pub fn wish(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    /// With an `Idempotency-Key`.
    pub fn key(self, key: &str) -> Self {
        Self { key: Some(format!("\"{key}\"")), ..self }
    }

    /// Later ones pass it while it waits for a retry.
    pub fn skip(self) -> Self {
        let terms = AcceptedTerms { allows_overtaking: true, ..self.terms };
        Self { route: "skip", terms, ..self }
    }

    /// Accepted only if a replica has it; later ones pass it, too.
    pub fn sure(self) -> Self {
        Self { route: "sure", ..self.skip() }
    }

    /// Does not run before [`DELAY`](crate::ledger::DELAY) has passed.
    pub fn delayed(self) -> Self {
        let terms = AcceptedTerms { is_unordered: true, ..self.terms };
        Self { route: "delayed", terms, ..self }
    }

    /// Is expired if it has not begun after [`SOON`](crate::ledger::SOON).
    pub fn soon(self) -> Self {
        Self { route: "soon", ..self }
    }

    /// Remembered also if it runs at once.
    pub fn once(self) -> Self {
        Self { route: "once", ..self }
    }

    /// Not deferred: refused if its resource is busy.
    pub fn pay(self) -> Self {
        Self { route: "pay", ..self }
    }

    /// Not deferred: waits if its resource is busy.
    pub fn ship(self) -> Self {
        Self { route: "ship", ..self }
    }

    /// Sends it, and writes down what the client was told.
    pub async fn send(self) -> Told {
        let target = format!("/orders/{}/{}?{}", self.resource, self.route, self.query);
        let mut request = request(self.to, self.method, &target);
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        let sent = clock::now();
        let answer = request.answer_within(GIVES_UP).await;
        let told = answer.map_or(Told::Nothing, |answer| told(&answer));
        self.note(&told, sent);
        told
    }

    /// Sends it; it has to be accepted.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub async fn accepted(self) -> String {
        match self.send().await {
            Told::Accepted(id) => id,
            other => panic!("not accepted: {other:?}"),
        }
    }

    fn note(&self, told: &Told, sent: u64) {
        let mut history = self.history.lock();
        history.exchanges.push(ClientExchange {
            resource: self.resource.clone(),
            incarnation: self.life,
            sent_at: sent,
            answered_at: clock::now(),
            answer: told.answer(),
        });
        let (id, sure) = match told {
            Told::Accepted(id) => (id, true),
            Told::Perhaps(id) => (id, false),
            Told::Nothing => {
                *history.unanswered.entry(self.resource.clone()).or_default() += 1;
                return;
            }
            Told::Ran(..) | Told::Refused(..) => return,
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
            answered_at: clock::now(),
            terms: self.terms,
            is_certain: sure,
        });
    }
}

impl Told {
    fn answer(&self) -> deferred::ClientAnswer {
        match self {
            Self::Accepted(_) => deferred::ClientAnswer::Accepted,
            Self::Perhaps(_) => deferred::ClientAnswer::PossiblyAccepted,
            Self::Ran(status, body) | Self::Refused(status, body) => {
                deferred::ClientAnswer::Response(*status, body.clone())
            }
            Self::Nothing => deferred::ClientAnswer::NoResponse,
        }
    }
}

fn told(answer: &Answer) -> Told {
    let status = answer.status.as_u16();
    let id = || answer.field("location").rsplit('/').next().unwrap_or_default().to_owned();
    match status {
        202 => Told::Accepted(id()),
        503 if answer.has("location") => Told::Perhaps(id()),
        200 | 500 => Told::Ran(status, answer.text()),
        _ => Told::Refused(status, answer.text()),
    }
}
