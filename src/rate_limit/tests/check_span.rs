//! The span of a rate check of a layer.

use tracing::Level;

use super::{
    gate_requests::{gate_by_header, run_request},
    per_minute,
};
use crate::{
    RateLimitOutage,
    store::{BackendFault, CapturedLog, faulty_store},
};

#[tokio::test(start_paused = true)]
async fn span_has_the_decision_and_who_made_it() {
    let (store, faults) = faulty_store();
    let (log, _capture) = CapturedLog::start_span_capture(Level::DEBUG);
    let limit = gate_by_header("a", per_minute(1)).store(&store);
    assert_eq!(run_request(&limit, 200).await, 200);
    log.assert_contains("lockgate.rate_limit{policies=1 admitted=true local=false}: ");
    assert_eq!(run_request(&limit, 200).await, 429, "as the refusal cache knows");
    assert_eq!(log.text().matches("lockgate.rate_limit{policies=1 admitted=").count(), 1);
    let other_process = gate_by_header("a", per_minute(1)).store(&store.as_another_process());
    assert_eq!(run_request(&other_process, 200).await, 429, "as the store knows");
    log.assert_contains("lockgate.rate_limit{policies=1 admitted=false local=false}: ");

    faults.set("charge", BackendFault::Unavailable, 1_000);
    let limit = gate_by_header("b", per_minute(9)).store(&store);
    assert_eq!(run_request(&limit, 200).await, 200);
    log.assert_contains("lockgate.rate_limit{policies=1 admitted=true local=true}: ");
    let limit = gate_by_header("cost", per_minute(9)).on_outage(RateLimitOutage::Refuse);
    assert_eq!(run_request(&limit.store(&store), 200).await, 503);
    log.assert_contains("lockgate.rate_limit{policies=1 otel.status_code=\"ERROR\"}: ");
}
