//! D2: requests for a resource start in the order of their acceptance.

use super::DeferredCheckStats;
use crate::{
    Guarantee, Violation,
    deferred::deferred_history::{AcceptedJob, JobRunIndex},
};

/// Checks the start order of a resource.
///
/// If the 202 of a request arrived before another request was sent, the first one was accepted
/// earlier. All of its runs must start before any run of the other one, or only its first run if
/// later requests may overtake it while it waits for a retry.
pub(super) fn check_start_order(
    books: &JobRunIndex<'_>,
    resource: &str,
    looked: &mut DeferredCheckStats,
) -> Option<Violation> {
    let of =
        |accepted: &&AcceptedJob| accepted.resource == resource && !accepted.terms.is_unordered;
    let mut line: Vec<_> = books.accepted.iter().filter(of).collect();
    line.sort_by_key(|accepted| accepted.sent_at);
    let mut told = line.clone();
    told.sort_by_key(|accepted| accepted.answered_at);
    let mut before = told.into_iter().peekable();
    // Latest start among the requests accepted earlier, with its request.
    let mut latest: Option<(u64, &AcceptedJob)> = None;
    for accepted in line {
        while let Some(earlier) = before.next_if(|earlier| earlier.answered_at < accepted.sent_at) {
            let runs = books.runs_of(&earlier.id);
            let run = if earlier.terms.allows_overtaking { runs.first() } else { runs.last() };
            if let Some(run) = run.filter(|run| latest.is_none_or(|(at, _)| at < run.started_at)) {
                latest = Some((run.started_at, earlier));
            }
        }
        let runs = books.runs_of(&accepted.id);
        let (Some(first), Some((at, earlier))) = (runs.first(), latest) else { continue };
        looked.ordered_pairs += 1;
        if first.started_at < at {
            let shown =
                books.format_runs(books.runs_of(&earlier.id).iter().copied().chain([*first]));
            let (earlier, later) = (&earlier.id, &accepted.id);
            return Some(Violation::new(
                Guarantee::D2,
                format!("{later} ran before its turn, which is after {earlier}:{shown}"),
            ));
        }
    }
    None
}
