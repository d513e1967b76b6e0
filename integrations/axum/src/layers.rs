//! Layers for axum's `layer` and `route_layer`, and for `ServiceBuilder`.

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
    /// Creates a worker that runs the jobs of this store through a `Router` or another service.
    ///
    /// Pass the routes as they are *inside* the authentication layer, since credentials are not
    /// stored and a run has none to present. Keep the `LockLayer` of the routes: without it a run
    /// is not recognized and becomes a dead letter.
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
