//! The layers, as axum's `layer`, `route_layer` and `ServiceBuilder` take them.

use axum::{body::Body, extract::Request, response::Response};
use http::request::Parts;
use lockgate::{
    defer::DeferGate,
    lock::LockGate,
    middleware::{GateLayer, GateService, ServiceReplayer, extension_inserter},
    rate_limit::RateLimitGate,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::axum_framework::{AxumFramework, extension_key_source, find_extension};

lockgate::__define_layers!(Parts, extension_key_source, find_extension, extension_inserter);

impl<S> Layer<S> for RateLimitLayer {
    type Service = GateService<S, RateLimitGate<Parts>, AxumFramework>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.gate.clone()).layer(inner)
    }
}

impl<S> Layer<S> for LockLayer {
    type Service = GateService<S, LockGate<Parts>, AxumFramework>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.gate.clone()).layer(inner)
    }
}

impl<S> Layer<S> for DeferLayer {
    type Service = GateService<S, DeferGate<Parts>, AxumFramework>;

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
        let replayer = ServiceReplayer::<S, Body, AxumFramework>::new(service);
        Self { inner: lockgate::defer::DeferWorker::new(store, replayer) }
    }
}
