//! `LockLayer` for actix-web's `wrap`.

mod keys;

use std::{
    future::{Ready, ready},
    time::Duration,
};

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::{BusyStatus, HoldUntil, LockOutage, OnLoss, SharedSecret, Store, driver::Gate as _};

use crate::{
    actix_framework::{ActixFramework, KeyPart},
    gate_middleware::GateMiddleware,
};

/// Serializes requests per resource: 409 with `Retry-After` while another request holds the lock,
/// or a wait in its queue.
///
/// Each method is that of the [core's type](lockgate::lock::LockLayer), which documents it.
#[derive(Debug, Clone)]
pub struct LockLayer {
    inner: lockgate::lock::LockLayer<ActixFramework>,
}

impl LockLayer {
    /// One lock for each value of this key: one part, or a tuple of up to four.
    ///
    /// See the core's [`by`](lockgate::lock::LockLayer::by).
    #[must_use]
    pub fn by(keys: impl Into<KeyPart>) -> Self {
        Self { inner: lockgate::lock::LockLayer::by(keys) }
    }

    /// Separates keys of one kind: with scopes, `/orders/7` and `/users/7` are two locks.
    ///
    /// See the core's [`scope`](lockgate::lock::LockLayer::scope).
    #[must_use]
    pub fn scope(self, scope: &str) -> Self {
        Self { inner: self.inner.scope(scope) }
    }

    /// Names the lock by `name` instead of by the parameter or header, so that `/orders/{id}` and
    /// `/payments/{order}` can share a lock: see [`Key::named`](crate::Key::named).
    ///
    /// See the core's [`named`](lockgate::lock::LockLayer::named).
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { inner: self.inner.named(name) }
    }

    /// Maps all keys of this kind, name and scope onto `n` locks.
    ///
    /// See the core's [`stripes`](lockgate::lock::LockLayer::stripes).
    #[must_use]
    pub fn stripes(self, n: u32) -> Self {
        Self { inner: self.inner.stripes(n) }
    }

    /// Locks requests with safe methods too.
    ///
    /// See the core's [`all_methods`](lockgate::lock::LockLayer::all_methods).
    #[must_use]
    pub fn all_methods(self) -> Self {
        Self { inner: self.inner.all_methods() }
    }

    /// Locks only requests with these methods, safe ones included.
    ///
    /// See the core's [`methods`](lockgate::lock::LockLayer::methods).
    #[must_use]
    pub fn methods<M: AsRef<str>>(self, methods: impl IntoIterator<Item = M>) -> Self {
        Self { inner: self.inner.methods(methods) }
    }

    /// Lets readers share the lock.
    ///
    /// See the core's [`read_write`](lockgate::lock::LockLayer::read_write).
    #[must_use]
    pub fn read_write(self) -> Self {
        Self { inner: self.inner.read_write() }
    }

    /// Admits up to `most` requests at once instead of one.
    ///
    /// See the core's [`permits`](lockgate::lock::LockLayer::permits).
    #[must_use]
    pub fn permits(self, most: u32) -> Self {
        Self { inner: self.inner.permits(most) }
    }

    /// Waits in the lock's queue for at most this time before the busy response.
    ///
    /// See the core's [`wait`](lockgate::lock::LockLayer::wait).
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { inner: self.inner.wait(wait) }
    }

    /// Responds that the lock is busy at once, without a wait.
    ///
    /// See the core's [`reject`](lockgate::lock::LockLayer::reject).
    #[must_use]
    pub fn reject(self) -> Self {
        Self { inner: self.inner.reject() }
    }

    /// Asks again up to `times` times, `every` apart (at least 10 ms), before the busy response.
    ///
    /// See the core's [`retry`](lockgate::lock::LockLayer::retry).
    #[must_use]
    pub fn retry(self, times: u32, every: Duration) -> Self {
        Self { inner: self.inner.retry(times, every) }
    }

    /// Status of the busy response, also after a wait.
    ///
    /// See the core's [`busy_status`](lockgate::lock::LockLayer::busy_status).
    #[must_use]
    pub fn busy_status(self, status: BusyStatus) -> Self {
        Self { inner: self.inner.busy_status(status) }
    }

    /// Uses this store instead of the one that the request provides.
    ///
    /// See the core's [`store`](lockgate::lock::LockLayer::store).
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        Self { inner: self.inner.store(store) }
    }

    /// Reaction to an unavailable store.
    ///
    /// See the core's [`on_outage`](lockgate::lock::LockLayer::on_outage).
    #[must_use]
    pub fn on_outage(self, outage: LockOutage) -> Self {
        Self { inner: self.inner.on_outage(outage) }
    }

    /// Sets this request header to the fence, for upstream services to which a handler forwards the
    /// request's headers.
    ///
    /// See the core's [`fence_header`](lockgate::lock::LockLayer::fence_header).
    #[must_use]
    pub fn fence_header(self, name: &str) -> Self {
        Self { inner: self.inner.fence_header(name) }
    }

    /// Trusts delegations that are signed with this secret: a request from a caller that holds the
    /// lock runs under it, instead of waiting for its caller.
    ///
    /// See the core's [`trust_delegation`](lockgate::lock::LockLayer::trust_delegation).
    #[must_use]
    pub fn trust_delegation(self, secret: &SharedSecret) -> Self {
        Self { inner: self.inner.trust_delegation(secret) }
    }

    /// Time for which the lock outlives its process; it is renewed at a third of that.
    ///
    /// See the core's [`lease`](lockgate::lock::LockLayer::lease).
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { inner: self.inner.lease(lease) }
    }

    /// Lease that is never renewed: the lock ends after it even if the handler still runs, and
    /// [`on_loss`](Self::on_loss) applies then.
    ///
    /// See the core's [`fixed_lease`](lockgate::lock::LockLayer::fixed_lease).
    #[must_use]
    pub fn fixed_lease(self, lease: Duration) -> Self {
        Self { inner: self.inner.fixed_lease(lease) }
    }

    /// Longest time for which a request may hold the lock.
    ///
    /// See the core's [`max_hold`](lockgate::lock::LockLayer::max_hold).
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { inner: self.inner.max_hold(max_hold) }
    }

    /// Requires a grant to reach this number of replicas; otherwise the store counts as
    /// unavailable.
    ///
    /// See the core's [`min_replicas`](lockgate::lock::LockLayer::min_replicas).
    #[must_use]
    pub fn min_replicas(self, replicas: u32) -> Self {
        Self { inner: self.inner.min_replicas(replicas) }
    }

    /// Reaction to the loss of the lock while the handler runs.
    ///
    /// See the core's [`on_loss`](lockgate::lock::LockLayer::on_loss).
    #[must_use]
    pub fn on_loss(self, on_loss: OnLoss) -> Self {
        Self { inner: self.inner.on_loss(on_loss) }
    }

    /// End of the hold.
    ///
    /// See the core's [`hold_until`](lockgate::lock::LockLayer::hold_until).
    #[must_use]
    pub fn hold_until(self, hold_until: HoldUntil) -> Self {
        Self { inner: self.inner.hold_until(hold_until) }
    }

    /// Total time that a handler under the lock may wait for the request's body.
    ///
    /// See the core's [`body_read_timeout`](lockgate::lock::LockLayer::body_read_timeout).
    #[must_use]
    pub fn body_read_timeout(self, deadline: Duration) -> Self {
        Self { inner: self.inner.body_read_timeout(deadline) }
    }

    /// Releases the lock while the response is already on its way, which saves the response a round
    /// trip.
    ///
    /// See the core's [`release_in_background`](lockgate::lock::LockLayer::release_in_background).
    #[must_use]
    pub fn release_in_background(self) -> Self {
        Self { inner: self.inner.release_in_background() }
    }

    /// Limits handovers, which pass the lock to the next request of this process without a call to
    /// the store: at most `most` of them (at most 32), and only `within` this time after the last
    /// queue snapshot.
    ///
    /// See the core's [`handover_limits`](lockgate::lock::LockLayer::handover_limits).
    #[must_use]
    pub fn handover_limits(self, most: u32, within: Duration) -> Self {
        Self { inner: self.inner.handover_limits(most, within) }
    }

    /// Disables handovers, so that requests are served in the order of arrival across processes, as
    /// far as arrivals within a round trip can be distinguished.
    ///
    /// See the core's [`strict_order`](lockgate::lock::LockLayer::strict_order).
    #[must_use]
    pub fn strict_order(self) -> Self {
        Self { inner: self.inner.strict_order() }
    }

    /// Most requests of this process that may wait for one lock.
    ///
    /// See the core's [`max_waiters`](lockgate::lock::LockLayer::max_waiters).
    #[must_use]
    pub fn max_waiters(self, most: usize) -> Self {
        Self { inner: self.inner.max_waiters(most) }
    }
}

impl<S, B> Transform<S, ServiceRequest> for LockLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = GateMiddleware<S, lockgate::lock::LockLayer<ActixFramework>>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        self.inner.validate_settings();
        ready(Ok(GateMiddleware::new(service, self.inner.clone())))
    }
}
