//! HTTP replay: runs of deferred requests in another process, for handlers in another language or
//! outside of the worker's process.
//!
//! A worker with an [`HttpReplayer`] sends each deferred request to its own path under a fixed base
//! URL. One more header, `Lockgate-Replay`, identifies the run. The receiver checks it with a
//! [`ReplayVerifier`], or as described below. Redirects are responses: they are not followed.
//!
//! The address of the original client is the last element of `X-Forwarded-For` and of `Forwarded`,
//! as behind a proxy. A service with rate limits by address counts that client if it
//! [trusts](crate::ClientAddress::behind_proxies) the worker. If the layer that accepted the
//! request did not know the address, and the client has sent such a header, that element is
//! `unknown`.
//!
//! # The header
//!
//! ```text
//! Lockgate-Replay: 2;<store>;<id>;<attempt>;<fence>;<first seen>;<end>;<mac>
//! ```
//!
//! - `store`: identity of the job's store, an opaque text that differs between servers, databases
//!   and namespaces
//! - `attempt`, `fence`: numbers
//! - `first seen`, `end`: Unix milliseconds
//! - `mac`: HMAC-SHA256 in hex, under the shared secret, of these five lines, joined by `\n`
//!   without one at the end:
//!
//! ```text
//! lockgate-replay
//! 2;<store>;<id>;<attempt>;<fence>;<first seen>;<end>
//! <method>
//! <path and query, as sent>
//! <SHA-256 of the body, hex>
//! ```
//!
//! With a secret of 32 bytes of the value 7, `POST /orders/7/refund?a=b` with the body `note` and,
//! on one line,
//!
//! ```text
//! 2;00112233445566778899aabbccddeeff;2a00112233445566778899aabbccddeeff;
//! 2;1700000000000001;1700000000000;1700000060000
//! ```
//!
//! the mac is `7bfc5cb3024dc744a713af0e101b188583963da25734a3988b2fdbe3aa1d92bc`.
//!
//! # Checks of the receiver
//!
//! The receiver checks, in this order:
//!
//! 1. The mac, in constant time.
//! 2. That `end` has not passed.
//! 3. That the job with this id is running with this attempt.
//!
//! In Rust the third check asks the store, which also knows whether the lock is still held by this
//! run. In other languages, the status resource has `state` and `attempts`. They can be those of a
//! run after its worker has just died, or of a run that came after a drain. Such a handler compares
//! `fence`, which grows from run to run, with the largest that it has received.
//!
//! The receiver must not acquire the job's lock, which the worker holds. The header
//! `Lockgate-Held`, sent along, tells that to a `LockLayer` that
//! [trusts](crate::lock::LockLayer::trust_delegation) the same secret.
//!
//! # Responses
//!
//! - 404 or 405 is the handler's response only with a header `Lockgate-Replay` of any value.
//!   Without it, the job returns to the queue as `unroutable`.
//! - A response of type `application/problem+json` tells by its `type` that the handler was not
//!   reached. `urn:lockgate:problem:busy`: a lock was busy.
//!   `https://iana.org/assignments/http-problem-types#temporary-reduced-capacity`: the lock's store
//!   was unavailable. A `LockLayer` responds so, with any status. The job returns to the queue
//!   uncharged. A handler must not pass on such a response of a third service as its own.
//! - 502, 503, 504, or 520 and above without `Lockgate-Replay` may come from a gateway that timed
//!   out while the service behind it continues. The run has failed, like one without a response,
//!   once the delegation of its lock has ended. A handler that responds with such a status, and
//!   wants its run to end at once, adds the header.
//!
//! # Layers of the receiver
//!
//! - A `DeferLayer` passes a request with the header if the inner `LockLayer` trusts the secret,
//!   for locks of the same server, database and namespace, because the request was deferred before.
//!   Without that trust it responds as if the lock were busy, and the job returns to the queue
//!   again and again.
//! - A `RateLimitLayer` does not recognize runs and charges each of them. Put it on the routes that
//!   clients reach and give workers a route beside it, or allow for them in the quota. Its 429 is a
//!   failed run, with a retry after `Retry-After`.
//!
//! # Security
//!
//! The header is valid for one request, and until its end any reader of it can send that request
//! again. It must only travel over trusted connections. A server that does not check it must not be
//! reachable by other clients. A server that does must refuse requests with an invalid header.

mod http_replayer;
mod replay_claims;
mod replay_verifier;
mod sign_replay_request;
#[cfg(test)]
mod tests;

pub use self::{
    http_replayer::HttpReplayer,
    replay_verifier::{ReplayVerifier, VerifyError},
};
