//! The layers, as actix-web's `wrap` takes them.

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
    /// A worker that runs this store's jobs through the routes that `configure` makes: the same
    /// function that is given to `App::configure`, with everything its handlers need in it.
    ///
    /// The routes run in a thread of their own, on an `App` that has the store and nothing else. What
    /// the application adds around `configure` is missing there: its `App::wrap` layers, which is right
    /// for authentication (credentials are not stored, so a request that runs again has none to show),
    /// its `app_data`, and a `web::scope` that `configure` is called in. Without the routes' own
    /// `LockLayer` a run would not be recognised, and end among the dead letters.
    ///
    /// # Panics
    ///
    /// If the operating system can't start a thread, as [`std::thread::spawn`], or gives it no runtime.
    pub fn new<F>(store: &lockgate::Store, configure: F) -> Self
    where
        F: FnOnce(&mut ServiceConfig) + Send + 'static,
    {
        let replayer = AppReplayer::new(store, configure);
        Self { inner: lockgate::defer::DeferWorker::new(store, replayer) }
    }
}
