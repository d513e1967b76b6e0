//! Link from the accepting span to a client's trace that it does not continue.

use bytes::Bytes;
use tracing::Level;

use super::{TestDeferLayer, parked_candidate};
use crate::{
    gate::{Gate as _, HttpRequestHead},
    store::{CapturedLog, Store},
    trace::{RecordingPropagator, TraceContext, TraceRelation},
};

#[tokio::test(start_paused = true)]
async fn accepting_span_is_linked_to_the_client_only_if_it_is_in_another_trace() {
    let (_, _capture) = CapturedLog::start_span_capture(Level::INFO);
    let other_trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let other_trace = TraceContext::new(other_trace, None).expect("it is valid");
    let link = ("lockgate.defer.accept", TraceRelation::Link, other_trace.clone());
    for (client, links) in [(RecordingPropagator::context(), vec![]), (other_trace, vec![link])] {
        let propagator = RecordingPropagator::default();
        let store = Store::memory().with_trace_propagator(propagator.clone());
        let mut headers = Vec::new();
        client.write_to(&mut headers);
        let head = HttpRequestHead::new("POST", "/7", headers, None);
        let body = Some(Bytes::from_static(b"body"));
        let gate = TestDeferLayer::new();
        let reply = gate.accept_parked(parked_candidate(&store), head, body).await;
        assert_eq!(reply.expect("an answer").status, 202);
        assert_eq!(propagator.related_spans(), links);
    }
}
