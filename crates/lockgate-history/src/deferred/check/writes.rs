//! M3: what runs write under their lock is neither lost nor undone by one that comes too late.

use std::collections::BTreeSet;

use crate::{
    Check, Violation,
    deferred::books::{History, Run},
    locks::Register,
};

/// The register took each write after the one before, and that of each run to which nothing was done.
pub(super) fn all_are_there(history: &History, register: &Register) -> Option<Violation> {
    let Register { lock, writes } = register;
    let runs = || history.runs.iter().filter(|run| run.resource == *lock);
    let mut last = (0, 0);
    for &(fence, value) in writes {
        if fence <= last.0 || value != last.1 + 1 {
            let shown = history.excerpt(runs().filter(|run| [last.0, fence].contains(&run.fence)));
            let told =
                format!("the register of {lock} took {last:?}, then {fence}, {value}:{shown}");
            return Some(Violation::new(Check::M3, told));
        }
        last = (fence, value);
    }
    let written: BTreeSet<_> = writes.iter().map(|(fence, _)| *fence).collect();
    let sound = |run: &&Run| run.end.is_some() && run.from < run.valid && !history.is_touched(run);
    let missing = runs().filter(sound).find(|run| !written.contains(&run.fence))?;
    let shown = history.excerpt([missing]);
    Some(Violation::new(Check::M3, format!("the register of {lock} has refused a run:{shown}")))
}
