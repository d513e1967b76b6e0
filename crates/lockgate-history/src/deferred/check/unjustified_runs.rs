//! D3: runs without a request of a client, and runs again without a failure, a fault or permission.

use std::collections::BTreeSet;

use super::DeferredCheckStats;
use crate::{
    Guarantee, Violation,
    deferred::{
        AcceptedJob, RecordedRun,
        deferred_history::{DeferredHistory, JobRunIndex},
    },
};

/// D3: each run belongs to a request that a client has sent.
pub(super) fn check_runs_belong_to_requests(
    history: &DeferredHistory,
    resource: &str,
) -> Option<Violation> {
    let accepted_ids: BTreeSet<_> = history.accepted.iter().map(|accepted| &*accepted.id).collect();
    let runs = history.runs.iter().filter(|run| run.resource == resource);
    let unknown_runs =
        runs.filter(|run| run.job_id.as_deref().is_some_and(|id| !accepted_ids.contains(id)));
    let unknown_runs: Vec<_> = unknown_runs.collect();
    let unknown_ids: BTreeSet<_> = unknown_runs.iter().map(|run| &run.job_id).collect();
    let max_unknown = history.unanswered_counts.get(resource).copied().unwrap_or(0);
    (unknown_ids.len() > max_unknown).then(|| {
        let (count, excerpt) = (unknown_ids.len(), history.format_runs(unknown_runs));
        Violation::new(
            Guarantee::D3,
            format!(
                "{count} jobs of resource {resource} without a client, at most \
                 {max_unknown}:{excerpt}"
            ),
        )
    })
}

/// D3: a further run needs an earlier one that failed, was returned to the queue, or was affected
/// by a fault. The method must permit it, and each run is charged.
pub(super) fn check_reruns(
    job_runs: &JobRunIndex<'_>,
    accepted: &AcceptedJob,
    stats: &mut DeferredCheckStats,
) -> Option<Violation> {
    let runs = job_runs.runs_of(&accepted.id);
    stats.repeated_runs += runs.len().saturating_sub(1);
    let AcceptedJob { id, terms, .. } = accepted;
    let violation = |cause: &str, runs: &[&RecordedRun]| {
        let excerpt = job_runs.format_runs(runs.iter().copied());
        Some(Violation::new(Guarantee::D3, format!("{cause}, job {id}:{excerpt}")))
    };
    for pair in runs.windows(2) {
        let [run, next] = pair else { continue };
        let was_returned = job_runs.drained.contains(&run.incarnation) && run.end.is_none();
        let has_failed = run.end.as_ref().is_some_and(|end| !end.is_success());
        if !was_returned && !has_failed && !job_runs.is_disturbed(run) {
            return violation("run repeated without a failure or a fault", pair);
        }
        if next.attempt < run.attempt || (next.attempt == run.attempt && !was_returned) {
            return violation("run not charged", pair);
        }
    }
    if !terms.retry_after_crash && runs.len() > 1 {
        return violation("run repeated although the method does not allow it", runs);
    }
    if runs.iter().any(|run| run.attempt > terms.max_runs) {
        return violation("more runs than allowed", runs);
    }
    None
}
