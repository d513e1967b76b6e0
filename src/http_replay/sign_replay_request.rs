//! `SignedReplayRequest`: the request of a replay, with the headers of its run, of its lock's
//! delegation, and of the client's address.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use tokio::time::Instant;

use super::{
    http_replayer::HttpReplayer,
    replay_claims::{REPLAY_HEADER, ReplayClaims, SignatureInput},
};
use crate::{
    durations::ceil_millis,
    gate::{HttpRequestHead, ReplayMarker},
    lock::HeldLock,
};

/// Request that is ready to be sent.
pub(super) struct SignedReplayRequest {
    pub(super) request: Request<Full<Bytes>>,
    /// End of the delegation of the lock.
    pub(super) delegation_until: Instant,
}

/// Time for which the replay header is valid beyond its run, to allow for clock skew between the
/// two machines. A verifier with access to the store does not depend on it.
const CLOCK_SKEW_ALLOWANCE: Duration = Duration::from_secs(60);

impl HttpReplayer {
    /// Builds the request with its signed headers. `None` if it cannot be sent.
    pub(super) fn sign_request(
        &self,
        head: HttpRequestHead,
        body: Bytes,
        marker: &ReplayMarker,
    ) -> Option<SignedReplayRequest> {
        let uri = self.target_uri(&head.target, marker)?;
        let input = SignatureInput {
            method: &head.method,
            target: uri.path_and_query()?.as_str(),
            body: &body,
        };
        let claims_header = self.replay_claims(marker)?.sign(&self.secret, input);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::from_bytes(head.method.as_bytes()).ok()?;
        *request.uri_mut() = uri;
        let held_lock = HeldLock::from_run(marker.store(), marker.hold());
        let delegation_header = held_lock.delegation_header(&self.store, &self.secret);
        // After signing: the lease may have been renewed in between, and the delegation must not
        // outlast this time.
        let delegation_until = Instant::now() + held_lock.remaining();
        let signed = [(REPLAY_HEADER, claims_header)].into_iter().chain(delegation_header);
        let signed = signed.map(|(name, value)| (name.to_owned(), value.into_bytes()));
        let forwarded: Vec<_> = match head.peer {
            Some(peer) => forwarded_headers(peer).to_vec(),
            None => unknown_forwarded_headers(&head.headers).collect(),
        };
        // The `host` header is that of the receiver.
        let stored = head.headers.into_iter().filter(|(name, _)| name != "host");
        for (name, value) in stored.chain(forwarded).chain(signed) {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            request.headers_mut().append(name, HeaderValue::from_bytes(&value).ok()?);
        }
        Some(SignedReplayRequest { request, delegation_until })
    }

    /// Returns the URI of a request's target under the base URL. With any path, the authority and
    /// the base must stay the same.
    fn target_uri(&self, target: &str, marker: &ReplayMarker) -> Option<Uri> {
        let target = Some(target).filter(|target| target.starts_with('/'))?;
        if self.base_has_path && escapes_base_path(target) {
            crate::throttle::throttled!(
                error,
                job = %marker.job().id.log_prefix(),
                "a path with dot segments is not sent: it could leave the base URL"
            );
            return None;
        }
        format!("{}{target}", self.base_url).parse::<Uri>().ok()
    }

    fn replay_claims(&self, marker: &ReplayMarker) -> Option<ReplayClaims> {
        let job = marker.job();
        let since_epoch = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(ReplayClaims {
            store_identity: marker.store().backend().identities().pop()?.to_string(),
            id: job.id.as_str().to_owned(),
            attempt: job.attempt,
            fence: job.fence,
            first_seen_ms: ceil_millis(since_epoch(job.accepted_at)),
            end_ms: ceil_millis(
                since_epoch(SystemTime::now())
                    .saturating_add(self.timeout)
                    .saturating_add(CLOCK_SKEW_ALLOWANCE),
            ),
        })
    }
}

/// Returns the headers with the client's address as the last element: the receiver's peer is this
/// process, and the elements before were sent by that peer or its client. RFC 7239 section 4.
fn forwarded_headers(peer: SocketAddr) -> [(String, Vec<u8>); 2] {
    let ip = peer.ip().to_canonical();
    let node = if ip.is_ipv6() { format!("for=\"[{ip}]\"") } else { format!("for={ip}") };
    [("x-forwarded-for", ip.to_string()), ("forwarded", node)]
        .map(|(name, value)| (name.to_owned(), value.into_bytes()))
}

/// Returns the headers for a client of unknown address, so that the client's own elements are not
/// the last ones. RFC 7239 section 6.2.
fn unknown_forwarded_headers(
    headers: &[(String, Vec<u8>)],
) -> impl Iterator<Item = (String, Vec<u8>)> + use<> {
    let candidates = [("x-forwarded-for", "unknown"), ("forwarded", "for=unknown")]
        .map(|(name, value)| (headers.iter().any(|(sent, _)| sent == name), name, value));
    let sent = candidates.into_iter().filter(|(is_sent, ..)| *is_sent);
    sent.map(|(_, name, value)| (name.to_owned(), value.as_bytes().to_vec()))
}

/// Returns true if a component on the way could resolve the path outside of its base. That is a dot
/// segment in any encoding, with any separator that some software recognizes.
fn escapes_base_path(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default().to_ascii_lowercase();
    let path =
        path.replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\").replace("%3b", ";");
    let mut segments = path.split(['/', '\\']);
    segments.any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
}
