//! Settings of `DeferWorker`: the extension snapshots that are restored in each run.

use std::any::Any;

use super::DeferWorker;
use crate::{
    defer::extension_snapshot::{ExtensionSnapshot, RequestUser},
    gate::RequestKind,
};

impl<R> DeferWorker<R> {
    /// Restores this snapshot in each run, for a replayer that is not of a framework. `put`
    /// converts it to a value that the replayer finds in
    /// [`ReplayMarker::restored_snapshots`](crate::gate::ReplayMarker::restored_snapshots).
    pub fn restore_with<T: ExtensionSnapshot, P: Any + Send + Sync>(
        mut self,
        put: impl Fn(T) -> P + Send + Sync + 'static,
    ) -> Self {
        self.settings.snapshot_restorers.add(put);
        self
    }
}

impl<R: RequestKind> DeferWorker<R> {
    /// Puts the user that [`DeferLayer::for_user`](crate::defer::DeferLayer::for_user) carries into
    /// the extensions of a run, where the authentication puts it in a direct request. Give the
    /// worker the routes inside the authentication.
    ///
    /// It is [`restore_extension`](Self::restore_extension) of a [`RequestUser`], and every worker
    /// of the store needs it: one without it fails in [`run`](Self::run) if a layer of its process
    /// carries the user.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use lockgate::defer::{DeferLayer, DeferWorker};
    /// # use tower::{Layer, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # impl lockgate::RequestUser for User {
    /// #     fn owner(&self) -> String { format!("user:{}", self.id) }
    /// # }
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let user = request.extensions().get::<User>(); // by the authentication, or restored
    ///     println!("refund for user {:?}", user.map(|user| user.id));
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let service = DeferLayer::<PlainHttp>::new().for_user::<User>().layer(lock.layer(handler));
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service).for_user::<User>();
    /// # drop(worker);
    /// ```
    pub fn for_user<U: RequestUser>(self) -> Self {
        self.restore_extension::<U>()
    }

    /// Puts the snapshot of this type, which a layer
    /// [carries](crate::defer::DeferLayer::carry_extension), into the extensions of a run.
    ///
    /// A request with a snapshot that this worker does not restore returns to its queue uncharged,
    /// with the reason `unknown snapshot`, for a worker that does. [`run`](Self::run) fails if a
    /// layer of this process carries such a snapshot.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Store, lock::LockLayer, middleware::PlainHttp};
    /// # use lockgate::defer::{DeferLayer, DeferWorker};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// let handler = service_fn(async |request: Request<Body>| {
    ///     let user = request.extensions().get::<User>(); // by the authentication, or restored
    ///     println!("refund for user {:?}", user.map(|user| user.id));
    ///     Ok::<_, Infallible>(Response::new(Body::default()))
    /// });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let defer = DeferLayer::<PlainHttp>::new()
    ///     .carry_identity::<User>(|user| format!("user:{}", user.id));
    /// let service = defer.layer(lock.layer(handler));
    /// let worker = DeferWorker::<PlainHttp>::new(&store, service).restore_extension::<User>();
    /// # drop(worker);
    /// # Ok(()) }
    /// ```
    pub fn restore_extension<T: ExtensionSnapshot>(self) -> Self {
        self.restore_with(R::extension_inserter::<T>)
    }
}
