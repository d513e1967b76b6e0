//! Requests and responses as they are stored: a version byte, the head in postcard, then the body.

use std::net::SocketAddr;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::headers::Headers;
use crate::gate::Head;

/// The form written by this version. A reader leaves what it does not know to a newer one.
const VERSION: u8 = 1;

/// Why stored bytes can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Written by a newer version: somebody else can read it.
    Newer,
    /// Broken.
    Broken,
}

#[derive(Serialize, Deserialize)]
struct RequestHead {
    method: String,
    target: String,
    headers: Headers,
    peer: Option<SocketAddr>,
    max_attempts: u32,
}

/// A request, as it runs again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredRequest {
    pub(super) head: Head,
    pub(super) max_attempts: u32,
    pub(super) body: Bytes,
}

/// A response, as the status resource gives it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredHead {
    pub(super) status: u16,
    pub(super) headers: Headers,
    /// False if the body was too long to be kept.
    pub(super) whole: bool,
}

pub(super) fn write_request(head: Head, headers: Headers, max_attempts: u32, body: &[u8]) -> Bytes {
    let Head { method, target, peer, .. } = head;
    write(&RequestHead { method, target, headers, peer, max_attempts }, body)
}

pub(super) fn read_request(bytes: &Bytes) -> Result<StoredRequest, Unreadable> {
    let (RequestHead { method, target, headers, peer, max_attempts }, body) = read(bytes)?;
    Ok(StoredRequest { head: Head { method, target, headers, peer }, max_attempts, body })
}

pub(super) fn write_response(head: &StoredHead, body: &[u8]) -> Bytes {
    write(head, body)
}

pub(super) fn read_response(bytes: &Bytes) -> Result<(StoredHead, Bytes), Unreadable> {
    read(bytes)
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

    #[test]
    fn what_is_written_is_read() {
        let bytes = write_request(head(), head().headers, 3, b"body");
        let body = Bytes::from_static(b"body");
        assert_eq!(read_request(&bytes), Ok(StoredRequest { head: head(), max_attempts: 3, body }));
    }

    #[test]
    fn truncated_and_newer_bytes_are_told_apart() {
        let bytes = write_request(head(), head().headers, 1, b"");
        for end in 0..bytes.len() {
            assert_eq!(read_request(&bytes.slice(..end)), Err(Unreadable::Broken), "{end}");
        }
        assert_eq!(read_request(&Bytes::from_static(b"\x02??")), Err(Unreadable::Newer));
    }
}
