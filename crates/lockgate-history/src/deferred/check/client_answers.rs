//! D4, D3 and L1 of the responses that clients got at once.

use std::collections::BTreeSet;

use super::DeferredCheckStats;
use crate::{
    Guarantee, NANOS_PER_MILLI, ProcessIncarnation, Violation,
    deferred::{ClientAnswer, ClientExchange, DeferredHistory, RecordedRun},
};

/// Status of the busy response.
const BUSY_STATUS: u16 = 409;

/// D4: each response of a handler to a client is that of exactly one run, which ended with it.
pub(super) fn check_answers_match_runs(
    history: &DeferredHistory,
    resource: &str,
) -> Option<Violation> {
    let handler_responses =
        exchanges_for(history, resource).filter_map(|exchange| match &exchange.answer {
            ClientAnswer::Response { status: status @ (200 | 500), body } => Some((*status, body)),
            _ => None,
        });
    for (status, body) in handler_responses {
        let runs: Vec<_> = runs_for(history, resource)
            .filter(|run| ended_with_response(run, status, body))
            .collect();
        if runs.len() != 1 {
            let (count, excerpt) = (runs.len(), history.format_runs(runs.iter().copied()));
            let description = format!(
                "response of {count} runs instead of one, resource {resource}, status {status}, \
                 body {body:?}:{excerpt}"
            );
            return Some(Violation::new(Guarantee::D4, description));
        }
    }
    None
}

/// D3: each direct run belongs to the response of one client, or to a request that may have run
/// without such a response. Checked only if all clients have logged their responses.
pub(super) fn check_direct_runs(history: &DeferredHistory, resource: &str) -> Option<Violation> {
    if history.max_wait == 0 {
        return None;
    }
    let response_bodies: BTreeSet<_> = exchanges_for(history, resource)
        .filter_map(|exchange| handler_response_body(&exchange.answer))
        .collect();
    let has_response = |run: &&RecordedRun| {
        run.end.as_ref().is_some_and(|end| response_bodies.contains(&*end.body))
    };
    let direct_runs = runs_for(history, resource).filter(|run| run.job_id.is_none());
    let unanswered_runs: Vec<_> = direct_runs.filter(|run| !has_response(run)).collect();
    // The request may have run before its connection ended, or before its lock was lost, which was
    // then the response.
    let may_have_run = |exchange: &&ClientExchange| match exchange.answer {
        ClientAnswer::NoResponse => true,
        ClientAnswer::Response { status, .. } => status > 500,
        ClientAnswer::Accepted | ClientAnswer::PossiblyAccepted => false,
    };
    let max_unanswered = exchanges_for(history, resource).filter(may_have_run).count();
    (unanswered_runs.len() > max_unanswered).then(|| {
        let (count, excerpt) = (unanswered_runs.len(), history.format_runs(unanswered_runs));
        let description = format!(
            "{count} direct runs of resource {resource} without a response, at most \
             {max_unanswered}:{excerpt}"
        );
        Violation::new(Guarantee::D3, description)
    })
}

/// L1: an undisturbed process responds in time, with the response of a handler, a 202, or the busy
/// response.
///
/// A process that the machine has stalled may also respond late, or report an unavailable store.
/// Such responses are counted.
pub(super) fn check_liveness(
    history: &DeferredHistory,
    stats: &mut DeferredCheckStats,
) -> Vec<Violation> {
    if history.max_wait == 0 {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for exchange in &history.exchanges {
        let ClientExchange { incarnation, sent_at, answered_at, answer, .. } = exchange;
        let is_served = matches!(
            answer,
            ClientAnswer::Response { status: 200 | 500 | BUSY_STATUS, .. } | ClientAnswer::Accepted
        );
        // No other 4xx is possible for the requests of the clients, even in a disturbance.
        let is_impossible =
            !is_served && matches!(answer, ClientAnswer::Response { status: 400..=499, .. });
        if !is_impossible && history.is_process_disturbed(*incarnation, *sent_at, *answered_at) {
            continue;
        }
        let waited = answered_at.saturating_sub(*sent_at);
        let is_in_time = is_served && waited <= history.max_wait;
        if history.was_stalled(*incarnation, *sent_at, *answered_at) {
            if !is_in_time && (is_served || is_outage_answer(answer)) {
                stats.excused_answers += 1;
                continue;
            }
        } else {
            stats.checked_answers += 1;
            stats.longest_wait = stats.longest_wait.max(waited);
        }
        if !is_in_time {
            violations.push(liveness_violation(exchange, waited));
        }
    }
    violations
}

/// Returns true for the response of a process that got no reply from its store in time, or lost its
/// lock meanwhile.
fn is_outage_answer(answer: &ClientAnswer) -> bool {
    matches!(answer, ClientAnswer::Response { status: 503, .. } | ClientAnswer::PossiblyAccepted)
}

fn liveness_violation(exchange: &ClientExchange, waited: u64) -> Violation {
    let ClientExchange { resource, incarnation, sent_at, answer, .. } = exchange;
    let ProcessIncarnation { process, generation } =
        incarnation.unwrap_or(ProcessIncarnation { process: 0, generation: 0 });
    let (waited_ms, sent_us) = (waited / NANOS_PER_MILLI, sent_at / 1000);
    let description = format!(
        "client not served in time: answer {} of process {process}.{generation} after {waited_ms} \
         ms, resource {resource}, sent at {sent_us} us",
        describe_answer(answer),
    );
    Violation::new(Guarantee::L1, description)
}

fn describe_answer(answer: &ClientAnswer) -> String {
    match answer {
        ClientAnswer::Response { status, .. } => status.to_string(),
        other => format!("{other:?}"),
    }
}

fn handler_response_body(answer: &ClientAnswer) -> Option<&str> {
    match answer {
        ClientAnswer::Response { status: 200 | 500, body } => Some(body),
        _ => None,
    }
}

fn ended_with_response(run: &RecordedRun, status: u16, body: &str) -> bool {
    run.end.as_ref().is_some_and(|end| end.status == status && end.body == body)
}

fn exchanges_for<'a>(
    history: &'a DeferredHistory,
    resource: &str,
) -> impl Iterator<Item = &'a ClientExchange> {
    history.exchanges.iter().filter(move |exchange| exchange.resource == resource)
}

fn runs_for<'a>(
    history: &'a DeferredHistory,
    resource: &str,
) -> impl Iterator<Item = &'a RecordedRun> {
    history.runs.iter().filter(move |run| run.resource == resource)
}
