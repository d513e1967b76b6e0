//! Layers for actix-web's `wrap`.

use std::future::{Ready, ready};

use actix_web::{
    Error, HttpRequest,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
    web::ServiceConfig,
};
use lockgate::{defer::DeferGate, gate::Gate, lock::LockGate, rate_limit::RateLimitGate};

use crate::{
    app_replayer::{AppReplayer, extension_inserter},
    gate_middleware::GateMiddleware,
    request_view::{extension_key_source, find_extension},
};

lockgate::__define_layers!(HttpRequest, extension_key_source, find_extension, extension_inserter);

macro_rules! impl_transform {
    ($layer:ident, $gate:ident) => {
        impl<S, B> Transform<S, ServiceRequest> for $layer
        where
            S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
            B: MessageBody + 'static,
        {
            type Response = ServiceResponse<EitherBody<B>>;
            type Error = Error;
            type Transform = GateMiddleware<S, $gate<HttpRequest>>;
            type InitError = ();
            type Future = Ready<Result<Self::Transform, ()>>;

            fn new_transform(&self, service: S) -> Self::Future {
                Gate::<HttpRequest>::validate_settings(&self.gate);
                ready(Ok(GateMiddleware::new(service, self.gate.clone())))
            }
        }
    };
}

impl_transform!(RateLimitLayer, RateLimitGate);
impl_transform!(LockLayer, LockGate);
impl_transform!(DeferLayer, DeferGate);

impl DeferWorker {
    /// Creates a worker that runs the jobs of this store through the routes that `configure`
    /// registers. Pass the function that `App::configure` gets, with all data that the handlers
    /// need.
    ///
    /// The routes run in a thread of their own, on an `App` that has only the store. Everything
    /// that the application adds around `configure` is missing there: the `App::wrap` layers, the
    /// `app_data`, and a `web::scope` in which `configure` is called. For the authentication that
    /// is intended, since credentials are not stored and a run has none to present. Keep the
    /// `LockLayer` of the routes: without it a run is not recognized and becomes a dead letter.
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread, as [`std::thread::spawn`], or a runtime for
    /// it.
    pub fn new<F>(store: &lockgate::Store, configure: F) -> Self
    where
        F: FnOnce(&mut ServiceConfig) + Send + 'static,
    {
        let replayer = AppReplayer::new(store, configure);
        Self { inner: lockgate::defer::DeferWorker::new(store, replayer) }
    }
}
