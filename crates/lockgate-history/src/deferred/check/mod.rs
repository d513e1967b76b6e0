//! The checks: each reads a history and says what is wrong with it, with the shortest part that shows it.

mod clients;
mod ends;
mod order;
mod runs;
#[cfg(test)]
mod tests;
mod writes;

use super::books::{Books, History, Run};
use crate::Violation;

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// 202s.
    pub accepted: usize,
    /// Runs of them.
    pub runs: usize,
    /// Requests that ran at once.
    pub direct: usize,
    /// Pairs of neighbours in a line whose order was judged.
    pub ordered: usize,
    /// Runs of a request after its first.
    pub repeated: usize,
    /// Runs that nothing was done to, and that the machine had time for: these are judged by all checks.
    pub untouched: usize,
    /// Runs that nothing was done to on purpose.
    pub spared: usize,
    /// Answers that were judged: nothing was done meanwhile to whoever gave them, and the machine had time for him.
    pub answers: usize,
    /// Answers that are excused by the machine alone: that the store is away, or what came late. None in a quiet run.
    pub excused: usize,
    /// The longest that one of them took, ns.
    pub longest: u64,
}

/// All checks of a history; what is wrong is empty for a good one.
#[must_use]
pub(super) fn check(history: &History) -> (Looked, Vec<Violation>) {
    let direct = history.runs.iter().filter(|run| run.job.is_none()).count();
    let mut looked = Looked {
        accepted: history.accepted.len(),
        runs: history.runs.len() - direct,
        direct,
        ..Looked::default()
    };
    let (mut wrong, books) = (Vec::new(), Books::of(history));
    let count = |is: fn(&History, &Run) -> bool| {
        history.runs.iter().filter(|run| !is(history, run)).count()
    };
    looked.untouched = count(History::is_touched);
    looked.spared = count(History::is_struck);
    wrong.extend(clients::are_answered(history, &mut looked));
    for resource in history.resources() {
        wrong.extend(order::in_turn(&books, resource, &mut looked));
        wrong.extend(runs::one_at_a_time(history, resource));
        wrong.extend(runs::fences_grow(history, resource));
        wrong.extend(runs::all_are_known(history, resource));
        wrong.extend(clients::got_what_ran(history, resource));
        wrong.extend(clients::ran_once(history, resource));
    }
    wrong.extend(history.registers.iter().filter_map(|own| writes::all_are_there(history, own)));
    for accepted in &history.accepted {
        wrong.extend(ends::ended_once(&books, accepted));
        wrong.extend(ends::as_it_ran(&books, accepted));
        wrong.extend(runs::not_too_often(&books, accepted, &mut looked));
    }
    wrong.extend(ends::ids_are_unique(history));
    (looked, wrong)
}
