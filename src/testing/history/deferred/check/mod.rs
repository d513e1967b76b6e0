//! The checks: each reads a history and says what is wrong with it, with the shortest part that shows it.

mod ends;
mod order;
mod runs;
#[cfg(test)]
mod tests;

use super::books::{Books, History};
use crate::testing::history::Violation;

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
    for resource in history.resources() {
        wrong.extend(order::in_turn(&books, resource, &mut looked));
        wrong.extend(runs::one_at_a_time(history, resource));
        wrong.extend(runs::fences_grow(history, resource));
        wrong.extend(runs::all_are_known(history, resource));
    }
    for accepted in &history.accepted {
        wrong.extend(ends::ended_once(&books, accepted));
        wrong.extend(ends::as_it_ran(&books, accepted));
        wrong.extend(runs::not_too_often(&books, accepted, &mut looked));
    }
    wrong.extend(ends::ids_are_unique(history));
    (looked, wrong)
}
