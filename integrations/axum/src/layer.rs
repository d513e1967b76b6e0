//! The layers, as axum's `layer`, `route_layer` and `ServiceBuilder` take them.

use axum::{body::Body, extract::Request, response::Response};
use http::request::Parts;
use lockgate::{
    defer::DeferGate,
    lock::LockGate,
    middleware::{GateLayer, GateService, ServiceReplayer, put},
    rate_limit::RateLimitGate,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::framework::{Axum, extension, found};

lockgate::__define_names!(Parts, extension, found, put);

impl<S> Layer<S> for RateLimitLayer {
    type Service = GateService<S, RateLimitGate<Parts>, Axum>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.gate.clone()).layer(inner)
    }
}

impl<S> Layer<S> for LockLayer {
    type Service = GateService<S, LockGate<Parts>, Axum>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.gate.clone()).layer(inner)
    }
}

impl<S> Layer<S> for DeferLayer {
    type Service = GateService<S, DeferGate<Parts>, Axum>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.gate.clone()).layer(inner)
    }
}

impl DeferWorker {
    /// A worker that runs this store's jobs through a `Router`, or any service like it.
    ///
    /// Give it the routes as they are *inside* the authentication layer: credentials are not stored, so
    /// a request that runs again has none to show. Without the routes' own `LockLayer` a run would not
    /// be recognised, and end among the dead letters.
    pub fn new<S>(store: &lockgate::Store, service: S) -> Self
    where
        S: Service<Request, Response = Response> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Send,
    {
        let replayer = ServiceReplayer::<S, Body, Axum>::new(service);
        Self { inner: lockgate::defer::DeferWorker::on(store, replayer) }
    }
}
