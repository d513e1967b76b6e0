//! D1 and D4: each accepted request ends once, as its runs show, with the response of its handler.

use std::collections::BTreeSet;

use crate::{
    Guarantee, Violation,
    deferred::deferred_history::{
        AcceptedJob, DeferredHistory, JobRunIndex, ObservedStatus, RecordedRun, RunEnd,
    },
};

pub(super) fn check_ids_unique(history: &DeferredHistory) -> Option<Violation> {
    let mut ids = BTreeSet::new();
    let twice = history.accepted.iter().find(|accepted| !ids.insert(&accepted.id))?;
    Some(Violation::new(Guarantee::D1, format!("one id for two requests: {}", twice.id)))
}

/// D1: the status was read at the end of the test, is final, and never was another final one.
pub(super) fn check_single_outcome(
    books: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
) -> Option<Violation> {
    let AcceptedJob { id, resource, .. } = accepted;
    let seen = books.observed_statuses.get(id).map_or(&[][..], Vec::as_slice);
    let Some(last) = seen.last() else {
        return Some(Violation::new(Guarantee::D1, format!("nobody asked what became of {id}")));
    };
    if !last.is_final() {
        if last.state.is_empty() && !accepted.is_certain && books.runs_of(id).is_empty() {
            return None;
        }
        let state = if last.state.is_empty() { "gone" } else { &*last.state };
        let shown = books.format_runs(books.runs_of(id).iter().copied());
        return Some(Violation::new(
            Guarantee::D1,
            format!("{id} of {resource} is {state} when all is over:{shown}"),
        ));
    }
    let other = seen.iter().find(|seen| seen.is_final() && seen.state != last.state)?;
    Some(Violation::new(
        Guarantee::D1,
        format!("{id} was {} first, then {}", other.state, last.state),
    ))
}

/// D1 and D4: the final status matches the runs, and the stored response is that of the last run.
pub(super) fn check_outcome_matches_runs(
    books: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
) -> Option<Violation> {
    let id = &accepted.id;
    let last = books.observed_statuses.get(id)?.last()?;
    let runs = books.runs_of(id);
    if !last.is_final() {
        return None;
    }
    if last.state != "done" {
        // A run that succeeded without a disturbance, but was not counted.
        let lost = runs.iter().find(|run| is_successful_run(run) && !books.is_disturbed(run));
        let (what, shown) = match lost {
            Some(lost) => ("was done", books.format_runs([*lost])),
            None if is_wrongly_dead(books, accepted, last) => {
                ("could have run again", books.format_runs(runs.iter().copied()))
            }
            None => return None,
        };
        return Some(Violation::new(
            Guarantee::D1,
            format!("{id} is {} {:?}, but {what}:{shown}", last.state, last.reason),
        ));
    }
    let Some(end) = runs.last().and_then(|run| run.end.as_ref()).filter(|end| end.is_success())
    else {
        let shown = books.format_runs(runs.iter().copied());
        return Some(Violation::new(
            Guarantee::D1,
            format!("{id} is done, but its last run did not end well:{shown}"),
        ));
    };
    let given = (end.status, end.body.clone());
    if last.response.as_ref() != Some(&given) {
        let stored = &last.response;
        return Some(Violation::new(
            Guarantee::D4,
            format!("{id} was answered {given:?}; stored is {stored:?}"),
        ));
    }
    None
}

/// Returns true if the request is dead although it may run again, has attempts left, and none of
/// its runs was disturbed.
///
/// Legitimate reasons are a refusal by the authentication, an unreadable request, and crashes, some
/// of them of runs that did not log their start.
fn is_wrongly_dead(books: &JobRunIndex<'_>, accepted: &AcceptedJob, last: &ObservedStatus) -> bool {
    let (runs, terms) = (books.runs_of(&accepted.id), accepted.terms);
    let attempts = runs.iter().map(|run| run.attempt).max();
    let refused = |run: &RecordedRun| matches!(run.end, Some(RunEnd { status: 401 | 403, .. }));
    let by_itself = ["crashed", "unreadable"].iter().any(|cause| last.reason.starts_with(cause));
    last.state == "dead"
        && terms.retry_after_crash
        && attempts.is_some_and(|attempts| attempts < terms.max_runs)
        && !by_itself
        && !runs.iter().any(|run| refused(run) || books.is_disturbed(run))
}

fn is_successful_run(run: &RecordedRun) -> bool {
    run.end.as_ref().is_some_and(RunEnd::is_success)
}
