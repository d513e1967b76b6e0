//! `GateLayer`: the tower layer of a gate.

use std::{marker::PhantomData, sync::Arc};

use http::request::Parts;
use tower_layer::Layer;

use super::{framework::PlainHttp, gate_service::GateService};
use crate::gate::Gate;

/// Layer that puts any gate around a service. `RateLimitLayer`, `LockLayer` and `DeferLayer` are
/// layers without it.
#[derive(Debug, Clone)]
pub struct GateLayer<G, F = PlainHttp> {
    gate: Arc<G>,
    framework: PhantomData<F>,
}

impl<G, F> GateLayer<G, F> {
    /// Creates a layer of this gate.
    pub fn new(gate: G) -> Self {
        Self { gate: Arc::new(gate), framework: PhantomData }
    }
}

impl<S, G: Gate<Parts>, F> Layer<S> for GateLayer<G, F> {
    type Service = GateService<S, G, F>;

    fn layer(&self, inner: S) -> Self::Service {
        self.gate.validate_settings();
        GateService::new(inner, Arc::clone(&self.gate))
    }
}
