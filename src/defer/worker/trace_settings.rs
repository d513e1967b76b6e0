//! Setting of `DeferWorker` for the traces of its runs.

use super::DeferWorker;
use crate::trace::TraceRelation;

impl<R> DeferWorker<R> {
    /// Sets the relation of a run's span to the span that accepted the request. Default
    /// [`TraceRelation::Link`]: a request may run hours after its 202, and several times. It needs
    /// `Store::with_trace_propagator`.
    pub fn trace_runs(mut self, relation: TraceRelation) -> Self {
        self.settings.trace_relation = relation;
        self
    }
}
