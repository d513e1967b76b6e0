//! Envelopes of stored requests and responses: a version byte, a checksum, the head in postcard,
//! the body. If the store has keys, the whole is sealed.
//!
//! The checksum covers the whole envelope and its position. It detects truncated data, and data
//! moved to another job, without a key. It is no secret: a deliberate writer can compute it, and
//! only sealing prevents that.

use std::{fmt, net::SocketAddr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::extension_snapshot::SavedSnapshots;
use crate::{
    gate::HttpRequestHead,
    key::{Key, digest_parts},
    seal::{SealContext, UnsealError, open, seal},
    store::{JobId, Store},
};

/// Version of the requests that this code writes. A reader leaves newer versions to newer workers.
/// Version 1 has no route.
const REQUEST_VERSION: u8 = 2;

/// Version of the responses.
const RESPONSE_VERSION: u8 = 1;

/// Length of the checksum after the version byte.
const CHECKSUM_LEN: usize = 8;

/// Headers in order, repeats kept.
pub(super) type HeaderPairs = Vec<(String, Vec<u8>)>;

/// Reason why stored bytes can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnvelopeError {
    /// Written by a newer version, which another process may have.
    NewerVersion,
    /// Sealed with a key that this process does not have; another one may.
    MissingKey,
    /// Corrupted, or moved to another job.
    Corrupted,
}

impl From<UnsealError> for EnvelopeError {
    fn from(error: UnsealError) -> Self {
        match error {
            UnsealError::NewerVersion => Self::NewerVersion,
            UnsealError::UnknownKey => Self::MissingKey,
            UnsealError::Corrupt => Self::Corrupted,
        }
    }
}

/// Job and lock that stored bytes belong to; sealed ones open nowhere else.
#[derive(Debug, Clone, Copy)]
pub(super) struct EnvelopeBinding<'a> {
    pub(super) store: &'a Store,
    pub(super) id: &'a JobId,
    pub(super) lock: &'a Key,
}

impl EnvelopeBinding<'_> {
    fn associated_data<'a>(&'a self, lock: &'a str, kind: &'static str) -> SealContext<'a> {
        SealContext { id: self.id.as_str(), parent_key: lock, kind }
    }

    fn seal(&self, kind: &'static str, plain: Bytes) -> Bytes {
        let lock = self.lock.to_string();
        seal(self.store, self.associated_data(&lock, kind), plain)
    }

    fn open(&self, kind: &'static str, stored: &Bytes) -> Result<Bytes, UnsealError> {
        let lock = self.lock.to_string();
        open(self.store, self.associated_data(&lock, kind), stored)
    }
}

const REQUEST_KIND: &str = "request";
const RESPONSE_KIND: &str = "response";

#[derive(Serialize, Deserialize)]
struct EncodedRequestHead {
    method: String,
    target: String,
    headers: HeaderPairs,
    peer: Option<SocketAddr>,
    max_attempts: u32,
    snapshots: SavedSnapshots,
}

/// A stored request, as it is replayed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoredRequest {
    pub(super) head: HttpRequestHead,
    pub(super) snapshots: SavedSnapshots,
    pub(super) max_attempts: u32,
    /// Pattern of the route that has deferred it.
    pub(super) route: Option<String>,
    pub(super) body: Bytes,
}

impl fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out all data of the client.
        f.debug_struct("StoredRequest")
            .field("method", &self.head.method)
            .field("max_attempts", &self.max_attempts)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Head of a stored response, as the status resource returns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredResponseHead {
    pub(super) status: u16,
    pub(super) headers: HeaderPairs,
    pub(super) body_status: StoredBodyStatus,
}

/// State of a response's stored body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StoredBodyStatus {
    Full,
    /// The body was longer than the limit, and is not stored.
    TooLong,
    /// The body had no known end, or its type has none.
    Stream,
    /// The client has received the body: the request was not deferred.
    RanDirectly,
}

impl StoredBodyStatus {
    /// Returns the text for the status document.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Full => "body",
            Self::TooLong => "too long",
            Self::Stream => "stream",
            Self::RanDirectly => "ran at once",
        }
    }
}

pub(super) fn encode_request(
    binding: EnvelopeBinding<'_>,
    head: HttpRequestHead,
    headers: HeaderPairs,
    snapshots: SavedSnapshots,
    max_attempts: u32,
    route: Option<&str>,
    body: &[u8],
) -> Bytes {
    let HttpRequestHead { method, target, peer, .. } = head;
    let head = EncodedRequestHead { method, target, headers, peer, max_attempts, snapshots };
    binding.seal(
        REQUEST_KIND,
        encode_envelope(binding, (REQUEST_KIND, REQUEST_VERSION), &(head, route), body),
    )
}

pub(super) fn decode_request(
    binding: EnvelopeBinding<'_>,
    bytes: &Bytes,
) -> Result<StoredRequest, EnvelopeError> {
    let opened = binding.open(REQUEST_KIND, bytes)?;
    let (head, route, body) = if opened.first() == Some(&1) {
        let (head, body) = decode_envelope(binding, (REQUEST_KIND, 1), &opened)?;
        (head, None, body)
    } else {
        let format = (REQUEST_KIND, REQUEST_VERSION);
        let ((head, route), body) = decode_envelope(binding, format, &opened)?;
        (head, route, body)
    };
    let EncodedRequestHead { method, target, headers, peer, max_attempts, snapshots } = head;
    let head = HttpRequestHead { method, target, headers, peer };
    Ok(StoredRequest { head, snapshots, max_attempts, route, body })
}

pub(super) fn encode_response(
    binding: EnvelopeBinding<'_>,
    head: &StoredResponseHead,
    body: &[u8],
) -> Bytes {
    binding.seal(
        RESPONSE_KIND,
        encode_envelope(binding, (RESPONSE_KIND, RESPONSE_VERSION), head, body),
    )
}

pub(super) fn decode_response(
    binding: EnvelopeBinding<'_>,
    bytes: &Bytes,
) -> Result<(StoredResponseHead, Bytes), EnvelopeError> {
    decode_envelope(
        binding,
        (RESPONSE_KIND, RESPONSE_VERSION),
        &binding.open(RESPONSE_KIND, bytes)?,
    )
}

#[expect(
    clippy::expect_used,
    reason = "postcard can write strings, numbers and lists of known length"
)]
fn encode_envelope(
    binding: EnvelopeBinding<'_>,
    (kind, version): (&str, u8),
    head: &impl Serialize,
    body: &[u8],
) -> Bytes {
    let mut prefix = vec![version];
    prefix.resize(1 + CHECKSUM_LEN, 0);
    let envelope = postcard::to_extend(head, prefix);
    // Strings, numbers and lists of known length: postcard can't fail on them.
    let mut envelope = envelope.expect("postcard can write every type of the head");
    envelope.extend_from_slice(body);
    if let Some((prefix, content)) = envelope.split_at_mut_checked(1 + CHECKSUM_LEN) {
        let checksum = checksum(binding, kind, content);
        prefix.iter_mut().skip(1).zip(checksum).for_each(|(target, byte)| *target = byte);
    }
    envelope.into()
}

fn checksum(binding: EnvelopeBinding<'_>, kind: &str, content: &[u8]) -> [u8; CHECKSUM_LEN] {
    let bound_to = [kind, binding.id.as_str(), binding.lock.as_str()].map(str::as_bytes);
    let [kind, id, lock] = bound_to;
    let digest = digest_parts(&[kind, id, lock, content]);
    std::array::from_fn(|n| digest.get(n).copied().unwrap_or_default())
}

fn decode_envelope<T: for<'a> Deserialize<'a>>(
    binding: EnvelopeBinding<'_>,
    (kind, version): (&str, u8),
    bytes: &Bytes,
) -> Result<(T, Bytes), EnvelopeError> {
    match bytes.first() {
        Some(&found) if found == version => {}
        Some(&newer) if newer > version => return Err(EnvelopeError::NewerVersion),
        _ => return Err(EnvelopeError::Corrupted),
    }
    let parts = bytes.split_at_checked(1 + CHECKSUM_LEN);
    let (prefix, content) = parts.ok_or(EnvelopeError::Corrupted)?;
    if prefix.get(1..).is_none_or(|stored| stored != checksum(binding, kind, content)) {
        return Err(EnvelopeError::Corrupted);
    }
    let (head, body) = postcard::take_from_bytes(content).map_err(|_| EnvelopeError::Corrupted)?;
    Ok((head, bytes.slice(bytes.len() - body.len()..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_head() -> HttpRequestHead {
        let headers = vec![("x".to_owned(), b"\xff".to_vec()), ("x".to_owned(), b"2".to_vec())];
        HttpRequestHead::new("PATCH", "/a?b=c", headers, "192.0.2.1:7".parse().ok())
    }

    fn user_snapshot() -> SavedSnapshots {
        vec![("user".to_owned(), b"7".to_vec())]
    }

    #[test]
    fn encoded_request_decodes_to_the_same_request() {
        let (store, lock) = (Store::memory(), Key::custom("a"));
        let at = EnvelopeBinding { store: &store, id: &JobId::new(&lock), lock: &lock };
        let bytes = encode_request(
            at,
            request_head(),
            request_head().headers,
            user_snapshot(),
            3,
            None,
            b"body",
        );
        let body = Bytes::from_static(b"body");
        let read = StoredRequest {
            head: request_head(),
            snapshots: user_snapshot(),
            max_attempts: 3,
            route: None,
            body,
        };
        assert_eq!(decode_request(at, &bytes), Ok(read.clone()));
        // As an earlier version has written it.
        let HttpRequestHead { method, target, headers, peer } = request_head();
        let (max_attempts, snapshots) = (3, user_snapshot());
        let head = EncodedRequestHead { method, target, headers, peer, max_attempts, snapshots };
        let bytes = encode_envelope(at, (REQUEST_KIND, 1), &head, b"body");
        assert_eq!(decode_request(at, &bytes), Ok(read));
    }

    #[test]
    fn stored_request_has_the_route_that_deferred_it() {
        let (store, lock) = (Store::memory(), Key::custom("a"));
        let at = EnvelopeBinding { store: &store, id: &JobId::new(&lock), lock: &lock };
        let (headers, route) = (HeaderPairs::new(), Some("/{id}"));
        let bytes = encode_request(at, request_head(), headers, Vec::new(), 1, route, b"body");
        assert_eq!(decode_request(at, &bytes).expect("it is whole").route.as_deref(), route);
    }

    #[test]
    fn envelope_of_another_job_or_lock_is_corrupted() {
        let (store, lock, other) = (Store::memory(), Key::custom("a"), Key::custom("b"));
        let (id, two) = (JobId::new(&lock), JobId::new(&lock));
        let at = EnvelopeBinding { store: &store, id: &id, lock: &lock };
        let bytes = encode_request(
            at,
            request_head(),
            request_head().headers,
            SavedSnapshots::new(),
            1,
            None,
            b"body",
        );
        let response = StoredResponseHead {
            status: 200,
            headers: HeaderPairs::new(),
            body_status: StoredBodyStatus::Full,
        };
        let answer = encode_response(at, &response, b"body");
        for other_binding in
            [EnvelopeBinding { id: &two, ..at }, EnvelopeBinding { lock: &other, ..at }]
        {
            assert_eq!(decode_request(other_binding, &bytes), Err(EnvelopeError::Corrupted));
            assert_eq!(decode_response(other_binding, &answer), Err(EnvelopeError::Corrupted));
        }
        assert_eq!(decode_request(at, &answer), Err(EnvelopeError::Corrupted));
        // The version of requests is ahead of that of responses.
        assert_eq!(decode_response(at, &bytes), Err(EnvelopeError::NewerVersion));
        assert_eq!(decode_response(at, &answer), Ok((response, Bytes::from_static(b"body"))));
    }

    /// Arbitrary bytes in place of a stored envelope.
    #[test]
    fn arbitrary_bytes_decode_to_the_expected_error() {
        bolero::check!().with_iterations(1_000).with_type::<(bool, Vec<u8>)>().for_each(
            |(has_version, bytes)| {
                let (store, lock) = (Store::memory(), Key::custom("a"));
                let at = EnvelopeBinding { store: &store, id: &JobId::new(&lock), lock: &lock };
                let start: &[u8] = if *has_version { &[REQUEST_VERSION] } else { &[] };
                let bytes = Bytes::from([start, bytes].concat());
                let error_of = |known_version| match bytes.first() {
                    Some(0) if bytes.get(1).is_some_and(|version| *version > 1) => {
                        EnvelopeError::NewerVersion
                    }
                    Some(0) => EnvelopeError::MissingKey,
                    Some(version) if *version > known_version => EnvelopeError::NewerVersion,
                    Some(_) | None => EnvelopeError::Corrupted,
                };
                assert_eq!(decode_request(at, &bytes), Err(error_of(REQUEST_VERSION)));
                assert_eq!(decode_response(at, &bytes), Err(error_of(RESPONSE_VERSION)));
            },
        );
    }

    /// One changed bit, a truncation, or an extension.
    #[test]
    fn changed_truncated_or_extended_envelope_is_rejected() {
        type TamperInput = (String, Vec<u8>, Vec<u8>, usize, u8, Vec<u8>);
        bolero::check!().with_iterations(500).with_type::<TamperInput>().for_each(
            |(target, value, body, position, bit, suffix)| {
                let (store, lock) = (Store::memory(), Key::custom("a"));
                let at = EnvelopeBinding { store: &store, id: &JobId::new(&lock), lock: &lock };
                let head = HttpRequestHead::new(
                    "PUT",
                    target,
                    vec![("x".to_owned(), value.clone())],
                    None,
                );
                let headers = head.headers.clone();
                let bytes = encode_request(at, head, headers, SavedSnapshots::new(), 1, None, body);
                let read = decode_request(at, &bytes).expect("it is whole");
                assert_eq!((&read.head.target, &read.body[..]), (target, &body[..]));
                let mut changed = bytes.to_vec();
                let position = position % changed.len();
                changed[position] ^= 1 << (bit % 8);
                assert!(decode_request(at, &changed.into()).is_err(), "bit {bit} of {position}");
                assert_eq!(
                    decode_request(at, &bytes.slice(..position)),
                    Err(EnvelopeError::Corrupted)
                );
                if !suffix.is_empty() {
                    let longer = [&bytes, &suffix[..]].concat();
                    assert_eq!(decode_request(at, &longer.into()), Err(EnvelopeError::Corrupted));
                }
            },
        );
    }

    #[test]
    fn stored_request_debug_shows_no_content() {
        let (head, body) = (request_head(), Bytes::from_static(b"body"));
        let request =
            StoredRequest { head, snapshots: user_snapshot(), max_attempts: 1, route: None, body };
        let text = format!("{request:?}");
        assert_eq!(text, "StoredRequest { method: \"PATCH\", max_attempts: 1, bytes: 4, .. }");
    }
}
