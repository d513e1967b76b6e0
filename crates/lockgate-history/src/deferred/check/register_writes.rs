//! M3: writes of runs under their lock are neither lost nor undone by a late write.

use std::collections::BTreeSet;

use crate::{
    Guarantee, Violation,
    deferred::{RecordedRun, deferred_history::DeferredHistory},
    locks::FencedRegister,
};

/// Checks that each write follows the previous one, and that the write of each undisturbed run was
/// taken.
pub(super) fn check_register(
    history: &DeferredHistory,
    register: &FencedRegister,
) -> Option<Violation> {
    let FencedRegister { lock, writes } = register;
    let runs = || history.runs.iter().filter(|run| run.resource == *lock);
    let (mut last_fence, mut last_value) = (0, 0);
    for &(fence, value) in writes {
        if fence <= last_fence || value != last_value + 1 {
            let excerpt =
                history.format_runs(runs().filter(|run| [last_fence, fence].contains(&run.fence)));
            let description = format!(
                "late or lost write in the register of {lock}: value {value} with fence {fence} \
                 after value {last_value} with fence {last_fence}:{excerpt}"
            );
            return Some(Violation::new(Guarantee::M3, description));
        }
        (last_fence, last_value) = (fence, value);
    }
    let written: BTreeSet<_> = writes.iter().map(|(fence, _)| *fence).collect();
    let must_be_written = |run: &&RecordedRun| {
        run.end.is_some() && run.started_at < run.valid_until && !history.is_disturbed(run)
    };
    let missing = runs().filter(must_be_written).find(|run| !written.contains(&run.fence))?;
    let excerpt = history.format_runs([missing]);
    let description = format!("write of a run missing in the register of {lock}:{excerpt}");
    Some(Violation::new(Guarantee::M3, description))
}
