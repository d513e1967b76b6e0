//! M1, M2 and D3: runs for a resource do not overlap, their fences grow, and none runs too often.

use std::collections::BTreeSet;

use super::DeferredCheckStats;
use crate::{
    Guarantee, Violation,
    deferred::deferred_history::{AcceptedJob, DeferredHistory, JobRunIndex, RecordedRun},
};

/// Returns the runs that started with a valid lock, in the order of their start. A run without a
/// valid lock, because its process was stopped before its first step, is excluded by its fence and
/// may start at any time.
fn runs_under_lock<'a>(history: &'a DeferredHistory, resource: &str) -> Vec<&'a RecordedRun> {
    let of = |run: &&RecordedRun| run.resource == resource && run.started_at < run.valid_until;
    let mut runs: Vec<_> = history.runs.iter().filter(of).collect();
    runs.sort_by_key(|run| run.started_at);
    runs
}

/// M1, for deferred and direct runs.
pub(super) fn check_exclusion(history: &DeferredHistory, resource: &str) -> Option<Violation> {
    let runs = runs_under_lock(history, resource);
    let mut last: Option<&RecordedRun> = None;
    for run in runs {
        if let Some(other) = last.filter(|other| history.end_of_run(other) > run.started_at) {
            let shown = history.format_runs([other, run]);
            return Some(Violation::new(
                Guarantee::M1,
                format!("two runs of {resource} at once:{shown}"),
            ));
        }
        let later = |other: &RecordedRun| history.end_of_run(other) > history.end_of_run(run);
        last = last.filter(|other| later(other)).or(Some(run));
    }
    None
}

/// M2, from each run to the next.
#[expect(clippy::indexing_slicing, reason = "each of them has two")]
pub(super) fn check_fences(history: &DeferredHistory, resource: &str) -> Option<Violation> {
    let runs = runs_under_lock(history, resource);
    let pair = runs.windows(2).find(|pair| pair[0].fence >= pair[1].fence)?;
    let shown = history.format_runs(pair.iter().copied());
    Some(Violation::new(
        Guarantee::M2,
        format!("the fence of a later run of {resource} is not larger:{shown}"),
    ))
}

/// D3: each run belongs to a request that a client has sent.
pub(super) fn check_runs_belong_to_requests(
    history: &DeferredHistory,
    resource: &str,
) -> Option<Violation> {
    let known: BTreeSet<_> = history.accepted.iter().map(|accepted| &*accepted.id).collect();
    let runs = history.runs.iter().filter(|run| run.resource == resource);
    let strange = runs.filter(|run| run.job_id.as_deref().is_some_and(|id| !known.contains(id)));
    let strange: Vec<_> = strange.collect();
    let ids: BTreeSet<_> = strange.iter().map(|run| &run.job_id).collect();
    let may_be = history.unanswered_counts.get(resource).copied().unwrap_or(0);
    (ids.len() > may_be).then(|| {
        let shown = history.format_runs(strange);
        Violation::new(
            Guarantee::D3,
            format!("{} of {resource} that no client knows, at most {may_be}:{shown}", ids.len()),
        )
    })
}

/// D3: a further run needs an earlier one that failed, was returned to the queue, or was affected
/// by a fault. The method must permit it, and each run is charged.
pub(super) fn check_reruns(
    books: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
    looked: &mut DeferredCheckStats,
) -> Option<Violation> {
    let runs = books.runs_of(&accepted.id);
    looked.repeated_runs += runs.len().saturating_sub(1);
    let AcceptedJob { id, terms, .. } = accepted;
    let wrong = |what: &str, runs: &[&RecordedRun]| {
        let shown = books.format_runs(runs.iter().copied());
        Some(Violation::new(Guarantee::D3, format!("{id} {what}:{shown}")))
    };
    for pair in runs.windows(2) {
        let [one, next] = pair else { continue };
        let handed_back = books.drained.contains(&one.incarnation) && one.end.is_none();
        let failed = one.end.as_ref().is_some_and(|end| !end.is_success());
        if !handed_back && !failed && !books.is_disturbed(one) {
            return wrong("ran again for no reason", pair);
        }
        if next.attempt < one.attempt || (next.attempt == one.attempt && !handed_back) {
            return wrong("was not charged for a run", pair);
        }
    }
    if !terms.retry_after_crash && runs.len() > 1 {
        return wrong("ran again, which its method does not allow", runs);
    }
    if runs.iter().any(|run| run.attempt > terms.max_runs) {
        return wrong("ran more often than it may", runs);
    }
    None
}
