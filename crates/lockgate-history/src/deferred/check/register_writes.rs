//! M3: writes of runs under their lock are neither lost nor undone by a late write.

use std::collections::BTreeSet;

use crate::{
    Guarantee, Violation,
    deferred::deferred_history::{DeferredHistory, RecordedRun},
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
    let mut last = (0, 0);
    for &(fence, value) in writes {
        if fence <= last.0 || value != last.1 + 1 {
            let shown =
                history.format_runs(runs().filter(|run| [last.0, fence].contains(&run.fence)));
            let told =
                format!("the register of {lock} took {last:?}, then {fence}, {value}:{shown}");
            return Some(Violation::new(Guarantee::M3, told));
        }
        last = (fence, value);
    }
    let written: BTreeSet<_> = writes.iter().map(|(fence, _)| *fence).collect();
    let sound = |run: &&RecordedRun| {
        run.end.is_some() && run.started_at < run.valid_until && !history.is_disturbed(run)
    };
    let missing = runs().filter(sound).find(|run| !written.contains(&run.fence))?;
    let shown = history.format_runs([missing]);
    Some(Violation::new(Guarantee::M3, format!("the register of {lock} has refused a run:{shown}")))
}
