//! `RateLimitLayer`, `LockLayer` and `DeferLayer` as tower layers, and the worker of a tower
//! service.

use std::any::Any;

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    framework::Framework,
    gate_body::BoxError,
    gate_layer::GateLayer,
    gate_service::GateService,
    service_replayer::{ServiceReplayer, extension_inserter},
};
use crate::{
    defer::{DeferLayer, DeferWorker},
    gate::RequestKind,
    lock::LockLayer,
    rate_limit::RateLimitLayer,
    store::Store,
};

/// The application's closures get the request's [`Parts`].
impl<F: Framework> RequestKind for F {
    type Native = Parts;

    fn read_extension<T: Send + Sync + 'static, O>(
        request: &Parts,
        read: impl FnOnce(&T) -> O,
    ) -> Option<O> {
        request.extensions.get().map(read)
    }

    fn extension_inserter<T: Clone + Send + Sync + 'static>(value: T) -> impl Any + Send + Sync {
        extension_inserter(value)
    }
}

impl<S, F: Framework> Layer<S> for RateLimitLayer<F> {
    type Service = GateService<S, Self, F>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.clone()).layer(inner)
    }
}

impl<S, F: Framework> Layer<S> for LockLayer<F> {
    type Service = GateService<S, Self, F>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.clone()).layer(inner)
    }
}

impl<S, F: Framework> Layer<S> for DeferLayer<F> {
    type Service = GateService<S, Self, F>;

    fn layer(&self, inner: S) -> Self::Service {
        GateLayer::new(self.clone()).layer(inner)
    }
}

impl<F: Framework> DeferWorker<F> {
    /// Creates a worker that runs the jobs of this store through a service, such as an axum
    /// `Router`.
    ///
    /// Pass the routes as they are *inside* the authentication layer, since credentials are not
    /// stored and a run has none to present. Keep the `LockLayer` of the routes: without it a run
    /// is not recognized and becomes a dead letter.
    ///
    /// For a service with another request body than [`Framework::RequestBody`], pass a
    /// [`ServiceReplayer`] to [`with_replayer`](Self::with_replayer).
    pub fn new<S, B>(store: &Store, service: S) -> Self
    where
        S: Service<Request<F::RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Self::with_replayer(store, ServiceReplayer::<S, F::RequestBody, F>::new(service))
    }
}
