//! `TraceRelation`: relation of a run's span to the span that accepted its job or task.

/// Relation of a run's span to the span that accepted its job or pushed its task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceRelation {
    /// The run is a trace of its own, with a link to the accepting span. Default: a run may begin
    /// hours later and be repeated, and most tracing systems decide on a whole trace, its duration
    /// and its sampling, within minutes.
    #[default]
    Link,
    /// The run is a child of the accepting span, in the same trace.
    Parent,
}
