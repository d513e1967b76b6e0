//! M1 and M2: runs for a resource do not overlap, and their fences grow.

use crate::{
    Guarantee, Violation,
    deferred::{RecordedRun, deferred_history::DeferredHistory},
};

/// Returns the runs that started with a valid lock, in the order of their start. A run without a
/// valid lock, because its process was stopped before its first step, is excluded by its fence and
/// may start at any time.
fn runs_under_lock<'a>(history: &'a DeferredHistory, resource: &str) -> Vec<&'a RecordedRun> {
    let is_included =
        |run: &&RecordedRun| run.resource == resource && run.started_at < run.valid_until;
    let mut runs: Vec<_> = history.runs.iter().filter(is_included).collect();
    runs.sort_by_key(|run| run.started_at);
    runs
}

/// M1, for deferred and direct runs.
pub(super) fn check_exclusion(history: &DeferredHistory, resource: &str) -> Option<Violation> {
    let runs = runs_under_lock(history, resource);
    let mut last_to_end: Option<&RecordedRun> = None;
    for run in runs {
        if let Some(other) = last_to_end.filter(|other| history.end_of_run(other) > run.started_at)
        {
            let excerpt = history.format_runs([other, run]);
            return Some(Violation::new(
                Guarantee::M1,
                format!("runs of resource {resource} overlap:{excerpt}"),
            ));
        }
        let ends_later = |other: &RecordedRun| history.end_of_run(other) > history.end_of_run(run);
        last_to_end = last_to_end.filter(|other| ends_later(other)).or(Some(run));
    }
    None
}

/// M2, from each run to the next.
#[expect(clippy::indexing_slicing, reason = "each window has two runs")]
pub(super) fn check_fences(history: &DeferredHistory, resource: &str) -> Option<Violation> {
    let runs = runs_under_lock(history, resource);
    let pair = runs.windows(2).find(|pair| pair[0].fence >= pair[1].fence)?;
    let excerpt = history.format_runs(pair.iter().copied());
    Some(Violation::new(
        Guarantee::M2,
        format!("fence of a later run of resource {resource} is not larger:{excerpt}"),
    ))
}
