//! Settings of `LockLayer` for other services: the fence header and trusted delegations.

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::{RequestKind, try_parse_header_name},
    lock::shared_secret::SharedSecret,
};

impl<R: RequestKind> LockLayer<R> {
    /// Sets this request header to the fence, for upstream services to which a handler forwards the
    /// request's headers. The fences of several locks are joined by commas, in the order of the
    /// locks.
    ///
    /// A header of this name that a client sends is removed from every request that passes this
    /// layer, including requests that take no lock.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. For a name from a configuration use
    /// [`try_fence_header`](Self::try_fence_header).
    #[must_use]
    pub fn fence_header(self, name: &str) -> Self {
        expect_setting(self.try_fence_header(name))
    }

    /// Like [`fence_header`](Self::fence_header), for a name from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `name` is not a valid header name.
    pub fn try_fence_header(self, name: &str) -> Result<Self, Error> {
        let name = try_parse_header_name("LockLayer::fence_header", name)?;
        Ok(self.with_policy(|policy| policy.fence_header = Some(name)))
    }

    /// Trusts delegations that are signed with this secret: a request from a caller that holds the
    /// lock runs under it, instead of waiting for its caller. Default: no delegation is trusted.
    ///
    /// Several calls add secrets, so that secrets can be rotated.
    ///
    /// The caller signs with [`HeldLock::delegation_header`](crate::HeldLock::delegation_header)
    /// and sends the header `Lockgate-Held`. This layer removes the header from the request that
    /// the handler sees, trusted or not. It also removes `Lockgate-Replay`, which marks a request
    /// as the run of a deferred one, unless a trusted delegation came with it; the handler can then
    /// verify it.
    ///
    /// A delegation ends at the validity time that the caller knew when it signed. It is not
    /// renewed, so the lock counts as lost here after that time, and every reader of the header can
    /// use it until then.
    ///
    /// A delegation is valid for locks of the same server, database and namespace, independent of
    /// the address by which each service reaches them. A server that was started from a copy of
    /// another one's data counts as the same server: delete the key `meta` of the namespace in the
    /// copy before you use it.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, SharedSecret, Store, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let secret = SharedSecret::new("at least 32 random bytes from a secret store");
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").trust_delegation(&secret);
    /// let service = lock.store(&store).layer(handler);
    ///
    /// // The caller holds the lock, signs, and sends the header with its call.
    /// let guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let signed = guard.held_lock().delegation_header(&store, &secret);
    /// let (name, value) = signed.ok_or("the lock was lost")?;
    /// let call = Request::post("/refund").header("order", "7").header(name, value);
    /// assert_eq!(service.oneshot(call.body(Body::default())?).await?.status(), 200);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn trust_delegation(self, secret: &SharedSecret) -> Self {
        self.with_policy(|policy| policy.trusted_secrets.push(secret.clone()))
    }
}
