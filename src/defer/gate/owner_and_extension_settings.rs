//! Settings of `DeferLayer`: the owner of a request, and the snapshots of its extensions.

use std::sync::Arc;

use super::defer_layer::DeferLayer;
use crate::{
    defer::extension_snapshot::{ExtensionSnapshot, RequestUser},
    gate::{RequestKind, find_extension},
};

impl<R: RequestKind> DeferLayer<R> {
    /// Defers requests of authenticated users: stores the user, which the authentication has put
    /// into the request's extensions, and makes its [`owner`](RequestUser::owner) that of the
    /// request. Default: requests belong to no user, and one with a credential is not deferred.
    ///
    /// It is [`carry_identity`](Self::carry_identity) with the owner of a [`RequestUser`], which
    /// describes the rules of that text and the cases without a user. The other two parts are
    /// [`DeferWorker::for_user`](crate::defer::DeferWorker::for_user) and
    /// [`StatusResource::for_user`](crate::defer::StatusResource::for_user) of the status routes.
    /// The authentication is outside this layer.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # impl lockgate::RequestUser for User {
    /// #     fn owner(&self) -> String { format!("user:{}", self.id) }
    /// # }
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let service = DeferLayer::<PlainHttp>::new().for_user::<User>().layer(lock.layer(handler));
    ///
    /// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = Request::post("/refund").header("order", "7");
    /// let request = request.header("authorization", "Bearer x"); // not stored
    /// let request = request.extension(User { id: 7 }); // by the authentication
    /// assert_eq!(service.oneshot(request.body(Body::default())?).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if it has two users and no [`owner`](Self::owner).
    #[must_use]
    pub fn for_user<U: RequestUser>(self) -> Self {
        self.carry_identity::<U>(U::owner)
    }

    /// Owner of a request: an account or a tenant. It scopes `Idempotency-Key`,
    /// [`coalesce`](Self::coalesce) and [`supersede`](Self::supersede), and
    /// [`DeferredRoutes::visible_to`](crate::defer::StatusResource::visible_to) compares viewers
    /// with it.
    ///
    /// Default: the owner of the user that [`for_user`](Self::for_user) carries, or the identity
    /// of the snapshot that [`carry_identity`](Self::carry_identity) carries, or no owner.
    ///
    /// All requests without an owner share their keys, including those for which the function
    /// returns `None`. A client that sends another client's `Idempotency-Key` with the same request
    /// gets that client's job and response, and with
    /// [`idempotent_direct`](Self::idempotent_direct), where nothing may be compared, it gets them
    /// with any request. `supersede` supersedes any other request. Set an owner, and `visible_to`,
    /// if clients do not trust each other, also if their credentials are [kept](Self::keep_header).
    #[must_use]
    pub fn owner(
        self,
        owner: impl Fn(&R::Native) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(|settings| settings.owner = Some(Arc::new(owner)))
    }

    /// Stores this value of the request's extensions with the job, such as the user that an
    /// authentication has put there. A worker that
    /// [restores](crate::defer::DeferWorker::restore_extension) it puts it into the extensions of
    /// the run.
    ///
    /// A request with a snapshot and a credential is deferred without the credential. A request
    /// without the value is deferred without a snapshot.
    ///
    /// A snapshot does not identify the user: two snapshots of one user may differ, for example by
    /// a refreshed token. Idempotency keys and merges therefore need an owner: use
    /// [`carry_identity`](Self::carry_identity), [`owner`](Self::owner) or
    /// [`share_across_owners`](Self::share_across_owners). Without any of them a request with an
    /// `Idempotency-Key` gets 500, and a log message names the fix: the key of one user must not
    /// return the job of another one, and ignoring the key would run a retry twice.
    ///
    /// A request still runs if its user has lost the right to it in the meantime, unless
    /// [`DeferWorker::authorize`](crate::defer::DeferWorker::authorize) denies the run.
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if [`coalesce`](Self::coalesce),
    /// [`supersede`](Self::supersede) or [`idempotent_direct`](Self::idempotent_direct) is set and
    /// requests have no owner by any of the three settings above.
    #[must_use]
    pub fn carry_extension<T: ExtensionSnapshot>(self) -> Self {
        self.with_settings(|settings| {
            settings.snapshot_extractors.add(find_extension::<R, T>, None);
        })
    }

    /// Like [`carry_extension`](Self::carry_extension), and uses the identity of the value as the
    /// [`owner`](Self::owner) of the request if none is set.
    ///
    /// Example: `.carry_identity::<User>(|user| format!("user:{}", user.id))`.
    ///
    /// - The identity must be the same in all requests of a user, since retries are recognized by
    ///   it: an account number, not a token or another value that changes with a login.
    /// - No other owner may have the same identity, in any layer of the store. If layers carry
    ///   users and tenants, return `user:7` and `tenant:7`, not `7`.
    /// - Identities are compared as they are, also by
    ///   [`visible_to`](crate::defer::StatusResource::visible_to), and are stored unsealed.
    /// - A request with an empty identity is not merged with others.
    /// - A request without the value has no owner, and shares its keys with all such requests. If
    ///   it has a credential, [kept](Self::keep_header) or not, it belongs to some user: it is not
    ///   merged with others, and gets 500 if it has an `Idempotency-Key`, as with
    ///   `carry_extension`. The usual cause is an authentication inside this layer.
    ///
    /// ```
    /// # use std::{convert::Infallible, time::Duration};
    /// # use http::{Request, Response};
    /// # use lockgate::{Key, Store, defer::DeferLayer, lock::LockLayer, middleware::PlainHttp};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # type Body = http_body_util::Full<bytes::Bytes>;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct User { id: u64 }
    /// # impl lockgate::ExtensionSnapshot for User { const NAME: &'static str = "user"; }
    /// # let handler = service_fn(async |_: Request<Body>| {
    /// #     Ok::<_, Infallible>(Response::new(Body::default()))
    /// # });
    /// let store = Store::memory();
    /// let lock = LockLayer::<PlainHttp>::by_header("order").store(&store);
    /// let defer = DeferLayer::<PlainHttp>::new()
    ///     .carry_identity::<User>(|user| format!("user:{}", user.id));
    /// let service = defer.layer(lock.layer(handler));
    ///
    /// let _guard = store.lock(Key::header("order", b"7")).acquire().await?;
    /// let request = Request::post("/refund").header("order", "7");
    /// let request = request.extension(User { id: 7 }); // by the authentication
    /// assert_eq!(service.oneshot(request.body(Body::default())?).await?.status(), 202);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if two snapshots have an identity and no `owner` is
    /// set.
    #[must_use]
    pub fn carry_identity<T: ExtensionSnapshot>(
        self,
        identity: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        let identity = Box::new(identity);
        self.with_settings(|settings| {
            settings.snapshot_extractors.add(find_extension::<R, T>, Some(identity));
        })
    }

    /// Lets the requests of all users share idempotency keys and merges, although the layer
    /// [carries](Self::carry_extension) a snapshot. For clients that trust each other, such as
    /// services of one team.
    ///
    /// # Panics
    ///
    /// When the layer is applied to a service: if an [`owner`](Self::owner) or an identity is set
    /// too.
    #[must_use]
    pub fn share_across_owners(self) -> Self {
        self.with_settings(|settings| settings.shared_by_all = true)
    }
}
