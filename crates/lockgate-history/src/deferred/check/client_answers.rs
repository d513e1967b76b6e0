//! D4, D3 and L1 of the responses that clients got at once.

use std::collections::BTreeSet;

use super::DeferredCheckStats;
use crate::{
    Guarantee, NANOS_PER_MILLI, ProcessIncarnation, Violation,
    deferred::deferred_history::{ClientAnswer, ClientExchange, DeferredHistory, RecordedRun},
};

/// Status of the busy response.
const BUSY_STATUS: u16 = 409;

/// D4: each response of a handler to a client is that of exactly one run, which ended with it.
pub(super) fn check_answers_match_runs(
    history: &DeferredHistory,
    resource: &str,
) -> Option<Violation> {
    let answers = exchanges_for(history, resource);
    let given = answers.filter_map(|asked| match &asked.answer {
        ClientAnswer::Response(status @ (200 | 500), body) => Some((*status, body)),
        _ => None,
    });
    for (status, body) in given {
        let runs: Vec<_> = runs_for(history, resource)
            .filter(|run| ended_with_response(run, status, body))
            .collect();
        if runs.len() != 1 {
            let shown = history.format_runs(runs.iter().copied());
            let many = runs.len();
            let told =
                format!("a client of {resource} was told {status} {body:?} of {many} runs:{shown}");
            return Some(Violation::new(Guarantee::D4, told));
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
    let told: BTreeSet<_> = exchanges_for(history, resource)
        .filter_map(|asked| handler_response_body(&asked.answer))
        .collect();
    let heard = |run: &&RecordedRun| run.end.as_ref().is_some_and(|end| told.contains(&*end.body));
    let at_once = runs_for(history, resource).filter(|run| run.job_id.is_none());
    let strange: Vec<_> = at_once.filter(|run| !heard(run)).collect();
    // The request may have run before its connection ended, or before its lock was lost, which was
    // then the response.
    let may_be = |asked: &&ClientExchange| match asked.answer {
        ClientAnswer::NoResponse => true,
        ClientAnswer::Response(status, _) => status > 500,
        ClientAnswer::Accepted | ClientAnswer::PossiblyAccepted => false,
    };
    let may_be = exchanges_for(history, resource).filter(may_be).count();
    (strange.len() > may_be).then(|| {
        let (many, shown) = (strange.len(), history.format_runs(strange));
        let told =
            format!("{many} ran at once on {resource} for no client, at most {may_be}:{shown}");
        Violation::new(Guarantee::D3, told)
    })
}

/// L1: an undisturbed process responds in time, with the response of a handler, a 202, or the busy
/// response.
///
/// A process that the machine has stalled may also respond late, or report an unavailable store.
/// Such responses are counted.
pub(super) fn check_liveness(
    history: &DeferredHistory,
    looked: &mut DeferredCheckStats,
) -> Vec<Violation> {
    if history.max_wait == 0 {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for asked in &history.exchanges {
        let ClientExchange { incarnation: life, sent_at: sent, answered_at: told, answer, .. } =
            asked;
        let served = matches!(
            answer,
            ClientAnswer::Response(200 | 500 | BUSY_STATUS, _) | ClientAnswer::Accepted
        );
        // No other 4xx is possible for the requests of the clients, even in a disturbance.
        let never = !served && matches!(answer, ClientAnswer::Response(400..=499, _));
        if !never && history.is_process_disturbed(*life, *sent, *told) {
            continue;
        }
        let took = told.saturating_sub(*sent);
        let good = served && took <= history.max_wait;
        if history.was_stalled(*life, *sent, *told) {
            if !good && (served || is_outage_answer(answer)) {
                looked.excused_answers += 1;
                continue;
            }
        } else {
            looked.checked_answers += 1;
            looked.longest_wait = looked.longest_wait.max(took);
        }
        if !good {
            wrong.push(liveness_violation(asked, took));
        }
    }
    wrong
}

/// Returns true for the response of a process that got no reply from its store in time, or lost its
/// lock meanwhile.
fn is_outage_answer(answer: &ClientAnswer) -> bool {
    matches!(answer, ClientAnswer::Response(503, _) | ClientAnswer::PossiblyAccepted)
}

fn liveness_violation(asked: &ClientExchange, took: u64) -> Violation {
    let ClientExchange { resource, incarnation: life, sent_at: sent, answer, .. } = asked;
    let ProcessIncarnation { process, generation: number } =
        life.unwrap_or(ProcessIncarnation { process: 0, generation: 0 });
    let told = format!(
        "a client of {resource} was told {} by process {process}.{number} after {} ms, sent {}",
        describe_answer(answer),
        took / NANOS_PER_MILLI,
        sent / 1000,
    );
    Violation::new(Guarantee::L1, told)
}

fn describe_answer(answer: &ClientAnswer) -> String {
    match answer {
        ClientAnswer::Response(status, _) => status.to_string(),
        other => format!("{other:?}"),
    }
}

fn handler_response_body(answer: &ClientAnswer) -> Option<&str> {
    match answer {
        ClientAnswer::Response(200 | 500, body) => Some(body),
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
    history.exchanges.iter().filter(move |asked| asked.resource == resource)
}

fn runs_for<'a>(
    history: &'a DeferredHistory,
    resource: &str,
) -> impl Iterator<Item = &'a RecordedRun> {
    history.runs.iter().filter(move |run| run.resource == resource)
}
