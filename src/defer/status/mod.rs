//! The status resource: what has become of a deferred request.
//!
//! | request | answer |
//! |---|---|
//! | `GET {base}/{id}` | the JSON document: state, place in the line, times, history, response |
//! | the same, `Accept: text/event-stream` | the document at each change, as server-sent events |
//! | `GET {base}/{id}/response` | 202 while pending, then the stored response verbatim, or 410 if there will be none |
//! | `DELETE {base}/{id}` | cancels what waits: 204; 409 if it runs or has ended otherwise |
//!
//! `Prefer: wait=N` holds a `GET` until something changes, one of the response until there is one or none. The document has a weak `ETag`: with
//! `If-None-Match` it is sent only if it has changed (304), and together with `wait` the answer comes as
//! soon as it differs from what the client has, so that no change falls between two polls.
//!
//! Each of them is 410 for a job of which a tombstone alone is left: it has ended, and what was kept of it was evicted or
//! purged.
//!
//! An id that is unknown, malformed or somebody else's is the same 404. An unknown one and a foreign one
//! are the same single read of the store too; a malformed one is not asked for, which tells nobody anything.

mod request_headers;
mod run_time_averages;
mod status_document;
mod status_events;
mod status_gate;
mod status_request;

pub(super) use self::status_document::gone_reply;
pub use self::{
    status_events::StatusEvents,
    status_gate::StatusGate,
    status_request::{StatusReply, StatusRequest},
};
