//! Runs in another process, over HTTP: for handlers that are written in another language, or do not live
//! where the worker does.
//!
//! A worker with an [`HttpReplayer`] sends a deferred request to its own path under a fixed base URL, with
//! one field more, which says that this is a run, and which one; whoever answers it checks the field with
//! a [`ReplayVerifier`], or as below. Redirects are answers: they are not followed. Whom the request once came from is the
//! last element of `X-Forwarded-For` and of `Forwarded`, as behind a proxy: a service that limits by address there counts
//! the client, if it [believes](crate::ClientAddress::behind_proxies) the worker. Where the layer that has accepted it did not know,
//! and the client has sent such a field, that element is `unknown`.
//!
//! ```text
//! Lockgate-Replay: 2;<store>;<id>;<attempt>;<fence>;<first seen>;<end>;<mac>
//! ```
//!
//! `store` is the identity of the job's store, an opaque text: it differs between servers, databases and namespaces.
//! `attempt` and `fence` are numbers, `first seen` and `end` are Unix milliseconds. `mac` is the hex form of
//! an HMAC-SHA256, under the secret that both sides know, of these five lines, joined by `\n`, the last one
//! without an end:
//!
//! ```text
//! lockgate-replay
//! 2;<store>;<id>;<attempt>;<fence>;<first seen>;<end>
//! <method>
//! <path and query, as sent>
//! <SHA-256 of the body, hex>
//! ```
//!
//! With a secret of 32 bytes of the value 7, `POST /orders/7/refund?a=b` with the body `note` and
//!
//! ```text
//! 2;00112233445566778899aabbccddeeff;2a00112233445566778899aabbccddeeff;2;1700000000000001;1700000000000;1700000060000
//! ```
//!
//! the mac is `7bfc5cb3024dc744a713af0e101b188583963da25734a3988b2fdbe3aa1d92bc`.
//!
//! Who gets such a request checks, in this order: the mac, in constant time; that `end` has not passed; and
//! that the job of this id is running with this attempt. In Rust the store is asked, and tells also whether the
//! run's lock is held still, and whether it is this run's. Elsewhere the status resource tells `state` and
//! `attempts`, which can be those of a run whose worker has died a moment ago, or of one that came after a
//! drain: such a handler compares `fence`, which grows from run to run, with the greatest it has seen. It then must not take the job's lock, which the worker
//! holds: a `LockLayer` that [trusts](crate::lock::LockGate::trust_delegation) the same secret sees that by the field
//! `Lockgate-Held`, which is sent along. An answer of 404 or 405 is the handler's only if it has a field
//! `Lockgate-Replay` of any value; without it the job goes back in line as `unroutable`.
//!
//! An answer of type `application/problem+json` with the `type` `urn:lockgate:problem:busy` says that a lock on the
//! way was busy, and `https://iana.org/assignments/http-problem-types#temporary-reduced-capacity` that it could not
//! be asked for: so a `LockLayer` answers there, by whatever status. The handler has not been reached, and the job
//! goes back in line uncharged. A handler must not pass on such an answer of a third service as its own.
//!
//! An answer of 502, 503, 504 or 520 and above without that field may be of a gateway that has given up, also while the service
//! behind it goes on: its run has failed once what was said of its lock has ended, as one without an answer. A handler that
//! answers so itself, and whose run is to end at once, says it by that field.
//!
//! A `DeferLayer` there lets a request with the field pass if the `LockLayer` inside trusts the secret, for locks of the same
//! server, database and namespace, since it has been deferred already; without that trust it answers as if the lock were busy, and the job goes
//! back in line again and again. A `RateLimitLayer`
//! does not know of them and charges each run: put it on what clients reach, and let workers in beside it, or take
//! it into account. Its 429 is a failed run, after which `Retry-After` is heeded.
//!
//! The field is good for one request, and until its end whoever reads it can send that request again: it
//! belongs on connections within the house. A server that does not check it must not be reachable by
//! others, and one that does must refuse requests whose field does not hold.

mod http_replayer;
mod replay_claims;
mod replay_verifier;
#[cfg(test)]
mod tests;

pub use self::{
    http_replayer::HttpReplayer,
    replay_verifier::{ReplayVerifier, VerifyError},
};
