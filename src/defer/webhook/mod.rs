//! Webhooks: signed POST requests that report the end of a deferred request.
//!
//! The application chooses the URL when a request is accepted (`DeferLayer::webhook`). It is stored
//! with the request, and sealed like the rest of it. The operation that ends the request also turns
//! the webhook into a job of its own, with its own lock and retries with backoff. If all attempts
//! fail it becomes a dead letter, which can be redriven. A webhook therefore survives the same
//! failures as a deferred request, no end goes without one, and it is sent at least once. Workers
//! without `Webhooks` leave webhooks to workers that have it.
//!
//! `Webhooks` has an example of the layer and the worker together.
//!
//! All ends are reported: `done`, `dead`, `cancelled` (also by a later request that supersedes it)
//! and `expired`. A dead request that is redriven ends again, and that end is reported too. An end
//! that could not be reported before the next one is dropped: a webhook reports the latest end.
//!
//! # Request
//!
//! A POST of `{"id", "state", "status", "reason", "attempts", "ended"}` with the headers of
//! [Standard Webhooks](https://www.standardwebhooks.com), so that its libraries can verify it:
//!
//! | header | value |
//! |---|---|
//! | `webhook-id` | the same in each attempt to report one end: receivers can ignore repeats |
//! | `webhook-timestamp` | time of sending, in seconds since 1970: receivers can reject old ones |
//! | `webhook-signature` | `v1,` and a signature in base64, for each secret |
//!
//! The signature is HMAC-SHA256 over `<id>.<timestamp>.<body>`. With the secret
//! `0123456789abcdef0123456789abcdef` (the 32 characters themselves), the id `msg_1`, the timestamp
//! `1700000000` and the body `{"id":"x"}`, the signature is
//! `v1,Fxnqsz7pYJzHwtKkOFBoq5YiM+xF+DBoJ8/RmoIqtNI=`.
//!
//! Any 2xx is success. 410 means that the receiver no longer wants the webhook, and makes it a dead
//! letter at once. The response body is not read, and redirects are not followed.
//!
//! After any other result the webhook is retried, up to twelve attempts in all, with the worker's
//! `backoff`. By default the pauses are drawn from zero to 1 s, 2 s, 4 s and so on up to 5 minutes:
//! over nine minutes in all on average, and nineteen at most, besides the duration of the calls.
//! Then it becomes a dead letter. A receiver that is down for longer misses it, unless it is
//! redriven ([`DeferredJobs::redrive`](crate::defer::DeferredJobs::redrive)).
//!
//! # Slow receivers
//!
//! A call may take 10 s (`Webhooks::timeout`). A worker makes a quarter as many calls at once as it
//! runs requests: four by default, and at least two. These rules keep one receiver, or one client,
//! from delaying the others:
//!
//! - Owners (`DeferLayer::owner`) take turns: the next call is for the owner with the oldest last
//!   turn. Requests without an owner count as one owner.
//! - Half of the calls are reserved for hosts that answered within a second when they were called
//!   last.
//! - A host that did not answer, or an address (an IPv6 /64) at which a call was not answered, gets
//!   a quarter of the calls and at least one, whatever its names and ports.
//! - A host that answered after more than a second gets as many while other webhooks wait.
//! - A host that answered its last call in time may have half of the calls, even if other hosts at
//!   its address do not answer.
//! - The first attempt at a host that has not answered yet may take 2.5 s, the second 5 s, and so
//!   on up to the timeout.
//!
//! A webhook without a free slot waits, uncharged. Each worker judges by its own calls since its
//! start.
//!
//! # Addresses
//!
//! The URL may come from a client, so it is treated as an attack until it has been checked. Only
//! `https` is allowed, without a user or password. The name is resolved once, and each of its
//! addresses must be public: not private, local or of a special range, and not an IPv4 address
//! embedded in an IPv6 one. The connection goes to exactly these addresses. `Webhooks` can relax
//! these rules.
//!
//! TLS is rustls with ring and the system's roots. Ring needs only a C compiler to build. No
//! provider is installed for the process, so an application may use another one.

#[cfg(feature = "webhook")]
mod address_policy;
mod deliver_webhook;
#[cfg(feature = "webhook")]
mod sign_webhook;
#[cfg(all(test, feature = "webhook"))]
mod tests;
mod webhook_job;
#[cfg(feature = "webhook")]
mod webhooks;

#[cfg(test)]
pub(super) use self::deliver_webhook::{DeliveryOutcome, WebhookCall};
pub(super) use self::deliver_webhook::{
    NO_RECEIVER_SLOT, NO_WEBHOOK_SENDER, WebhookSender, deliver_webhook,
};
pub(super) use self::webhook_job::{
    WEBHOOK_METHOD, is_webhook_job, new_webhook_job, webhook_job_id,
};
#[cfg(feature = "webhook")]
pub use self::webhooks::Webhooks;
