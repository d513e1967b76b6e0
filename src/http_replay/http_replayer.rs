//! `HttpReplayer`: sends deferred requests to another process over HTTP.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, ResponseFuture, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde_json::Value;
use tower_service::Service as _;

use super::{replay_claims::REPLAY_HEADER, sign_replay_request::SignedReplayRequest};
use crate::{
    defer::{ReplayBody, ReplayOutcome, ReplayResponse, Replayer},
    durations::MAX_DURATION,
    error::{Error, expect_setting},
    gate::{HttpRequestHead, ReplayMarker},
    lock::SharedSecret,
    middleware::read_response_body,
    outbound::{
        FnConnector, OutboundError, TlsClientConfig, describe_error_chain, system_tls_config,
        with_tls,
    },
    reply::problem,
    store::Store,
};

/// Time for which an idle connection is kept for the next run.
///
/// Servers close idle connections after two seconds (gunicorn), five (node, actix-web) or more. A
/// run that is sent at that moment gets no response, and it is unknown whether it has run.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// hyper-util's client, without the type of its connector.
type HttpSender = dyn Fn(Request<Full<Bytes>>) -> ResponseFuture + Send + Sync;

/// Builds a client that uses at most half of the timeout to connect. A run without a connection has
/// not run, unlike one without a response in time.
#[allow(clippy::needless_question_mark, reason = "the connector's error depends on TLS")]
fn build_sender(tls: &TlsClientConfig, timeout: Duration) -> Arc<HttpSender> {
    let connect_timeout = timeout / 2;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // `HttpConnector` divides its limit among the addresses of a name, but counts neither the
    // lookup nor the TLS handshake.
    tcp.set_connect_timeout(Some(connect_timeout));
    let connector = with_tls(tcp, tls);
    let connector = FnConnector(move |uri| {
        let connecting = tokio::time::timeout(connect_timeout, connector.clone().call(uri));
        Box::pin(async move { Ok::<_, OutboundError>(connecting.await??) })
    });
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build(connector);
    Arc::new(move |request| client.request(request))
}

/// Bytes of a problem document that are read to find its type.
const MAX_PROBLEM_BYTES: usize = 4096;

/// Replayer that sends deferred requests to another process, over HTTP/1.1. See
/// [`http_replay`](super) for the headers. `https` needs the feature `http-replay-tls`: rustls with
/// ring, and the system's root certificates.
///
/// The worker's lease must be longer than a run may last, because the delegation of its lock is not
/// renewed.
///
/// A run may continue at the receiver in these cases:
///
/// - There was no response in time, or the connection broke.
/// - The response was 502, 503, 504, or 520 and above without the header `Lockgate-Replay`; it may
///   come from a gateway.
///
/// Its lock is therefore kept until the delegation ends, and then the run has failed. If the worker
/// stops before, the lock is left to its lease.
#[derive(Clone)]
pub struct HttpReplayer {
    sender: Arc<HttpSender>,
    tls: TlsClientConfig,
    pub(super) base_url: String,
    /// True if the base URL has a path.
    pub(super) base_has_path: bool,
    pub(super) store: Store,
    pub(super) secret: SharedSecret,
    pub(super) timeout: Duration,
}

impl HttpReplayer {
    /// Creates a replayer that sends the requests of this store to their paths under this base URL.
    ///
    /// If the base URL has a path, a request with a path segment `.` or `..`, in any encoding, is
    /// not sent and has failed, because it might leave the base.
    ///
    /// # Panics
    ///
    /// If the URL is not an `http://` URL (or `https://`, with the feature) with an authority and
    /// without a query or a fragment. For a URL from a configuration use
    /// [`try_new`](Self::try_new).
    #[must_use]
    pub fn new(store: &Store, base: &str, secret: &SharedSecret) -> Self {
        expect_setting(Self::try_new(store, base, secret))
    }

    /// Like [`new`](Self::new), for a URL from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the URL is not as in `new`. The sentence does not
    /// contain it, since it may contain a password.
    pub fn try_new(store: &Store, base: &str, secret: &SharedSecret) -> Result<Self, Error> {
        let url = base.parse::<Uri>().ok();
        // Of the parsed URL, since a scheme may be in upper case.
        let scheme = url.as_ref().and_then(Uri::scheme_str);
        let is_https = scheme == Some("https");
        let is_valid_base = |url: &Uri| {
            (scheme == Some("http") || is_https && cfg!(feature = "http-replay-tls"))
                && url.authority().is_some()
                && url.query().is_none()
                // The parsed URL has lost its fragment. In the text, each request's path would
                // become part of it.
                && !base.contains('#')
        };
        if !url.as_ref().is_some_and(is_valid_base) {
            return Err(Error::setting(
                "HttpReplayer: the base is not a URL such as http://orders:8080 or \
                 http://orders/api",
            ));
        }
        let (tls, timeout) = (system_tls_config(is_https, "remote runs"), Duration::from_secs(8));
        let base_has_path = url.as_ref().is_some_and(|url| !matches!(url.path(), "" | "/"));
        Ok(Self {
            base_has_path,
            sender: build_sender(&tls, timeout),
            tls,
            base_url: base.trim_end_matches('/').to_owned(),
            store: store.clone(),
            secret: secret.clone(),
            timeout,
        })
    }

    /// Trusts only the certificates of this configuration.
    #[cfg(all(test, feature = "http-replay-tls"))]
    pub(super) fn with_tls_config(mut self, tls: TlsClientConfig) -> Self {
        self.tls = tls;
        let timeout = self.timeout;
        self.timeout(timeout)
    }

    /// Sets the longest time for a response, its body included. Default 8 s, which is within a
    /// worker's lease.
    ///
    /// A run that takes longer has failed, once the delegation of its lock has ended. Half of the
    /// time is for the connection: a run without one has not run, and the job returns to the queue
    /// uncharged.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(MAX_DURATION);
        self.sender = build_sender(&self.tls, self.timeout);
        self
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
                tracing::warn!(job = %marker.job().id.log_prefix(), error, "a remote run was not answered");
                return ReplayOutcome::Failed;
            }
        };
        let (parts, body) = response.into_parts();
        if !matches!(parts.status.as_u16(), 404 | 405) || parts.headers.contains_key(REPLAY_HEADER)
        {
            marker.mark_lock_passed();
        }
        // A problem document is read far enough to find its type, even if less of a response is
        // kept.
        let is_problem = is_problem_json(&parts.headers);
        let max_bytes = if is_problem { limit.max(MAX_PROBLEM_BYTES) } else { limit };
        let Some(mut body) = read_response_body(&parts.headers, body, max_bytes).await else {
            return ReplayOutcome::Failed;
        };
        let has_not_run =
            is_problem && matches!(&body, ReplayBody::Full(bytes) if reports_not_run(bytes));
        // Such a response may come from a gateway that timed out.
        if has_not_run
            || !is_gateway_error(parts.status)
            || parts.headers.contains_key(REPLAY_HEADER)
        {
            marker.mark_remote_ended();
        }
        if has_not_run {
            marker.record_busy_status(parts.status.as_u16());
        }
        if matches!(&body, ReplayBody::Full(bytes) if bytes.len() > limit) {
            body = ReplayBody::TooLong;
        }
        let to_pair = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), value.as_bytes().to_vec())
        };
        let headers = parts.headers.iter().map(to_pair).collect();
        ReplayOutcome::Answered(ReplayResponse { status: parts.status.as_u16(), headers, body })
    }
}

/// Returns true for statuses by which gateways and CDNs report a service that did not respond. A
/// handler's own 500 is not among them.
fn is_gateway_error(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504 | 520..=599)
}

fn is_problem_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/problem+json")
}

/// Returns true if a problem document reports a busy lock or an unavailable store: the request has
/// not reached its handler, with any status.
fn reports_not_run(problem: &[u8]) -> bool {
    let problem = serde_json::from_slice::<Value>(problem).ok();
    let problem_type = problem.as_ref().and_then(|problem| problem.get("type")?.as_str());
    matches!(problem_type, Some(problem::BUSY | problem::REDUCED_CAPACITY))
}

impl Replayer for HttpReplayer {
    fn replay(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: ReplayMarker,
        limit: usize,
    ) -> BoxFuture<'static, ReplayOutcome> {
        let (replayer, timeout) = (self.clone(), self.timeout);
        Box::pin(async move {
            // Usually known, because the store was connected to claim the job.
            if marker.store().identify().await.is_err() {
                return ReplayOutcome::Unreachable;
            }
            let Some(signed) = replayer.sign_request(head, body, &marker) else {
                return ReplayOutcome::Failed;
            };
            let SignedReplayRequest { request, delegation_until } = signed;
            // From here on the request may have run.
            if !marker.try_start() {
                return ReplayOutcome::Failed;
            }
            marker.mark_sent_remotely();
            let run = replayer.send_request(request, &marker, limit);
            let outcome = tokio::time::timeout(timeout, run).await.unwrap_or(ReplayOutcome::Failed);
            if marker.is_running_remotely() {
                // The run may continue at the receiver until the delegation ends, and the next run
                // must not overlap it.
                tokio::time::sleep_until(delegation_until).await;
                marker.mark_remote_ended();
            }
            outcome
        })
    }

    /// False: extension snapshots are not sent.
    fn restores_snapshots(&self) -> bool {
        false
    }
}

impl fmt::Debug for HttpReplayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpReplayer").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
