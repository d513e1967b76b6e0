//! `DeferLayer` for actix-web's `wrap`.

mod credential_header_settings;
mod idempotency_and_direct_run_settings;
mod limit_settings;
mod merge_settings;
mod owner_and_extension_settings;
mod request_size_and_buffer_settings;
mod retry_delay_expiry_settings;
mod status_path_and_webhook_settings;
mod trigger_settings;

use std::future::{Ready, ready};

use actix_web::{
    Error,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use lockgate::driver::Gate as _;

use crate::{actix_framework::ActixFramework, gate_middleware::GateMiddleware};

/// Accepts requests for a busy resource: 202 now, and one run later, in the order of acceptance.
///
/// Each method is that of the [core's type](lockgate::defer::DeferLayer), which documents it.
///
/// ```
/// # use actix_web::{App, test::{TestRequest, call_service, init_service}, web};
/// # use lockgate_actix_web::{DeferLayer, Key, LockLayer, Store};
/// # #[actix_web::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::memory();
/// let refund = web::resource("/orders/{id}/refund")
///     .post(async || "refunded")
///     .wrap(LockLayer::by_path_param_as::<u64>("id"))
///     .wrap(DeferLayer::new());
/// let data = web::Data::new(store.clone());
/// let orders = |config: &mut web::ServiceConfig| {
///     config.app_data(data).service(refund);
/// };
/// let app = App::new().configure(orders);
/// let app = init_service(app).await;
///
/// let _guard = store.lock(Key::path_param("id", "7")).acquire().await?;
/// let request = TestRequest::post().uri("/orders/7/refund").to_request();
/// let response = call_service(&app, request).await;
/// assert_eq!(response.status(), 202);
/// let location = response.headers().get("location").expect("path of the status resource");
/// assert!(location.to_str()?.starts_with("/deferred/"));
/// # Ok(()) }
/// ```
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
