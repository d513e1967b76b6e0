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
    let (mut last_fence, mut last_value) = (0, 0);
    for &(fence, value) in &register.writes {
        let cause = if fence < last_fence {
            "write with an older fence accepted"
        } else if value != last_value + 1 {
            "increment lost"
        } else {
            (last_fence, last_value) = (fence, value);
            continue;
        };
        let has_fence = |acquisition: &&LockAcquisition| {
            let fences = [last_fence, fence];
            let grant = acquisition.grant.as_ref();
            acquisition.lock == *lock && grant.is_some_and(|g| fences.contains(&g.fence))
        };
        let excerpt = history.format_acquisitions(history.acquisitions.iter().filter(has_fence));
        return Some(Violation::new(
            Guarantee::M3,
            format!(
                "{cause} by the register of {lock}: value {value} with fence {fence} after value \
                 {last_value} with fence {last_fence}:{excerpt}"
            ),
        ));
    }
    // A write that was confirmed to a holder must be there.
    let written: HashSet<_> = register.writes.iter().copied().collect();
    let mut acquisitions = history.acquisitions.iter().filter(|a| a.lock == *lock);
    let missing = acquisitions.find(|acquisition| {
        acquisition.grant.as_ref().is_some_and(|grant| {
            grant.written_values.iter().any(|value| !written.contains(&(grant.fence, *value)))
        })
    })?;
    Some(Violation::new(
        Guarantee::M3,
        format!(
            "confirmed write missing in the register of {lock}:{}",
            history.format_acquisitions([missing])
        ),
    ))
}
