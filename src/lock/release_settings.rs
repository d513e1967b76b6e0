//! Settings of a layer for the end of a request's lock: until when it is held, and the reaction to
//! its loss.

use std::time::Duration;

/// Reaction to the loss of a request's lock while its handler runs.
///
/// A lock is lost when the store has granted it to another holder or has lost it, when it could not
/// be renewed in time, and at the end of `max_hold`. From then on another request may change the
/// resource too. In each mode, the loss is logged, and the handler can observe it
/// ([`HeldLock::lost`](crate::HeldLock::lost)). Only the fence keeps a late write out.
///
/// The default is `Cancel`. The worst effect of a lost lock is that two handlers change the
/// resource at once, and only `Cancel` shortens that: to the time until the handler's next `await`.
/// A handler may be cut off between two of its steps, but that is nothing new: a client that
/// disconnects does the same, at every `await`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// Drops the handler, as if its client had disconnected, and responds with 503 and
    /// `Retry-After`.
    ///
    /// Tasks that the handler has spawned continue. If the handler ended before the loss was
    /// noticed, its response is replaced too. Therefore a response of the handler means that it
    /// held the lock from beginning to end.
    #[default]
    Cancel,
    /// The handler finishes, and its response has the header `Lock-Lost: taken`, `lapsed` or
    /// `too-long` (a token of RFC 9651). For handlers that must not stop half-way and check the
    /// fence where they write. Clients that do not know the header do not notice that two changes
    /// may have overlapped.
    Finish,
    /// The handler finishes, and its response is replaced by the 503 of `Cancel`. Clients do not
    /// mistake it for an exclusive change; but the change may have been made, and a client that
    /// repeats it makes it twice.
    Replace,
}

/// Duration for which a request keeps its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the handler has responded. The change is made then, and a client that reads the
    /// response slowly does not delay other requests.
    #[default]
    Answered,
    /// Until the response body has ended or was dropped: for handlers that change or read the
    /// resource while they stream.
    ///
    /// A slow client holds the lock while it reads, for at most
    /// [`max_hold`](super::LockRequest::max_hold). The stream runs within the request, like the
    /// handler: acquiring the lock again is reentrant.
    ///
    /// The client gets the end of the body after the lock is released, if the server polls for the
    /// end: in chunked bodies, and in those that know which chunk is their last. A response without
    /// a body releases the lock before its head.
    ///
    /// Of nested layers, and of a guard that a middleware [scopes](crate::lock::LockGuard::scope),
    /// the one that acquired the lock keeps or releases it.
    ///
    /// If the lock is lost while the body streams, [`OnLoss::Cancel`] aborts the body, so that the
    /// client notices that it is incomplete. If only the release finds the loss, the end of the
    /// body is withheld. The other two modes let the body continue, because its head is already
    /// sent.
    ///
    /// After a 101, for example to a websocket, the upgraded connection is the response body in
    /// actix-web, and the lock is held until it ends. In axum (and hyper) it is not a body: the
    /// lock is released before the 101.
    BodyEnd,
}

/// Settings that apply from the start of the handler.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReleaseSettings {
    pub(super) on_loss: OnLoss,
    pub(super) hold_until: HoldUntil,
    pub(super) body_read_timeout: Duration,
    pub(super) release_in_background: bool,
}

impl Default for ReleaseSettings {
    fn default() -> Self {
        Self {
            on_loss: OnLoss::default(),
            hold_until: HoldUntil::default(),
            body_read_timeout: Duration::from_secs(5),
            release_in_background: false,
        }
    }
}
