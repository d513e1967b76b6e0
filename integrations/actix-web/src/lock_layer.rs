//! `LockLayer` for actix-web's `wrap`.

mod busy_lock_settings;
mod fence_and_delegation_settings;
mod handover_and_waiter_settings;
mod key_constructors;
mod lease_settings;
mod loss_and_release_settings;
mod mode_and_method_settings;
mod scope_name_stripes_settings;
mod store_settings;

use std::future::{Ready, ready};

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::driver::Gate as _;

use crate::{
    actix_framework::{ActixFramework, KeyPart},
    gate_middleware::GateMiddleware,
};

/// Serializes requests per resource: 409 with `Retry-After` while another request holds the lock,
/// or a wait in its queue.
///
/// Each method is that of the [core's type](lockgate::lock::LockLayer), which documents it.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_service, init_service}, web};
/// # use lockgate_actix_web::{Key, LockLayer, Store};
/// # #[actix_web::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let pay = web::resource("/orders/{id}/pay")
///     .post(async || "paid")
///     .wrap(LockLayer::by_path_param_as::<u64>("id").store(&store));
/// let app = init_service(App::new().service(pay)).await;
///
/// let guard = store.lock(Key::path_param("id", "7")).acquire().await?;
/// let request = |id| TestRequest::post().uri(&format!("/orders/{id}/pay")).to_request();
/// assert_eq!(call_service(&app, request("07")).await.status(), 409);
/// assert_eq!(call_service(&app, request("8")).await.status(), 200);
/// guard.release().await;
/// assert_eq!(call_service(&app, request("7")).await.status(), 200);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct LockLayer {
    inner: lockgate::lock::LockLayer<ActixFramework>,
}

impl LockLayer {
    /// One lock for each value of this key: one part, or a tuple of up to four.
    ///
    /// See the core's [`by`](lockgate::lock::LockLayer::by).
    ///
    /// ```
    /// # use actix_web::web;
    /// # use lockgate_actix_web::{KeyPart, LockLayer};
    /// // One lock for each order of each tenant.
    /// let lock = LockLayer::by((KeyPart::header("x-tenant"), KeyPart::path_param("id")));
    /// let pay = web::resource("/orders/{id}/pay").post(async || "paid").wrap(lock);
    /// # drop(pay);
    /// ```
    #[must_use]
    pub fn by(keys: impl Into<KeyPart>) -> Self {
        Self { inner: lockgate::lock::LockLayer::by(keys) }
    }

    /// Like [`by`](Self::by), for an address from a configuration.
    ///
    /// See the core's [`try_by`](lockgate::lock::LockLayer::try_by).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind) if a request may have no key.
    pub fn try_by(keys: impl Into<KeyPart>) -> Result<Self, lockgate::Error> {
        Ok(Self { inner: lockgate::lock::LockLayer::try_by(keys)? })
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
