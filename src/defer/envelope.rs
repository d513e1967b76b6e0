//! Requests and responses as they are stored: a version byte, the head in postcard, then the body; all of
//! it sealed, if the store has keys.

use std::{fmt, net::SocketAddr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{headers::Headers, snapshot::Carried};
use crate::{
    gate::Head,
    key::Key,
    seal::{NotOpened, Place, open, seal},
    store::{JobId, Store},
};

/// The form written by this version. A reader leaves what it does not know to a newer one.
const VERSION: u8 = 1;

/// Why stored bytes can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Written by a newer version: somebody else can read it.
    Newer,
    /// Sealed with a key that this process does not have: somebody else may.
    NoKey,
    /// Broken, or put where it does not belong.
    Broken,
}

impl From<NotOpened> for Unreadable {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::Newer => Self::Newer,
            NotOpened::NoKey => Self::NoKey,
            NotOpened::Broken => Self::Broken,
        }
    }
}

/// Where stored bytes belong: sealed ones open nowhere else.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) store: &'a Store,
    pub(super) id: &'a JobId,
    pub(super) lock: &'a Key,
}

impl At<'_> {
    fn place<'a>(&'a self, lock: &'a str, kind: &'static str) -> Place<'a> {
        Place { id: self.id.as_str(), lock, kind }
    }

    fn seal(&self, kind: &'static str, plain: Bytes) -> Bytes {
        let lock = self.lock.to_string();
        seal(self.store, self.place(&lock, kind), plain)
    }

    fn open(&self, kind: &'static str, stored: &Bytes) -> Result<Bytes, NotOpened> {
        let lock = self.lock.to_string();
        open(self.store, self.place(&lock, kind), stored)
    }
}

const REQUEST: &str = "request";
const RESPONSE: &str = "response";

#[derive(Serialize, Deserialize)]
struct RequestHead {
    method: String,
    target: String,
    headers: Headers,
    peer: Option<SocketAddr>,
    max_attempts: u32,
    carried: Carried,
}

/// A request, as it runs again.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoredRequest {
    pub(super) head: Head,
    pub(super) carried: Carried,
    pub(super) max_attempts: u32,
    pub(super) body: Bytes,
}

impl fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of what the client has sent.
        f.debug_struct("StoredRequest")
            .field("method", &self.head.method)
            .field("max_attempts", &self.max_attempts)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A response, as the status resource gives it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredHead {
    pub(super) status: u16,
    pub(super) headers: Headers,
    /// Whether the body is kept.
    pub(super) stored: Stored,
}

/// What is kept of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stored {
    Body,
    /// It was longer than what is kept.
    TooLong,
    /// It had no end that could be known, or is of a kind that has none.
    Stream,
    /// The client had it: the request was not deferred.
    RanAtOnce,
}

impl Stored {
    /// As the status document says it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::TooLong => "too long",
            Self::Stream => "stream",
            Self::RanAtOnce => "ran at once",
        }
    }
}

pub(super) fn write_request(
    at: At<'_>,
    head: Head,
    headers: Headers,
    carried: Carried,
    max_attempts: u32,
    body: &[u8],
) -> Bytes {
    let Head { method, target, peer, .. } = head;
    let head = RequestHead { method, target, headers, peer, max_attempts, carried };
    at.seal(REQUEST, write(&head, body))
}

pub(super) fn read_request(at: At<'_>, bytes: &Bytes) -> Result<StoredRequest, Unreadable> {
    let plain = at.open(REQUEST, bytes)?;
    let (head, body) = read(&plain)?;
    let RequestHead { method, target, headers, peer, max_attempts, carried } = head;
    let head = Head { method, target, headers, peer };
    Ok(StoredRequest { head, carried, max_attempts, body })
}

pub(super) fn write_response(at: At<'_>, head: &StoredHead, body: &[u8]) -> Bytes {
    at.seal(RESPONSE, write(head, body))
}

pub(super) fn read_response(at: At<'_>, bytes: &Bytes) -> Result<(StoredHead, Bytes), Unreadable> {
    read(&at.open(RESPONSE, bytes)?)
}

fn write(head: &impl Serialize, body: &[u8]) -> Bytes {
    let out = postcard::to_extend(head, vec![VERSION]);
    // Strings, numbers and lists of known length: postcard has no way to refuse them.
    let mut out = out.expect("the head has no type that postcard can't write");
    out.extend_from_slice(body);
    out.into()
}

fn read<T: for<'a> Deserialize<'a>>(bytes: &Bytes) -> Result<(T, Bytes), Unreadable> {
    match bytes.first() {
        Some(&VERSION) => {}
        Some(&newer) if newer > VERSION => return Err(Unreadable::Newer),
        _ => return Err(Unreadable::Broken),
    }
    let (head, rest) = postcard::take_from_bytes(&bytes[1..]).map_err(|_| Unreadable::Broken)?;
    let body = bytes.slice(bytes.len() - rest.len()..);
    Ok((head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let headers = vec![("x".to_owned(), b"\xff".to_vec()), ("x".to_owned(), b"2".to_vec())];
        Head::new("PATCH", "/a?b=c", headers, "192.0.2.1:7".parse().ok())
    }

    fn carried() -> Carried {
        vec![("user".to_owned(), b"7".to_vec())]
    }

    #[test]
    fn what_is_written_is_read() {
        let (store, lock) = (Store::memory(), Key::custom("a"));
        let at = At { store: &store, id: &JobId::new(&lock), lock: &lock };
        let bytes = write_request(at, head(), head().headers, carried(), 3, b"body");
        let body = Bytes::from_static(b"body");
        let read = StoredRequest { head: head(), carried: carried(), max_attempts: 3, body };
        assert_eq!(read_request(at, &bytes), Ok(read));
    }

    #[test]
    fn truncated_and_newer_bytes_are_told_apart() {
        let (store, lock) = (Store::memory(), Key::custom("a"));
        let at = At { store: &store, id: &JobId::new(&lock), lock: &lock };
        let bytes = write_request(at, head(), head().headers, Carried::new(), 1, b"");
        for end in 0..bytes.len() {
            assert_eq!(read_request(at, &bytes.slice(..end)), Err(Unreadable::Broken), "{end}");
        }
        assert_eq!(read_request(at, &Bytes::from_static(b"\x02??")), Err(Unreadable::Newer));
        assert_eq!(read_request(at, &Bytes::from_static(b"\0\x01??")), Err(Unreadable::NoKey));
    }

    #[test]
    fn nothing_of_a_request_is_in_a_log() {
        let (head, body) = (head(), Bytes::from_static(b"body"));
        let request = StoredRequest { head, carried: carried(), max_attempts: 1, body };
        let told = format!("{request:?}");
        assert_eq!(told, "StoredRequest { method: \"PATCH\", max_attempts: 1, bytes: 4, .. }");
    }
}
