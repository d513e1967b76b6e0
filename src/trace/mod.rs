//! Trace context: which span a stored job or task descends from.
//!
//! lockgate creates spans by `tracing` and knows no tracing system. A [`TracePropagator`], set by
//! `Store::with_trace_propagator`, converts between these spans and the W3C trace context that is
//! stored with jobs and tasks. The crate `lockgate-opentelemetry` implements it.
//!
//! A disabled span costs what a disabled log event costs: its fields are not evaluated, and nothing
//! is allocated or stored.

mod boxed_span;
#[cfg(test)]
mod recording_propagator;
mod trace_context;
mod trace_propagator;
mod trace_relation;

pub(crate) use self::boxed_span::BoxedSpan;
#[cfg(test)]
pub(crate) use self::recording_propagator::RecordingPropagator;
pub use self::{
    trace_context::TraceContext, trace_propagator::TracePropagator, trace_relation::TraceRelation,
};
