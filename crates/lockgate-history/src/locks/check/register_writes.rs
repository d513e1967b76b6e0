//! M3: the fenced register never goes back, and loses no increment.

use std::collections::HashSet;

use crate::{
    Guarantee, Violation,
    locks::lock_history::{FencedRegister, LockAcquisition, LockHistory},
};

pub(super) fn check_register(
    history: &LockHistory,
    register: &FencedRegister,
) -> Option<Violation> {
    let lock = &register.lock;
    let mut last = (0, 0);
    for &(fence, value) in &register.writes {
        let what = if fence < last.0 {
            "took a write below its highest fence"
        } else if value != last.1 + 1 {
            "lost an increment"
        } else {
            last = (fence, value);
            continue;
        };
        let of = |op: &&LockAcquisition| {
            let fences = [last.0, fence];
            op.lock == *lock && op.grant.as_ref().is_some_and(|g| fences.contains(&g.fence))
        };
        let shown = history.format_acquisitions(history.acquisitions.iter().filter(of));
        return Some(Violation::new(
            Guarantee::M3,
            format!("the register of {lock} {what}, {last:?} then {fence}, {value}:{shown}"),
        ));
    }
    // A write that was confirmed to a holder must be there.
    let written: HashSet<_> = register.writes.iter().copied().collect();
    let mut told = history.acquisitions.iter().filter(|op| op.lock == *lock);
    let missing = told.find(|op| {
        op.grant.as_ref().is_some_and(|grant| {
            grant.written_values.iter().any(|value| !written.contains(&(grant.fence, *value)))
        })
    })?;
    Some(Violation::new(
        Guarantee::M3,
        format!("a write to {lock} is not there:{}", history.format_acquisitions([missing])),
    ))
}
