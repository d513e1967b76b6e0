//! M1, P1, R1: holds that exclude each other do not overlap.

use crate::{
    Check, Violation,
    locks::{
        Mode,
        books::{History, Hold},
    },
};

/// The holds of one lock, in the order they began.
pub(super) fn exclude(history: &History, holds: &[Hold<'_>]) -> Option<Violation> {
    let mut open: Vec<Hold<'_>> = Vec::new();
    for hold in holds {
        open.retain(|other| other.to > hold.from);
        if let Some(other) = open.iter().find(|other| !fit(other.op.mode, hold.op.mode)) {
            let check = if hold.op.mode == other.op.mode { Check::M1 } else { Check::R1 };
            let shown = history.excerpt([other.op, hold.op]);
            let told = format!("two who exclude each other held it at once:{shown}");
            return Some(Violation::new(check, told));
        }
        open.push(*hold);
        let most = open.iter().filter_map(|hold| limit(hold.op.mode)).min();
        if most.is_some_and(|most| open.len() > most) {
            let shown = history.excerpt(open.iter().map(|hold| hold.op));
            return Some(Violation::new(
                Check::P1,
                format!("{} held it at once:{shown}", open.len()),
            ));
        }
    }
    None
}

fn limit(mode: Mode) -> Option<usize> {
    match mode {
        Mode::Permits(most) => usize::try_from(most).ok(),
        Mode::Exclusive | Mode::Shared => None,
    }
}

fn fit(one: Mode, other: Mode) -> bool {
    matches!((one, other), (Mode::Shared, Mode::Shared) | (Mode::Permits(_), Mode::Permits(_)))
}
