//! `LockLayer`: the lock around a request.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use super::lock_policy::LockPolicy;
use crate::{
    error::{Error, expect_setting},
    gate::{GateId, KeySource, RequestKind, note_lock_layer},
    lock::{average_hold_time::AverageHoldTime, release_settings::ReleaseSettings},
};

/// Serializes requests per resource: 409 with `Retry-After` while another request holds the lock,
/// or a wait in its queue.
///
/// See [`lock`](crate::lock) for the handling of a request.
///
/// A lock is named by the kind of its key, the parameter's name, the scope and the value, never by
/// the layer. Two routes with the same parameter name and value therefore share a lock, which is
/// the safe default; [`scope`](Self::scope) separates them.
///
/// On a route such as `/orders/{id}` with numbers as ids, use
/// [`by_path_param_as::<u64>("id")`](Self::by_path_param_as): `/orders/7` and `/orders/07` then
/// have the same lock, and anything else is answered with 400.
/// [`by_path_param`](Self::by_path_param) is for ids that are texts.
///
/// ```
/// # use std::{convert::Infallible, time::Duration};
/// # use http::{Request, Response};
/// # use lockgate::{Key, Store, lock::LockLayer, middleware::PlainHttp};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # type Body = http_body_util::Full<bytes::Bytes>;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let handler = service_fn(async |_: Request<Body>| {
/// #     Ok::<_, Infallible>(Response::new(Body::default()))
/// # });
/// let store = Store::memory();
/// let service = LockLayer::<PlainHttp>::by_header("order").store(&store).layer(handler);
/// let request = || Request::post("/refund").header("order", "7").body(Body::default());
///
/// // Code without a layer holds the same lock.
/// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 409);
/// guard.release().await;
/// assert_eq!(service.oneshot(request()?).await?.status(), 200);
/// # Ok(()) }
/// ```
pub struct LockLayer<R: RequestKind> {
    pub(in crate::lock) key_source: KeySource<R>,
    pub(in crate::lock) policy: Arc<LockPolicy>,
    pub(in crate::lock) release_settings: ReleaseSettings,
    /// Shared by all clones of this layer.
    pub(super) average_hold_time: Arc<AverageHoldTime>,
    /// True once it was logged that a request without a matching route was served. Shared as well.
    pub(super) unlocked_success_logged: Arc<AtomicBool>,
}

impl<R: RequestKind> LockLayer<R> {
    /// One lock for each value of this key: one part, or a tuple of up to four. The lock is tried
    /// once, for requests with unsafe methods.
    ///
    /// # Panics
    ///
    /// If a request may have no key: see [`MissingAddress::Skip`](crate::MissingAddress::Skip). For
    /// an address from a configuration use [`try_by`](Self::try_by).
    #[must_use]
    pub fn by(keys: impl Into<KeySource<R>>) -> Self {
        expect_setting(Self::try_by(keys))
    }

    /// Like [`by`](Self::by), for an address from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a request may have no key.
    pub fn try_by(keys: impl Into<KeySource<R>>) -> Result<Self, Error> {
        let key_source = keys.into().require_key()?;
        note_lock_layer();
        Ok(Self {
            key_source,
            policy: Arc::default(),
            release_settings: ReleaseSettings::default(),
            average_hold_time: Arc::default(),
            unlocked_success_logged: Arc::default(),
        })
    }

    /// Adds a part to the key. It is a source of which every admitted request has a value.
    pub(super) fn and(mut self, source: KeySource<R>) -> Self {
        self.key_source = self.key_source.and(source);
        self
    }

    pub(super) fn with_policy(mut self, change: impl FnOnce(&mut LockPolicy)) -> Self {
        change(Arc::make_mut(&mut self.policy));
        self
    }

    pub(super) fn gate_id(&self) -> GateId {
        GateId::of(&self.average_hold_time)
    }
}

impl<R: RequestKind> Clone for LockLayer<R> {
    fn clone(&self) -> Self {
        let (policy, average_hold_time) =
            (Arc::clone(&self.policy), Arc::clone(&self.average_hold_time));
        let (key_source, unlocked_success_logged) =
            (self.key_source.clone(), Arc::clone(&self.unlocked_success_logged));
        Self {
            key_source,
            policy,
            release_settings: self.release_settings,
            average_hold_time,
            unlocked_success_logged,
        }
    }
}

impl<R: RequestKind> fmt::Debug for LockLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("key_source", &self.key_source)
            .field("policy", &self.policy)
            .field("release_settings", &self.release_settings)
            .finish_non_exhaustive()
    }
}
