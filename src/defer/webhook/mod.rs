//! Signed callbacks: somebody is told by a POST that a deferred request has ended, and how.
//!
//! The application says whom, when a request is accepted (`DeferLayer::webhook`); the address is stored
//! along with it, sealed as the rest of the request. The step that ends the request, whoever takes it, makes the
//! call a job of its own: with a lock nobody else has, retries with backoff, a place among the dead letters if all
//! of them fail, from where it can be put back. So it survives whatever deferred requests survive, no end goes
//! by without it, and it is made at least once. A worker without `Webhooks` leaves it to one that has them.
//!
//! Told are all ends: `done`, `dead`, `cancelled` (also where a later request has superseded it) and `expired`. A
//! dead request that is put back ends again, and that is told too. Only an end that could not be told before there was
//! the next one is not told any more: what is told is how it stands.
//!
//! # What is sent
//!
//! A POST of `{"id", "state", "status", "reason", "attempts", "ended"}` with the header fields of
//! [Standard Webhooks](https://www.standardwebhooks.com), so that its libraries can check it:
//!
//! | field | value |
//! |---|---|
//! | `webhook-id` | the same each time this end is told: who has seen it has had it |
//! | `webhook-timestamp` | seconds since 1970, when it was sent: an old one is no proof |
//! | `webhook-signature` | `v1,` and base64 of HMAC-SHA256 over `<id>.<timestamp>.<body>`, one for each secret |
//!
//! With the secret `0123456789abcdef0123456789abcdef` (the 32 characters themselves), the id `msg_1`, the
//! timestamp `1700000000` and the body `{"id":"x"}`, the signature is
//! `v1,Fxnqsz7pYJzHwtKkOFBoq5YiM+xF+DBoJ8/RmoIqtNI=`.
//!
//! Any 2xx is success; 410 says that nobody wants it, and ends it. The body of the answer is not read, and
//! redirects are not followed.
//!
//! Else it is sent again, twelve times in all, after pauses as the worker's `backoff` has them: with the default, between
//! nothing and 1 s, 2 s, 4 s and so on up to 5 minutes, so over nine minutes on average, and nineteen at most, besides the
//! time that calls take. What has failed by then is a dead letter. A receiver that is away for longer misses it, unless
//! somebody puts it back ([`DeferredJobs::redrive`](crate::defer::DeferredJobs::redrive)).
//!
//! # Slow receivers
//!
//! A call may take 10 s (`Webhooks::timeout`), and a worker makes a quarter as many at once as it runs requests: four by
//! default, and two at least. So that one receiver, or one client, can't keep the others waiting:
//!
//! - Owners (`DeferLayer::owner`) take turns: the next call is that of the owner whose last turn was longest ago. Requests
//!   without an owner are one owner.
//! - Half of the calls at once are reserved for hosts that answered within a second when they were called last.
//! - A host that did not answer, or an address (an IPv6 /64) at which a call was not answered, gets a quarter of the calls
//!   at once and at least one, whatever its names and ports. One that answers after more than a second gets as many while
//!   others wait. A host that answered in time the last time may have half, also where others at its address do not answer.
//! - The first attempt at a host that has not answered yet may take 2.5 s, the second 5 s, and so on up to the timeout.
//!
//! A call without a turn waits, uncharged. This is what one worker has seen since it was started.
//!
//! # Where it is sent
//!
//! The address may come from a client, so it is taken for an attack until it has been looked at: `https`
//! alone, no user or password, its name resolved once, and each of the addresses it has must be a public
//! one (neither private nor local nor of any special range, nor an IPv4 address in an IPv6 one's clothes).
//! The connection goes to exactly those addresses. All of this is a matter of `Webhooks`.
//!
//! TLS is rustls with ring and the system's roots: ring, because it needs no C toolchain beyond a compiler,
//! and no provider is installed for the process, so an application may use another one.

#[cfg(feature = "webhook")]
mod address_policy;
#[cfg(feature = "webhook")]
mod signature;
#[cfg(all(test, feature = "webhook"))]
mod tests;
mod webhook_job;
#[cfg(feature = "webhook")]
mod webhooks;

#[cfg(test)]
pub(super) use self::webhook_job::{DeliveryOutcome, WebhookCall};
pub(super) use self::webhook_job::{
    NO_RECEIVER_SLOT, NO_WEBHOOK_SENDER, WEBHOOK_METHOD, WebhookSender, deliver_webhook,
    is_webhook_job, new_webhook_job, webhook_job_id,
};
#[cfg(feature = "webhook")]
pub use self::webhooks::Webhooks;
