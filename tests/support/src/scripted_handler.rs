//! `ScriptedHandler`: handler without framework types. It follows the query, records its run, and
//! returns the request as the framework presents it.
//!
//! | query | effect |
//! |---|---|
//! | `gate=NAME` | stops at the gate before its work |
//! | `stops=NAME` | stops at the gate; if its run is cancelled there, it answers with 503 |
//! | `after=NAME` | stops at the gate after its work |
//! | `first=NAME` | reads the first chunk of the body, then stops at the gate |
//! | `unread=1` | does not read the body |
//! | `status=N` | answers with this status |
//! | `fail=N` | answers with 500 on the first N runs of a deferred request |
//! | `panic=1` | panics |
//! | `cookie=1` | sets a cookie |
//! | `text=WORD` | answers with this text instead of the JSON of the observed request |
//! | `echo=1` | answers with the body it got |
//! | `stream=NAME` | sends the head and `first`, stops at the gate, and continues with `last` |
//! | `events=1` | has the content type of server-sent events |
//! | `mib=N` | sends this number of MiB after that gate |
//! | `breaks=how` | the body ends after that gate: `error` or `panic` |
//! | `tag=WORD` | is recorded with this tag |

use std::{
    collections::{HashMap, HashSet},
    fmt, io,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures_util::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use lockgate::RunCancellation;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::sync_points::SyncPoints;

/// State that the handlers of all sites of a case share.
#[derive(Debug, Clone, Default)]
pub struct ScriptedHandler {
    /// The gates of the case.
    pub sync_points: SyncPoints,
    completed_runs: Arc<Mutex<Vec<HandlerRun>>>,
    revoked_users: Arc<Mutex<HashSet<String>>>,
}

/// One run of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerRun {
    /// Tag in the query.
    pub tag: String,
    /// The site in which it ran.
    pub site: String,
    /// Fence of the lock.
    pub fence: Option<u64>,
    /// True for a deferred request.
    pub is_deferred: bool,
}

/// Request as the framework shows it to a handler.
#[derive(Debug, Default)]
pub struct ObservedRequest {
    /// Site of the handler.
    pub site: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The pattern of the route.
    pub route: String,
    /// The path parameter of the framework's own extractor.
    pub path_id: Option<String>,
    /// Headers in order.
    pub headers: Vec<(String, String)>,
    /// The peer address.
    pub peer_addr: Option<String>,
    /// Fence of the lock; `None` without a lock.
    pub fence: Option<u64>,
    /// All locks: names and fences.
    pub locks: Vec<(String, u64)>,
    /// Result of a reentrant acquire of the first lock.
    pub reentrant_acquire: Value,
    /// Delegation of the first lock, for another service.
    pub delegation: Option<String>,
    /// Remaining units of the quota.
    pub quota_remaining: Option<u64>,
    /// User of the authentication.
    pub user: Option<String>,
    /// Fence of the running job.
    pub run_fence: Option<u64>,
    /// Id and attempt of the deferred request.
    pub job: Option<(String, u32)>,
    /// Cancellation of its run.
    pub cancellation: RunCancellation,
}

/// Response of the handler.
#[derive(Debug)]
pub struct HandlerResponse {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: HandlerBody,
}

/// Body of a response.
pub enum HandlerBody {
    /// Complete body.
    Whole(Bytes),
    /// Stream of unknown length.
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

impl ScriptedHandler {
    /// Revokes a user's rights: deferred requests that carry this user are not run.
    pub fn revoke_user(&self, user: &str) {
        self.revoked_users.lock().insert(user.to_owned());
    }

    /// Returns true if a user's rights were revoked.
    #[must_use]
    pub fn is_revoked(&self, user: &str) -> bool {
        self.revoked_users.lock().contains(user)
    }

    /// Handles a request as its query says.
    ///
    /// # Panics
    ///
    /// If the query asks for it.
    pub async fn handle_request<S, E>(&self, observed: ObservedRequest, body: S) -> HandlerResponse
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let query = parse_query(&observed.target);
        let body = match query.get("unread") {
            None => self.read_body(body, query.get("first")).await,
            Some(_) => Bytes::new(),
        };
        if let Some(gate) = query.get("gate") {
            self.sync_points.wait_at(gate).await;
        }
        if let Some(gate) = query.get("stops") {
            tokio::select! {
                () = self.sync_points.wait_at(gate) => {}
                () = observed.cancellation.cancelled() => {
                    return HandlerResponse::new(503, "text/plain", "stopped");
                }
            }
        }
        self.record_run(HandlerRun {
            tag: query.get("tag").cloned().unwrap_or_default(),
            site: observed.site.clone(),
            fence: observed.fence,
            is_deferred: observed.job.is_some(),
        });
        if let Some(gate) = query.get("after") {
            self.sync_points.wait_at(gate).await;
        }
        assert!(!query.contains_key("panic"), "the request asked for it");
        let number = |name| query.get(name).and_then(|text| text.parse::<u32>().ok());
        let attempt = observed.job.as_ref().map_or(0, |(_, attempt)| *attempt);
        let fails = number("fail").is_some_and(|runs| attempt <= runs);
        let status = if fails { 500 } else { number("status").unwrap_or(200) };
        let status = u16::try_from(status).unwrap_or(500);
        let mut response = if let Some(text) = query.get("text") {
            HandlerResponse::new(status, "text/plain", text.clone())
        } else if query.contains_key("echo") {
            HandlerResponse::new(status, "application/octet-stream", body)
        } else {
            HandlerResponse::new(status, "application/json", observed.to_json(&body).to_string())
        };
        if let Some(gate) = query.get("stream") {
            response.body =
                HandlerBody::Stream(self.gated_stream(gate, number("mib"), query.get("breaks")));
        }
        if query.contains_key("events") {
            response.headers = vec![("content-type", "text/event-stream".to_owned())];
        }
        if query.contains_key("cookie") {
            response.headers.push(("set-cookie", "secret=1".to_owned()));
        }
        response
    }

    async fn read_body<S, E>(&self, mut body: S, first: Option<&String>) -> Bytes
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
    {
        let mut bytes = BytesMut::new();
        while let Some(Ok(chunk)) = body.next().await {
            if let Some(gate) = first.filter(|_| bytes.is_empty()) {
                self.sync_points.wait_at(gate).await;
            }
            bytes.extend_from_slice(&chunk);
        }
        bytes.freeze()
    }

    fn gated_stream(
        &self,
        gate: &str,
        mib: Option<u32>,
        failure: Option<&String>,
    ) -> BoxStream<'static, io::Result<Bytes>> {
        let (sync_points, gate, failure) =
            (self.sync_points.clone(), gate.to_owned(), failure.cloned());
        let first = stream::once(async { Ok(Bytes::from_static(b"first")) });
        let filler =
            stream::iter((0..mib.unwrap_or(0)).map(|_| Ok(Bytes::from(vec![b'.'; 1 << 20]))));
        let gated = stream::once(async move {
            sync_points.wait_at(&gate).await;
            match failure.as_deref() {
                Some("panic") => panic!("the request asked for it"),
                Some(_) => Err(io::Error::other("the request asked for it")),
                None => Ok(Bytes::from_static(b"-")),
            }
        });
        let end = stream::once(async { Ok(Bytes::from_static(b"last")) });
        first.chain(gated).chain(filler).chain(end).boxed()
    }

    fn record_run(&self, run: HandlerRun) {
        self.completed_runs.lock().push(run);
    }

    /// Returns the runs, in order.
    #[must_use]
    pub fn completed_runs(&self) -> Vec<HandlerRun> {
        self.completed_runs.lock().clone()
    }

    /// Clears the recorded runs.
    pub fn clear_runs(&self) {
        self.completed_runs.lock().clear();
    }

    /// Returns the tags of the runs, in order.
    #[must_use]
    pub fn run_tags(&self) -> Vec<String> {
        self.completed_runs.lock().iter().map(|run| run.tag.clone()).collect()
    }
}

impl HandlerResponse {
    fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type", content_type.to_owned())],
            body: HandlerBody::Whole(body.into()),
        }
    }
}

impl fmt::Debug for HandlerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => f.debug_tuple("Whole").field(bytes).finish(),
            Self::Stream(_) => f.debug_tuple("Stream").finish_non_exhaustive(),
        }
    }
}

impl ObservedRequest {
    fn to_json(&self, body: &Bytes) -> Value {
        json!({
            "site": self.site,
            "method": self.method,
            "target": self.target,
            "route": self.route,
            "id": self.path_id,
            "headers": self.headers,
            "peer": self.peer_addr,
            "fence": self.fence,
            "locks": self.locks,
            "inner": self.reentrant_acquire,
            "delegation": self.delegation,
            "remaining": self.quota_remaining,
            "user": self.user,
            "run": self.run_fence,
            "deferred": self.job.as_ref().map(|(id, attempt)| json!({ "id": id, "attempt": attempt })),
            "body": String::from_utf8_lossy(body),
        })
    }
}

/// Parses the query. The tests use no parameters that need decoding.
fn parse_query(target: &str) -> HashMap<String, String> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
