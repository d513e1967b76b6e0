//! Deferred requests, sent to another process.

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, ResponseFuture, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde_json::Value;
use tokio::time::Instant;
use tower_service::Service as _;

use super::replay_claims::{self, REPLAY_HEADER, ReplayClaims};
use crate::{
    clock::{MAX_DURATION, ceil_millis},
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer},
    gate::{HttpRequestHead, ReplayMarker},
    lock::{HeldLock, SharedSecret},
    middleware::read_response_body,
    outbound::{
        FnConnector, OutboundError, TlsClientConfig, describe_error_chain, system_tls_config,
        with_tls,
    },
    reply::problem,
    store::Store,
};

/// How long a connection waits for the next run. Servers close idle ones after two seconds (gunicorn), five (node, actix-web)
/// or more; a run that meets that on its way is not answered, and nobody knows that it has not run.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// hyper-util's client, without the type of its connector.
type HttpSender = dyn Fn(Request<Full<Bytes>>) -> ResponseFuture + Send + Sync;

/// Half of a run's time is for its connection: one that nobody answers has not run, and is told apart from one that nobody
/// answered in time.
#[allow(clippy::needless_question_mark, reason = "without TLS the connector has another error")]
fn build_sender(tls: &TlsClientConfig, timeout: Duration) -> Arc<HttpSender> {
    let limit = timeout / 2;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // `HttpConnector` divides its limit among the addresses of a name, but counts neither the lookup
    // nor the TLS handshake.
    tcp.set_connect_timeout(Some(limit));
    let connector = with_tls(tcp, tls);
    let connector = FnConnector(move |uri| {
        let connecting = tokio::time::timeout(limit, connector.clone().call(uri));
        Box::pin(async move { Ok::<_, OutboundError>(connecting.await??) })
    });
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(connector);
    Arc::new(move |request| client.request(request))
}

/// A request, and until when what it says of its lock holds.
type SignedRequest = (Request<Full<Bytes>>, Instant);

/// Bytes of a problem that are read, to know which one it is.
const MAX_PROBLEM_BYTES: usize = 4096;

/// How much longer than its run the field is good for: so much the clocks of the two machines may differ. Whoever is
/// asked whether the run goes on has the store's word for that; this is for those who can't ask.
const CLOCK_SKEW_ALLOWANCE: Duration = Duration::from_secs(60);

/// Runs deferred requests by sending them to another process, over HTTP/1.1. See [`remote`](super) for what it
/// sends. By `https` it goes with the feature `http-replay-tls`: rustls with ring, and the system's roots.
///
/// The worker's lease has to be longer than a run may last: what is said of its lock is not renewed.
///
/// A run that was not answered in time, or whose connection broke, may go on over there; so may one that was answered by
/// 502, 503, 504 or 520 and above without the field `Lockgate-Replay`, which may be a gateway's word. So its lock is kept until the end
/// of what was said of it, and the run has failed then; and if the worker stops before, its lock is left to its lease.
#[derive(Clone)]
pub struct HttpReplayer {
    sender: Arc<HttpSender>,
    tls: TlsClientConfig,
    base_url: String,
    /// Of more than the server.
    base_has_path: bool,
    store: Store,
    secret: SharedSecret,
    timeout: Duration,
}

impl HttpReplayer {
    /// Sends the requests of this store to their paths under this URL. If it has a path itself, a request whose path
    /// has a segment `.` or `..`, in whichever spelling, is not sent, and has failed: it might come out elsewhere.
    ///
    /// # Panics
    ///
    /// If the URL is not one of `http://` (or `https://`, with the feature), with an authority, and without a query
    /// or a fragment.
    #[must_use]
    pub fn new(store: &Store, base: &str, secret: &SharedSecret) -> Self {
        let url = base.parse::<Uri>().ok();
        // By the parsed one: a scheme may be written in capitals.
        let scheme = url.as_ref().and_then(Uri::scheme_str);
        let https = scheme == Some("https");
        let fits = |url: &Uri| {
            (scheme == Some("http") || https && cfg!(feature = "http-replay-tls"))
                && url.authority().is_some()
                && url.query().is_none()
                // The parsed one has no fragment any more; the text has, and every path would be a part of it.
                && !base.contains('#')
        };
        // Without the URL: one may have a password.
        assert!(
            url.as_ref().is_some_and(fits),
            "HttpReplayer: this is no URL such as http://orders:8080 or http://orders/api"
        );
        let (tls, timeout) = (system_tls_config(https, "runs elsewhere"), Duration::from_secs(8));
        let has_path = url.as_ref().is_some_and(|url| !matches!(url.path(), "" | "/"));
        Self {
            base_has_path: has_path,
            sender: build_sender(&tls, timeout),
            tls,
            base_url: base.trim_end_matches('/').to_owned(),
            store: store.clone(),
            secret: secret.clone(),
            timeout,
        }
    }

    /// Trusts this certificate alone.
    #[cfg(all(test, feature = "http-replay-tls"))]
    pub(super) fn trusting(mut self, tls: TlsClientConfig) -> Self {
        self.tls = tls;
        let timeout = self.timeout;
        self.timeout(timeout)
    }

    /// Longest time for an answer, its body included. Default 8 s, which is within a worker's lease; what
    /// takes longer has failed, once its lock is not said to be held any more. Half of it is for the connection: whoever
    /// is not reached within that has run nothing, and the request goes back uncharged.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_DURATION);
        self.sender = build_sender(&self.tls, self.timeout);
        self
    }

    /// With the moment until which the lock over there is this run's. `None`: it is not one that can be sent.
    fn sign_request(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: &ReplayMarker,
    ) -> Option<SignedRequest> {
        // Whatever the path is, the authority and the base stay what they are.
        let target = Some(head.target).filter(|target| target.starts_with('/'))?;
        if self.base_has_path && escapes_base_path(&target) {
            crate::throttle::throttled!(
                error,
                job = ?marker.job().id, "a path with dot segments is not sent: it might leave its base"
            );
            return None;
        }
        let uri = format!("{}{target}", self.base_url).parse::<Uri>().ok()?;
        let signed = replay_claims::SignatureInput {
            method: &head.method,
            target: uri.path_and_query()?.as_str(),
            body: &body,
        };
        let field = self.replay_claims(marker)?.sign(&self.secret, signed);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::from_bytes(head.method.as_bytes()).ok()?;
        *request.uri_mut() = uri;
        let held = HeldLock::from_run(marker.store(), marker.hold());
        let word = held.delegation_header(&self.store, &self.secret);
        // After it was signed: it may have been renewed in between, and the word must not outlast this.
        let until = Instant::now() + held.remaining();
        let own = [(REPLAY_HEADER, field)].into_iter().chain(word);
        let own = own.map(|(name, value)| (name.to_owned(), value.into_bytes()));
        let peer: Vec<_> = match head.peer {
            Some(peer) => forwarded_headers(peer).to_vec(),
            None => unknown_forwarded_headers(&head.headers).collect(),
        };
        // The host is the one that it is sent to.
        let stored = head.headers.into_iter().filter(|(name, _)| name != "host");
        for (name, value) in stored.chain(peer).chain(own) {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            request.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
        }
        Some((request, until))
    }

    fn replay_claims(&self, marker: &ReplayMarker) -> Option<ReplayClaims> {
        let deferred = marker.job();
        let unix = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(ReplayClaims {
            store_identity: marker.store().backend().identities().pop()?.to_string(),
            id: deferred.id.as_str().to_owned(),
            attempt: deferred.attempt,
            fence: deferred.fence,
            first_seen_ms: ceil_millis(unix(deferred.accepted_at)),
            end_ms: ceil_millis(
                unix(SystemTime::now())
                    .saturating_add(self.timeout)
                    .saturating_add(CLOCK_SKEW_ALLOWANCE),
            ),
        })
    }

    async fn send_request(
        self,
        request: Request<Full<Bytes>>,
        marker: &ReplayMarker,
        limit: usize,
    ) -> ReplayOutcome {
        let response = match (self.sender)(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                marker.mark_remote_ended();
                return ReplayOutcome::Unreachable;
            }
            Err(error) => {
                let error = describe_error_chain(&error);
                tracing::warn!(job = ?marker.job().id, error, "a run was not answered");
                return ReplayOutcome::Failed;
            }
        };
        let (parts, body) = response.into_parts();
        if !matches!(parts.status.as_u16(), 404 | 405) || parts.headers.contains_key(REPLAY_HEADER)
        {
            marker.mark_lock_passed();
        }
        // Of a problem all is read that says which one it is, however little of an answer is kept.
        let most =
            if is_problem_json(&parts.headers) { limit.max(MAX_PROBLEM_BYTES) } else { limit };
        let Some(mut body) = read_response_body(&parts.headers, body, most).await else {
            return ReplayOutcome::Failed;
        };
        let not_run = matches!(&body, ReplayBody::Full(bytes) if is_problem_json(&parts.headers) && reports_not_run(bytes));
        // A gateway may have answered, which waits no longer.
        if not_run || !is_gateway_error(parts.status) || parts.headers.contains_key(REPLAY_HEADER) {
            marker.mark_remote_ended();
        }
        if not_run {
            marker.record_busy_status(parts.status.as_u16());
        }
        if matches!(&body, ReplayBody::Full(bytes) if bytes.len() > limit) {
            body = ReplayBody::TooLong;
        }
        let field = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), value.as_bytes().to_vec())
        };
        let headers = parts.headers.iter().map(field).collect();
        ReplayOutcome::Answered(ReplayResponse { status: parts.status.as_u16(), headers, body })
    }
}

/// Whom a request came from is the last of those it went by: the service over there has this process for its peer, and
/// what stands before it in these lists was said by that peer, or by its client. RFC 7239 section 4.
fn forwarded_headers(peer: SocketAddr) -> [(String, Vec<u8>); 2] {
    let ip = peer.ip().to_canonical();
    let node = if ip.is_ipv6() { format!("for=\"[{ip}]\"") } else { format!("for={ip}") };
    [("x-forwarded-for", ip.to_string()), ("forwarded", node)]
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
}

/// Where nobody knows whom it came from, what its client has said of that must not be the last word: RFC 7239 section 6.2.
fn unknown_forwarded_headers(
    headers: &[(String, Vec<u8>)],
) -> impl Iterator<Item = (String, Vec<u8>)> + use<> {
    let said = [("x-forwarded-for", "unknown"), ("forwarded", "for=unknown")]
        .map(|(name, value)| (headers.iter().any(|(sent, _)| sent == name), name, value));
    let said = said.into_iter().filter(|(is_sent, ..)| *is_sent);
    said.map(|(_, name, value)| (name.to_owned(), value.as_bytes().to_vec()))
}

/// Whether somebody on the way could take the path for one outside of what stands before it: a segment of dots, in
/// whichever spelling, between anything that somebody takes for the end of a segment.
fn escapes_base_path(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default().to_ascii_lowercase();
    let path =
        path.replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\").replace("%3b", ";");
    let mut segments = path.split(['/', '\\']);
    segments.any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
}

/// What gateways say of a service that has not answered them, those of content networks among it. A handler's own 500 is none.
fn is_gateway_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504 | 520..=599)
}

fn is_problem_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/problem+json")
}

/// Whether a problem is that of a lock over there which was busy, or whose store did not answer: whatever the
/// status, the request has not come to its handler.
fn reports_not_run(problem: &[u8]) -> bool {
    let problem = serde_json::from_slice::<Value>(problem).ok();
    let kind = problem.as_ref().and_then(|problem| problem.get("type")?.as_str());
    matches!(kind, Some(problem::BUSY | problem::REDUCED_CAPACITY))
}

impl Replayer for HttpReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        let (this, timeout) = (self.clone(), self.timeout);
        Box::pin(async move {
            // Mostly known: the job was claimed by it.
            if marker.store().identify().await.is_err() {
                return ReplayOutcome::Unreachable;
            }
            let Some((request, until)) = this.sign_request(head, body, &marker) else {
                return ReplayOutcome::Failed;
            };
            // From here on it may have run.
            if !marker.try_start() {
                return ReplayOutcome::Failed;
            }
            marker.mark_sent_remotely();
            let run = this.send_request(request, &marker, limit);
            let ran = tokio::time::timeout(timeout, run).await.unwrap_or(ReplayOutcome::Failed);
            if marker.is_running_remotely() {
                // Over there it may go on, for as long as it was told that it has the lock: the next run must not overlap it.
                tokio::time::sleep_until(until).await;
                marker.mark_remote_ended();
            }
            ran
        })
    }
}

impl fmt::Debug for HttpReplayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpReplayer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
