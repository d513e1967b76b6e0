//! Settings of `LockLayer` for the name of the lock: scope, name and stripes.

use super::LockLayer;
use crate::{
    error::{Error, expect_setting},
    gate::RequestKind,
    key::Key,
};

impl<R: RequestKind> LockLayer<R> {
    /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
    ///
    /// ```
    /// # use std::convert::Infallible;
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
    /// let lock = LockLayer::<PlainHttp>::by_header("id").scope("orders").store(&store);
    /// let service = lock.layer(handler);
    ///
    /// // Code without a layer names the scope too.
    /// let _guard = store.lock(Key::header("id", b"7").scope("orders")).acquire().await?;
    /// let request = Request::post("/refund").header("id", "7").body(Body::default())?;
    /// assert_eq!(service.oneshot(request).await?.status(), 409);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        self.with_policy(|policy| policy.scope = Some(scope.to_owned()))
    }

    /// Names the lock by `name` instead of by the parameter or header, so that `/orders/{id}` and
    /// `/payments/{order}` can share a lock: see [`Key::named`](crate::Key::named).
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with_policy(|policy| policy.name = Some(name.to_owned()))
    }

    /// Maps all keys of this kind, name and scope onto `n` locks.
    ///
    /// The store then has fewer locks, but unrelated resources sometimes wait for each other. All
    /// layers that have to exclude each other need the same number: see
    /// [`Key::stripe`](crate::Key::stripe).
    ///
    /// # Panics
    ///
    /// If `n` is not within 1 to 65,536. For a number from a configuration use
    /// [`try_stripes`](Self::try_stripes).
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        expect_setting(self.try_stripes(n))
    }

    /// Like [`stripes`](Self::stripes), for a number from a configuration.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if `n` is not within 1 to 65,536.
    pub fn try_stripes(self, n: u32) -> Result<Self, Error> {
        // Fails now instead of at the first request.
        let _ = Key::custom("").try_stripe(n)?;
        Ok(self.with_policy(|policy| policy.stripes = Some(n)))
    }
}
