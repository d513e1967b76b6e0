//! Checks of deferred requests. Each of them reads a history, and reports violations with the
//! shortest part that shows them.

mod client_answers;
mod job_outcomes;
mod register_writes;
mod run_rules;
mod start_order;
#[cfg(test)]
mod tests;

use super::deferred_history::{DeferredHistory, JobRunIndex, RecordedRun};
use crate::Violation;

/// Statistics of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeferredCheckStats {
    /// Accepted requests.
    pub accepted: usize,
    /// Runs of accepted requests.
    pub runs: usize,
    /// Requests that ran directly.
    pub direct_runs: usize,
    /// Pairs of neighbors in a queue that were checked for their order.
    pub ordered_pairs: usize,
    /// Runs of a request after its first.
    pub repeated_runs: usize,
    /// Runs without a disturbance or a stall, which all checks cover.
    pub undisturbed_runs: usize,
    /// Runs without a disturbance that the test caused.
    pub unfaulted_runs: usize,
    /// Responses that were checked, of processes that were neither disturbed nor stalled.
    pub checked_answers: usize,
    /// Late responses, and reports of an unavailable store, that are excused by a stall alone. None
    /// in a run without stalls.
    pub excused_answers: usize,
    /// Longest time of a checked response in ns.
    pub longest_wait: u64,
}

/// Runs all checks. A correct history has no violations.
#[must_use]
pub(super) fn check_history(history: &DeferredHistory) -> (DeferredCheckStats, Vec<Violation>) {
    let direct = history.runs.iter().filter(|run| run.job_id.is_none()).count();
    let mut looked = DeferredCheckStats {
        accepted: history.accepted.len(),
        runs: history.runs.len() - direct,
        direct_runs: direct,
        ..DeferredCheckStats::default()
    };
    let (mut wrong, books) = (Vec::new(), JobRunIndex::new(history));
    let count = |is: fn(&DeferredHistory, &RecordedRun) -> bool| {
        history.runs.iter().filter(|run| !is(history, run)).count()
    };
    looked.undisturbed_runs = count(DeferredHistory::is_disturbed);
    looked.unfaulted_runs = count(DeferredHistory::is_faulted);
    wrong.extend(client_answers::check_liveness(history, &mut looked));
    for resource in history.resources() {
        wrong.extend(start_order::check_start_order(&books, resource, &mut looked));
        wrong.extend(run_rules::check_exclusion(history, resource));
        wrong.extend(run_rules::check_fences(history, resource));
        wrong.extend(run_rules::check_runs_belong_to_requests(history, resource));
        wrong.extend(client_answers::check_answers_match_runs(history, resource));
        wrong.extend(client_answers::check_direct_runs(history, resource));
    }
    wrong.extend(
        history.registers.iter().filter_map(|own| register_writes::check_register(history, own)),
    );
    for accepted in &history.accepted {
        wrong.extend(job_outcomes::check_single_outcome(&books, accepted));
        wrong.extend(job_outcomes::check_outcome_matches_runs(&books, accepted));
        wrong.extend(run_rules::check_reruns(&books, accepted, &mut looked));
    }
    wrong.extend(job_outcomes::check_ids_unique(history));
    (looked, wrong)
}
