//! D2: requests for a resource start in the order of their acceptance.

use super::DeferredCheckStats;
use crate::{
    Guarantee, Violation,
    deferred::{AcceptedJob, deferred_history::JobRunIndex},
};

/// Checks the start order of a resource.
///
/// If the 202 of a request arrived before another request was sent, the first one was accepted
/// earlier. All of its runs must start before any run of the other one, or only its first run if
/// later requests may overtake it while it waits for a retry.
pub(super) fn check_start_order(
    job_runs: &JobRunIndex<'_>,
    resource: &str,
    stats: &mut DeferredCheckStats,
) -> Option<Violation> {
    let is_ordered =
        |accepted: &&AcceptedJob| accepted.resource == resource && !accepted.terms.is_unordered;
    let mut by_sending: Vec<_> = job_runs.accepted.iter().filter(is_ordered).collect();
    by_sending.sort_by_key(|accepted| accepted.sent_at);
    let mut by_answer = by_sending.clone();
    by_answer.sort_by_key(|accepted| accepted.answered_at);
    let mut earlier_jobs = by_answer.into_iter().peekable();
    // Latest start among the requests accepted earlier, with its request.
    let mut latest: Option<(u64, &AcceptedJob)> = None;
    for accepted in by_sending {
        while let Some(earlier) =
            earlier_jobs.next_if(|earlier| earlier.answered_at < accepted.sent_at)
        {
            let runs = job_runs.runs_of(&earlier.id);
            let run = if earlier.terms.allows_overtaking { runs.first() } else { runs.last() };
            if let Some(run) = run.filter(|run| latest.is_none_or(|(at, _)| at < run.started_at)) {
                latest = Some((run.started_at, earlier));
            }
        }
        let runs = job_runs.runs_of(&accepted.id);
        let (Some(first), Some((latest_start, earlier))) = (runs.first(), latest) else { continue };
        stats.ordered_pairs += 1;
        if first.started_at < latest_start {
            let excerpt =
                job_runs.format_runs(job_runs.runs_of(&earlier.id).iter().copied().chain([*first]));
            let (earlier, later) = (&earlier.id, &accepted.id);
            return Some(Violation::new(
                Guarantee::D2,
                format!("job {later} started before the earlier job {earlier}:{excerpt}"),
            ));
        }
    }
    None
}
