//! `RateLimitLayer` for actix-web's `wrap`.

mod key_constructors;
mod last_policy_settings;
mod response_settings;

use std::future::{Ready, ready};

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::{Policy, Store, driver::Gate as _};

use crate::{
    actix_framework::{ActixFramework, KeyPart},
    gate_middleware::GateMiddleware,
};

/// Limits requests per client: 429 beyond the quota, `RateLimit` headers within it.
///
/// Each method is that of the [core's type](lockgate::rate_limit::RateLimitLayer), which documents
/// it.
///
/// ```
/// # use std::time::Duration;
/// # use actix_web::{App, test::{TestRequest, call_service, init_service}, web};
/// # use lockgate_actix_web::{Quota, RateLimitLayer, Store};
/// # #[actix_web::main]
/// # async fn main() {
/// let quota = Quota::requests(1).per(Duration::from_secs(60));
/// let limit = RateLimitLayer::by_header("x-api-key", quota).store(&Store::memory());
/// let app = App::new().route("/", web::get().to(async || "hello")).wrap(limit);
/// let app = init_service(app).await;
///
/// let request = || TestRequest::get().insert_header(("x-api-key", "abc")).to_request();
/// assert_eq!(call_service(&app, request()).await.status(), 200);
/// assert_eq!(call_service(&app, request()).await.status(), 429);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    inner: lockgate::rate_limit::RateLimitLayer<ActixFramework>,
}

impl RateLimitLayer {
    /// One quota for each value of this key: one part, or a tuple of up to four.
    ///
    /// See the core's [`by`](lockgate::rate_limit::RateLimitLayer::by).
    #[must_use]
    pub fn by(keys: impl Into<KeyPart>, policy: impl Into<Policy>) -> Self {
        Self { inner: lockgate::rate_limit::RateLimitLayer::by(keys, policy) }
    }

    /// Adds the policies of another layer: a request has to be within all policies, and is charged
    /// to all of them or to none.
    ///
    /// See the core's [`and`](lockgate::rate_limit::RateLimitLayer::and).
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { inner: self.inner.and(other.inner) }
    }

    /// Adds a policy on the key of the last one: a request has to be within all policies, and is
    /// charged to all of them or to none.
    ///
    /// See the core's [`and_policy`](lockgate::rate_limit::RateLimitLayer::and_policy).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use actix_web::App;
    /// # use lockgate_actix_web::{Quota, RateLimitLayer};
    /// let per_second = Quota::requests(10).per(Duration::from_secs(1));
    /// let per_minute = Quota::requests(100).per(Duration::from_secs(60));
    /// let app = App::new().wrap(RateLimitLayer::by_ip(per_second).and_policy(per_minute));
    /// # drop(app);
    /// ```
    ///
    /// # Panics
    ///
    /// If another policy of this key has the same name, or the same quota while both have no name.
    #[must_use]
    pub fn and_policy(self, policy: impl Into<Policy>) -> Self {
        Self { inner: self.inner.and_policy(policy) }
    }

    /// Like [`and_policy`](Self::and_policy), for a policy from a configuration.
    ///
    /// See the core's [`try_and_policy`](lockgate::rate_limit::RateLimitLayer::try_and_policy).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if another policy of this key has the same name, or
    /// the same quota while both have no name.
    pub fn try_and_policy(self, policy: impl Into<Policy>) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: self.inner.try_and_policy(policy)? })
    }

    /// Counts all policies of this layer under one key, so that one call decides all of them.
    ///
    /// See the core's [`group_by`](lockgate::rate_limit::RateLimitLayer::group_by).
    #[must_use]
    pub fn group_by(self, keys: impl Into<KeyPart>) -> Self {
        Self { inner: self.inner.group_by(keys) }
    }

    /// Uses this store instead of the one that the request provides.
    ///
    /// See the core's [`store`](lockgate::rate_limit::RateLimitLayer::store).
    #[must_use]
    pub fn store(self, store: &Store) -> Self {
        Self { inner: self.inner.store(store) }
    }
}

impl<S, B> Transform<S, ServiceRequest> for RateLimitLayer
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = GateMiddleware<S, lockgate::rate_limit::RateLimitLayer<ActixFramework>>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        self.inner.validate_settings();
        ready(Ok(GateMiddleware::new(service, self.inner.clone())))
    }
}
