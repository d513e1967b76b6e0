//! Reactions of the layers to an unavailable or missing store.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, ErrorKind},
    reply::Reply,
};

/// Reaction of a rate limit to requests that it can't check because the store is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RateLimitOutage {
    /// Limits in this process, at its share of the quota.
    ///
    /// - The share is the quota divided by the number of limiting processes in the last count.
    /// - A key starts with its share of the last known remaining units.
    /// - Once the store has answered again for a second, it decides again. Requests admitted
    ///   meanwhile are not charged to it.
    ///
    /// All counted processes together admit about the quota; processes missing from the count come
    /// on top. If the quota is less than one request for each process, each process admits one.
    Local,
    /// Refuses with 503 and `Retry-After`. 429 and 409 would be wrong: no quota is spent and no
    /// resource is busy.
    Refuse,
    /// Admits the request, without rate headers on its response.
    Admit,
}

/// Reaction of a `LockLayer` to an unavailable store. There is no local variant: a process can't
/// exclude other processes from a lock by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockOutage {
    /// Refuses with 503 and `Retry-After`. 409 would be wrong, since no lock is busy. The default:
    /// two concurrent changes are worse than none.
    #[default]
    Refuse,
    /// Admits the request without a lock, concurrently with others; its handler finds no fence.
    ///
    /// A request is still refused if the store answers with an error about this lock
    /// ([`ErrorKind::Protocol`], for example a key of another program under its name): such an
    /// error does not end by itself.
    Admit,
}

impl LockOutage {
    /// Returns true if a request is admitted after this error.
    pub(crate) fn admits(self, error: &Error) -> bool {
        self == Self::Admit && error.kind() != ErrorKind::Protocol
    }
}

/// Returns the reply to a request without a store.
pub(crate) fn missing_store_reply(layer: &str) -> Reply {
    crate::throttle::throttled!(
        error,
        layer,
        "request refused: no store; add .layer(Extension(store)) outside this layer (actix-web: \
         .app_data(web::Data::new(store))), or .store(&store) on the layer"
    );
    Reply::misconfigured()
}
