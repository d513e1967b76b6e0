//! `GateLayer`.

use std::marker::PhantomData;

use tower_layer::Layer;

use super::{framework::Plain, service::GateService};

/// Puts a gate around a service. Integrations wrap it in a layer of their own name.
#[derive(Debug, Clone)]
pub struct GateLayer<G, F = Plain> {
    gate: G,
    framework: PhantomData<F>,
}

impl<G, F> GateLayer<G, F> {
    /// A layer of this gate.
    pub fn new(gate: G) -> Self {
        Self { gate, framework: PhantomData }
    }
}

impl<S, G: Clone, F> Layer<S> for GateLayer<G, F> {
    type Service = GateService<S, G, F>;

    fn layer(&self, inner: S) -> Self::Service {
        GateService::new(inner, self.gate.clone())
    }
}
