//! Spans of pushes and runs, and the trace context between them.

use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{Level, Span};

use super::{SpawnedQueueWorker, push_text, text_queue, wait_until_idle};
use crate::{
    queue::{Queue, Task, TaskFailure},
    store::{CapturedLog, Store},
    trace::{RecordingPropagator, TraceRelation},
};

/// Pushes a task and runs it. Returns the name of the span that its handler runs in.
async fn push_and_run(queue: &Queue<String>, relation: TraceRelation) -> Option<&'static str> {
    let handler_span = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&handler_span);
    push_text(queue, "a").await;
    let worker = queue.worker(move |_: Task<String>| {
        let seen = Arc::clone(&seen);
        async move {
            tokio::task::yield_now().await;
            *seen.lock() = Span::current().metadata().map(tracing::Metadata::name);
            Err(TaskFailure::dead_letter("requested by the test"))
        }
    });
    let worker = SpawnedQueueWorker::start(worker.trace_runs(relation));
    wait_until_idle().await;
    worker.stop().await;
    *handler_span.lock()
}

#[tokio::test(start_paused = true)]
async fn run_is_related_to_the_push_as_set_and_contains_its_handler() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    for relation in [TraceRelation::Link, TraceRelation::Parent] {
        let propagator = RecordingPropagator::default();
        let queue = text_queue(&Store::memory().with_trace_propagator(propagator.clone()));
        assert_eq!(push_and_run(&queue, relation).await, Some("lockgate.task.run"));
        let expected = ("lockgate.task.run", relation, RecordingPropagator::context());
        assert_eq!(propagator.related_spans(), [expected]);
    }
    log.assert_contains("lockgate.task.push{otel.kind=\"producer\"");
    let destinations = log.text().matches("messaging.destination.name=texts ").count();
    assert!(destinations >= 4, "two pushes and two runs name one queue: {}", log.text());
    log.assert_contains("attempt=1 otel.status_code=\"ERROR\" fault=failed");
}

#[tokio::test(start_paused = true)]
async fn task_has_no_context_without_enabled_spans() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::WARN);
    let propagator = RecordingPropagator::default();
    let queue = text_queue(&Store::memory().with_trace_propagator(propagator.clone()));
    assert_eq!(push_and_run(&queue, TraceRelation::Link).await, None);
    assert_eq!(propagator.related_spans(), []);
    assert!(!log.text().contains("lockgate.task"), "{}", log.text());
}
