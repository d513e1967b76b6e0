//! M1, P1 and R1: incompatible holds do not overlap.

use crate::{
    Guarantee, Violation,
    locks::{
        RecordedLockMode,
        lock_history::{HoldInterval, LockHistory},
    },
};

/// Checks the holds of one lock, sorted by their start.
pub(super) fn check_exclusion(
    history: &LockHistory,
    holds: &[HoldInterval<'_>],
) -> Option<Violation> {
    let mut open: Vec<HoldInterval<'_>> = Vec::new();
    for hold in holds {
        open.retain(|other| other.to > hold.from);
        if let Some(other) =
            open.iter().find(|other| !are_compatible(other.acquisition.mode, hold.acquisition.mode))
        {
            let guarantee = if hold.acquisition.mode == other.acquisition.mode {
                Guarantee::M1
            } else {
                Guarantee::R1
            };
            let excerpt = history.format_acquisitions([other.acquisition, hold.acquisition]);
            return Some(Violation::new(
                guarantee,
                format!("incompatible holds overlap:{excerpt}"),
            ));
        }
        open.push(*hold);
        let permit_limit = open.iter().filter_map(|hold| max_permits(hold.acquisition.mode)).min();
        if let Some(limit) = permit_limit.filter(|limit| open.len() > *limit) {
            let excerpt = history.format_acquisitions(open.iter().map(|hold| hold.acquisition));
            let held = open.len();
            return Some(Violation::new(
                Guarantee::P1,
                format!("{held} permits held at once, at most {limit}:{excerpt}"),
            ));
        }
    }
    None
}

fn max_permits(mode: RecordedLockMode) -> Option<usize> {
    match mode {
        RecordedLockMode::Permits(max_holders) => usize::try_from(max_holders).ok(),
        RecordedLockMode::Exclusive | RecordedLockMode::Shared => None,
    }
}

fn are_compatible(first: RecordedLockMode, second: RecordedLockMode) -> bool {
    matches!(
        (first, second),
        (RecordedLockMode::Shared, RecordedLockMode::Shared)
            | (RecordedLockMode::Permits(_), RecordedLockMode::Permits(_))
    )
}
