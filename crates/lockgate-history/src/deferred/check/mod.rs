//! Checks of deferred requests. Each of them reads a history, and reports violations with the
//! shortest part that shows them.

mod client_answers;
mod exclusion_and_fences;
mod job_outcomes;
mod register_writes;
mod start_order;
#[cfg(test)]
mod tests;
mod unjustified_runs;

use super::{
    RecordedRun,
    deferred_history::{DeferredHistory, JobRunIndex},
};
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
    let direct_run_count = history.runs.iter().filter(|run| run.job_id.is_none()).count();
    let mut stats = DeferredCheckStats {
        accepted: history.accepted.len(),
        runs: history.runs.len() - direct_run_count,
        direct_runs: direct_run_count,
        ..DeferredCheckStats::default()
    };
    let (mut violations, job_runs) = (Vec::new(), JobRunIndex::new(history));
    let count_without = |is_affected: fn(&DeferredHistory, &RecordedRun) -> bool| {
        history.runs.iter().filter(|run| !is_affected(history, run)).count()
    };
    stats.undisturbed_runs = count_without(DeferredHistory::is_disturbed);
    stats.unfaulted_runs = count_without(DeferredHistory::is_faulted);
    violations.extend(client_answers::check_liveness(history, &mut stats));
    for resource in history.resources() {
        violations.extend(start_order::check_start_order(&job_runs, resource, &mut stats));
        violations.extend(exclusion_and_fences::check_exclusion(history, resource));
        violations.extend(exclusion_and_fences::check_fences(history, resource));
        violations.extend(unjustified_runs::check_runs_belong_to_requests(history, resource));
        violations.extend(client_answers::check_answers_match_runs(history, resource));
        violations.extend(client_answers::check_direct_runs(history, resource));
    }
    for register in &history.registers {
        violations.extend(register_writes::check_register(history, register));
    }
    for accepted in &history.accepted {
        violations.extend(job_outcomes::check_single_outcome(&job_runs, accepted));
        violations.extend(job_outcomes::check_outcome_matches_runs(&job_runs, accepted));
        violations.extend(unjustified_runs::check_reruns(&job_runs, accepted, &mut stats));
    }
    violations.extend(job_outcomes::check_ids_unique(history));
    (stats, violations)
}
