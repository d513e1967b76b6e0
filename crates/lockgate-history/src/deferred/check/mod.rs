//! The checks: each reads a history and says what is wrong with it, with the shortest part that shows it.

mod client_answers;
mod job_outcomes;
mod register_writes;
mod run_rules;
mod start_order;
#[cfg(test)]
mod tests;

use super::deferred_history::{DeferredHistory, JobRunIndex, RecordedRun};
use crate::Violation;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeferredCheckStats {
    /// 202s.
    pub accepted: usize,
    /// Runs of them.
    pub runs: usize,
    /// Requests that ran at once.
    pub direct_runs: usize,
    /// Pairs of neighbours in a line whose order was judged.
    pub ordered_pairs: usize,
    /// Runs of a request after its first.
    pub repeated_runs: usize,
    /// Runs that nothing was done to, and that the machine had time for: these are judged by all checks.
    pub undisturbed_runs: usize,
    /// Runs that nothing was done to on purpose.
    pub unfaulted_runs: usize,
    /// Answers that were judged: nothing was done meanwhile to whoever gave them, and the machine had time for him.
    pub judged_answers: usize,
    /// Answers that are excused by the machine alone: that the store is away, or what came late. None in a quiet run.
    pub excused_answers: usize,
    /// The longest that one of them took, ns.
    pub longest_wait: u64,
}

/// All checks of a history; what is wrong is empty for a good one.
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
    looked.unfaulted_runs = count(DeferredHistory::is_disturbed_on_purpose);
    wrong.extend(client_answers::check_liveness(history, &mut looked));
    for resource in history.resources() {
        wrong.extend(start_order::check_start_order(&books, resource, &mut looked));
        wrong.extend(run_rules::check_exclusion(history, resource));
        wrong.extend(run_rules::check_fences(history, resource));
        wrong.extend(run_rules::check_jobs_known(history, resource));
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
