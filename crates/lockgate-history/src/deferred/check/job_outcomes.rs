//! D1 and D4: each accepted request ends once, as its runs show, with the response of its handler.

use std::collections::BTreeSet;

use crate::{
    Guarantee, Violation,
    deferred::{
        AcceptedJob, ObservedStatus, RecordedRun, RunEnd,
        deferred_history::{DeferredHistory, JobRunIndex},
    },
};

pub(super) fn check_ids_unique(history: &DeferredHistory) -> Option<Violation> {
    let mut ids = BTreeSet::new();
    let repeated = history.accepted.iter().find(|accepted| !ids.insert(&accepted.id))?;
    Some(Violation::new(Guarantee::D1, format!("same id for two requests, job {}", repeated.id)))
}

/// D1: the status was read at the end of the test, is final, and never was another final one.
pub(super) fn check_single_outcome(
    job_runs: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
) -> Option<Violation> {
    let AcceptedJob { id, resource, .. } = accepted;
    let statuses = job_runs.observed_statuses.get(id).map_or(&[][..], Vec::as_slice);
    let Some(last) = statuses.last() else {
        return Some(Violation::new(Guarantee::D1, format!("status not read, job {id}")));
    };
    if !last.is_final() {
        if last.state.is_empty() && !accepted.is_certain && job_runs.runs_of(id).is_empty() {
            return None;
        }
        let state = if last.state.is_empty() { "missing" } else { &*last.state };
        let excerpt = job_runs.format_runs(job_runs.runs_of(id).iter().copied());
        return Some(Violation::new(
            Guarantee::D1,
            format!("job {id} of resource {resource} is {state} at the end:{excerpt}"),
        ));
    }
    let other = statuses.iter().find(|s| s.is_final() && s.state != last.state)?;
    Some(Violation::new(
        Guarantee::D1,
        format!("final state changed from {} to {}, job {id}", other.state, last.state),
    ))
}

/// D1 and D4: the final status matches the runs, and the stored response is that of the last run.
pub(super) fn check_outcome_matches_runs(
    job_runs: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
) -> Option<Violation> {
    let id = &accepted.id;
    let last = job_runs.observed_statuses.get(id)?.last()?;
    let runs = job_runs.runs_of(id);
    if !last.is_final() {
        return None;
    }
    if last.state != "done" {
        // A run that succeeded without a disturbance, but was not counted.
        let ignored = runs.iter().find(|run| is_successful_run(run) && !job_runs.is_disturbed(run));
        let (cause, excerpt) = match ignored {
            Some(ignored) => ("successful run ignored", job_runs.format_runs([*ignored])),
            None if is_wrongly_dead(job_runs, accepted, last) => {
                ("remaining attempts not used", job_runs.format_runs(runs.iter().copied()))
            }
            None => return None,
        };
        let (state, reason) = (&last.state, &last.reason);
        return Some(Violation::new(
            Guarantee::D1,
            format!("{cause}, job {id} is {state} {reason:?}:{excerpt}"),
        ));
    }
    let Some(end) = runs.last().and_then(|run| run.end.as_ref()).filter(|end| end.is_success())
    else {
        let excerpt = job_runs.format_runs(runs.iter().copied());
        return Some(Violation::new(
            Guarantee::D1,
            format!("last run not successful, job {id} is done:{excerpt}"),
        ));
    };
    let handler_response = (end.status, end.body.clone());
    if last.response.as_ref() != Some(&handler_response) {
        let stored = &last.response;
        return Some(Violation::new(
            Guarantee::D4,
            format!(
                "stored response differs from that of the handler, job {id}: {stored:?} instead of \
                 {handler_response:?}"
            ),
        ));
    }
    None
}

/// Returns true if the request is dead although it may run again, has attempts left, and none of
/// its runs was disturbed.
///
/// Legitimate reasons are a refusal by the authentication, an unreadable request, and crashes, some
/// of them of runs that did not log their start.
fn is_wrongly_dead(
    job_runs: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
    last: &ObservedStatus,
) -> bool {
    let (runs, terms) = (job_runs.runs_of(&accepted.id), accepted.terms);
    let attempts = runs.iter().map(|run| run.attempt).max();
    let was_refused = |run: &RecordedRun| matches!(run.end, Some(RunEnd { status: 401 | 403, .. }));
    let is_legitimate =
        ["crashed", "unreadable"].iter().any(|cause| last.reason.starts_with(cause));
    last.state == "dead"
        && terms.retry_after_crash
        && attempts.is_some_and(|attempts| attempts < terms.max_runs)
        && !is_legitimate
        && !runs.iter().any(|run| was_refused(run) || job_runs.is_disturbed(run))
}

fn is_successful_run(run: &RecordedRun) -> bool {
    run.end.as_ref().is_some_and(RunEnd::is_success)
}
