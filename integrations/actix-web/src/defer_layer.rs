//! `DeferLayer` for actix-web's `wrap`.

mod job_settings;

use std::{
    future::{Ready, ready},
    time::Duration,
};

use actix_web::{
    Error, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::{
    ClientAddress, ExtensionSnapshot,
    driver::{Gate as _, HttpRequestHead},
};

use crate::{actix_framework::ActixFramework, gate_middleware::GateMiddleware};

/// Accepts requests for a busy resource: 202 now, and one run later, in the order of acceptance.
///
/// Each method is that of the [core's type](lockgate::defer::DeferLayer), which documents it.
#[derive(Debug, Clone, Default)]
pub struct DeferLayer {
    inner: lockgate::defer::DeferLayer<ActixFramework>,
}

impl DeferLayer {
    /// Defers requests with unsafe methods and bodies of up to 64 KiB, as soon as their lock is
    /// busy.
    ///
    /// See the core's [`new`](lockgate::defer::DeferLayer::new).
    #[must_use]
    pub fn new() -> Self {
        Self { inner: lockgate::defer::DeferLayer::new() }
    }

    /// Path of the status resource as clients see it, including the prefix of `Router::nest`,
    /// `web::scope` or a proxy.
    ///
    /// See the core's [`status_path`](lockgate::defer::DeferLayer::status_path).
    #[must_use]
    pub fn status_path(self, path: &str) -> Self {
        Self { inner: self.inner.status_path(path) }
    }

    /// Like [`status_path`](Self::status_path), for a path from a configuration.
    ///
    /// See the core's [`try_status_path`](lockgate::defer::DeferLayer::try_status_path).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if the path is not in the form of a URL.
    pub fn try_status_path(self, path: &str) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_status_path(path)? })
    }

    /// Defers only requests with these methods.
    ///
    /// See the core's [`methods`](lockgate::defer::DeferLayer::methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        Self { inner: self.inner.methods(methods) }
    }

    /// Delivers a webhook when a deferred request has ended, with any outcome.
    ///
    /// See the core's [`webhook`](lockgate::defer::DeferLayer::webhook).
    #[must_use]
    pub fn webhook(
        self,
        url: impl Fn(&HttpRequestHead) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.webhook(url) }
    }

    /// Time that a request waits for its lock before it is deferred.
    ///
    /// See the core's [`wait_up_to`](lockgate::defer::DeferLayer::wait_up_to).
    #[must_use]
    pub fn wait_up_to(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait_up_to(wait) }
    }

    /// Longest wait that a client gets by `Prefer: wait=N` (RFC 7240).
    ///
    /// See the core's [`max_preferred_wait`](lockgate::defer::DeferLayer::max_preferred_wait).
    #[must_use]
    pub fn max_preferred_wait(self, max: Duration) -> Self {
        Self { inner: self.inner.max_preferred_wait(max) }
    }

    /// Honors `Prefer: respond-async` (RFC 7240): such a request is accepted at once even if its
    /// lock is free, or after the wait of its `wait=N`.
    ///
    /// See the core's [`honor_respond_async`](lockgate::defer::DeferLayer::honor_respond_async).
    #[must_use]
    pub fn honor_respond_async(self) -> Self {
        Self { inner: self.inner.honor_respond_async() }
    }

    /// Defers every request without trying its lock, for work that is only done in the background.
    ///
    /// See the core's [`defer_always`](lockgate::defer::DeferLayer::defer_always).
    #[must_use]
    pub fn defer_always(self) -> Self {
        Self { inner: self.inner.defer_always() }
    }

    /// Defers nothing while no worker is alive.
    ///
    /// See the core's [`require_worker`](lockgate::defer::DeferLayer::require_worker).
    #[must_use]
    pub fn require_worker(self) -> Self {
        Self { inner: self.inner.require_worker() }
    }

    /// Owner of a request: an account or a tenant.
    ///
    /// See the core's [`owner`](lockgate::defer::DeferLayer::owner).
    #[must_use]
    pub fn owner(
        self,
        owner: impl Fn(&HttpRequest) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.owner(owner) }
    }

    /// Stores this value of the request's extensions with the job, such as the user that an
    /// authentication has put there.
    ///
    /// See the core's [`carry_extension`](lockgate::defer::DeferLayer::carry_extension).
    #[must_use]
    pub fn carry_extension<T: ExtensionSnapshot>(self) -> Self {
        Self { inner: self.inner.carry_extension::<T>() }
    }

    /// Like [`carry_extension`](Self::carry_extension), and uses the identity of the value as the
    /// [`owner`](Self::owner) of the request if none is set.
    ///
    /// See the core's [`carry_identity`](lockgate::defer::DeferLayer::carry_identity).
    #[must_use]
    pub fn carry_identity<T: ExtensionSnapshot>(
        self,
        identity: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { inner: self.inner.carry_identity::<T>(identity) }
    }

    /// Lets the requests of all users share idempotency keys and merges, although the layer
    /// [carries](Self::carry_extension) a snapshot.
    ///
    /// See the core's [`share_across_owners`](lockgate::defer::DeferLayer::share_across_owners).
    #[must_use]
    pub fn share_across_owners(self) -> Self {
        Self { inner: self.inner.share_across_owners() }
    }

    /// Most bytes of a body; a request with a longer one gets the busy response.
    ///
    /// See the core's [`body_limit`](lockgate::defer::DeferLayer::body_limit).
    #[must_use]
    pub fn body_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.body_limit(bytes) }
    }

    /// Most bytes of the stored head: names and values of its headers, path, query and
    /// [owner](Self::owner), without headers that are [not stored](Self::keep_header).
    ///
    /// See the core's [`head_limit`](lockgate::defer::DeferLayer::head_limit).
    #[must_use]
    pub fn head_limit(self, bytes: usize) -> Self {
        Self { inner: self.inner.head_limit(bytes) }
    }

    /// Most bytes of heads and bodies of all requests that are being read and stored in this
    /// process.
    ///
    /// See the core's [`buffer_budget`](lockgate::defer::DeferLayer::buffer_budget).
    #[must_use]
    pub fn buffer_budget(self, bytes: usize) -> Self {
        Self { inner: self.inner.buffer_budget(bytes) }
    }

    /// Client to which a share of the [`buffer_budget`](Self::buffer_budget) belongs.
    ///
    /// See the core's [`client_address`](lockgate::defer::DeferLayer::client_address).
    #[must_use]
    pub fn client_address(self, client: ClientAddress) -> Self {
        Self { inner: self.inner.client_address(client) }
    }

    /// Time for the arrival of a request's body, from when its lock was found busy.
    ///
    /// See the core's [`body_read_timeout`](lockgate::defer::DeferLayer::body_read_timeout).
    #[must_use]
    pub fn body_read_timeout(self, time: Duration) -> Self {
        Self { inner: self.inner.body_read_timeout(time) }
    }

    /// Stores a header that is dropped by default because it is a credential.
    ///
    /// See the core's [`keep_header`](lockgate::defer::DeferLayer::keep_header).
    #[must_use]
    pub fn keep_header(self, name: &str) -> Self {
        Self { inner: self.inner.keep_header(name) }
    }

    /// Declares a header, such as `X-Pass`, as a credential, like `Authorization` and the other
    /// headers that [`keep_header`](Self::keep_header) lists.
    ///
    /// See the core's [`credential_header`](lockgate::defer::DeferLayer::credential_header).
    #[must_use]
    pub fn credential_header(self, name: &str) -> Self {
        Self { inner: self.inner.credential_header(name) }
    }
}

impl<S, B> Transform<S, ServiceRequest> for DeferLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = GateMiddleware<S, lockgate::defer::DeferLayer<ActixFramework>>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        self.inner.validate_settings();
        ready(Ok(GateMiddleware::new(service, self.inner.clone())))
    }
}
