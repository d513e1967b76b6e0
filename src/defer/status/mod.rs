//! Status resource of deferred requests.
//!
//! | request | response |
//! |---|---|
//! | `GET {base}/{id}` | JSON document: state, queue position, times, history, response |
//! | the same, `Accept: text/event-stream` | the document at each change, as server-sent events |
//! | `GET {base}/{id}/response` | 202 while pending, then the stored response, or 410 without one |
//! | `DELETE {base}/{id}` | cancels a queued job: 204; 409 if it runs or has ended otherwise |
//!
//! `Prefer: wait=N` delays the response to a `GET` until the document changes, or for `/response`
//! until the job has ended. The document has a weak `ETag`. With `If-None-Match` it is sent only if
//! it has changed, otherwise 304. Together with `wait`, the response comes as soon as the document
//! differs from the client's, so that no change is lost between two polls.
//!
//! Each request gets 410 if only a tombstone of the job is left: it has ended, and was evicted or
//! purged.
//!
//! An unknown id, a malformed one and one of another user get the same 404. The first and the last
//! also cost the same single read of the store. A malformed id is not looked up, which reveals
//! nothing.

#[cfg(feature = "serve")]
mod dead_status_paths;
mod request_headers;
mod run_time_averages;
mod status_document;
mod status_events;
mod status_paths;
mod status_request;
mod status_resource;

#[cfg(feature = "serve")]
pub(crate) use self::dead_status_paths::find_dead_status_paths;
pub(super) use self::{
    status_document::gone_reply,
    status_paths::{StatusMount, StatusPaths, normalize_path},
};
pub use self::{
    status_events::StatusEvents,
    status_request::{StatusReply, StatusRequest},
    status_resource::StatusResource,
};
