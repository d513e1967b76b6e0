//! Spans of runs, and the stored context that they are related to.

use tracing::{Level, Span};

use super::{
    DeferWorker, FnReplayer, SpawnedWorker, enqueue_request, lock_key_of, outcome_with_status,
    wait_until_ended,
};
use crate::{
    gate::HttpRequestHead,
    store::{CapturedLog, Store},
    trace::{RecordingPropagator, TraceRelation},
};

#[tokio::test(start_paused = true)]
async fn run_is_related_to_the_stored_context_as_set_and_contains_its_handler() {
    let (log, _capture) = CapturedLog::start_span_capture(Level::INFO);
    for (relation, status) in [(TraceRelation::Link, 200), (TraceRelation::Parent, 500)] {
        let propagator = RecordingPropagator::default();
        let store = Store::memory().with_trace_propagator(propagator.clone());
        let routes = FnReplayer::new(move |head, marker| async move {
            let span = Span::current().metadata().map(tracing::Metadata::name);
            assert_eq!(span, Some("lockgate.defer.run"));
            let carried = head.headers.iter().find(|(name, _)| name == "traceparent");
            let context = RecordingPropagator::context();
            assert_eq!(
                carried.map(|(_, value)| &value[..]),
                Some(context.traceparent().as_bytes())
            );
            marker.pass_own_lock(&lock_key_of(&head.target));
            outcome_with_status(status)
        });
        let mut headers = Vec::new();
        RecordingPropagator::context().write_to(&mut headers);
        let head = HttpRequestHead::new("POST", "/a/1", headers, None);
        let id = enqueue_request(&store, head, b"body").await;
        let worker = DeferWorker::new(&store, routes).trace_runs(relation);
        let worker = SpawnedWorker::spawn_worker(worker);
        wait_until_ended(&store, &id).await;
        worker.stop().await;
        let expected = ("lockgate.defer.run", relation, RecordingPropagator::context());
        assert_eq!(propagator.related_spans(), [expected]);
    }
    log.assert_contains("outcome=\"done\"");
    log.assert_contains("outcome=\"failed\" otel.status_code=\"ERROR\"");
}
