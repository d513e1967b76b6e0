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
            let check = if hold.acquisition.mode == other.acquisition.mode {
                Guarantee::M1
            } else {
                Guarantee::R1
            };
            let shown = history.format_acquisitions([other.acquisition, hold.acquisition]);
            let told = format!("two who exclude each other held it at once:{shown}");
            return Some(Violation::new(check, told));
        }
        open.push(*hold);
        let most = open.iter().filter_map(|hold| max_permits(hold.acquisition.mode)).min();
        if most.is_some_and(|most| open.len() > most) {
            let shown = history.format_acquisitions(open.iter().map(|hold| hold.acquisition));
            return Some(Violation::new(
                Guarantee::P1,
                format!("{} held it at once:{shown}", open.len()),
            ));
        }
    }
    None
}

fn max_permits(mode: RecordedLockMode) -> Option<usize> {
    match mode {
        RecordedLockMode::Permits(most) => usize::try_from(most).ok(),
        RecordedLockMode::Exclusive | RecordedLockMode::Shared => None,
    }
}

fn are_compatible(one: RecordedLockMode, other: RecordedLockMode) -> bool {
    matches!(
        (one, other),
        (RecordedLockMode::Shared, RecordedLockMode::Shared)
            | (RecordedLockMode::Permits(_), RecordedLockMode::Permits(_))
    )
}
