//! M3: the fenced register never goes back, and loses no increment.

use std::collections::HashSet;

use crate::{
    Check, Violation,
    locks::books::{History, Op, Register},
};

pub(super) fn none_is_lost(history: &History, register: &Register) -> Option<Violation> {
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
        let of = |op: &&Op| {
            let fences = [last.0, fence];
            op.lock == *lock && op.grant.as_ref().is_some_and(|g| fences.contains(&g.fence))
        };
        let shown = history.excerpt(history.ops.iter().filter(of));
        return Some(Violation::new(
            Check::M3,
            format!("the register of {lock} {what}, {last:?} then {fence}, {value}:{shown}"),
        ));
    }
    // What a holder was told to be written is there.
    let written: HashSet<_> = register.writes.iter().copied().collect();
    let mut told = history.ops.iter().filter(|op| op.lock == *lock);
    let missing = told.find(|op| {
        op.grant.as_ref().is_some_and(|grant| {
            grant.wrote.iter().any(|value| !written.contains(&(grant.fence, *value)))
        })
    })?;
    Some(Violation::new(
        Check::M3,
        format!("a write to {lock} is not there:{}", history.excerpt([missing])),
    ))
}
