//! D1, D1, D4: each accepted request ends once, as its runs say, with the response that was given.

use std::collections::BTreeSet;

use crate::testing::history::{
    Check, Violation,
    deferred::books::{Accepted, Books, End, History, Run},
};

pub(super) fn ids_are_unique(history: &History) -> Option<Violation> {
    let mut ids = BTreeSet::new();
    let twice = history.accepted.iter().find(|accepted| !ids.insert(&accepted.id))?;
    Some(Violation::new(Check::D1, format!("one id for two requests: {}", twice.id)))
}

/// D1: it was asked about when all was quiet, and had ended; and it was never seen to have ended otherwise.
pub(super) fn ended_once(books: &Books<'_>, accepted: &Accepted) -> Option<Violation> {
    let Accepted { id, resource, .. } = accepted;
    let seen = books.seen.get(id).map_or(&[][..], Vec::as_slice);
    let Some(last) = seen.last() else {
        return Some(Violation::new(Check::D1, format!("nobody asked what became of {id}")));
    };
    if !last.is_final() {
        if last.state.is_empty() && !accepted.sure && books.runs_of(id).is_empty() {
            return None;
        }
        let state = if last.state.is_empty() { "gone" } else { &*last.state };
        let shown = books.excerpt(books.runs_of(id).iter().copied());
        return Some(Violation::new(
            Check::D1,
            format!("{id} of {resource} is {state} when all is over:{shown}"),
        ));
    }
    let other = seen.iter().find(|seen| seen.is_final() && seen.state != last.state)?;
    Some(Violation::new(Check::D1, format!("{id} was {} first, then {}", other.state, last.state)))
}

/// D1 and D4.
pub(super) fn as_it_ran(books: &Books<'_>, accepted: &Accepted) -> Option<Violation> {
    let id = &accepted.id;
    let last = books.seen.get(id)?.last()?;
    let runs = books.runs_of(id);
    if !last.is_final() {
        return None;
    }
    if last.state != "done" {
        // It has run to its end, nobody disturbed it, and it counts for nothing.
        let lost = runs.iter().find(|run| is_well(run) && !books.is_touched(run))?;
        let shown = books.excerpt([*lost]);
        return Some(Violation::new(
            Check::D1,
            format!("{id} is {}, but was done:{shown}", last.state),
        ));
    }
    let Some(end) = runs.last().and_then(|run| run.end.as_ref()).filter(|end| end.is_well()) else {
        let shown = books.excerpt(runs.iter().copied());
        return Some(Violation::new(
            Check::D1,
            format!("{id} is done, but its last run did not end well:{shown}"),
        ));
    };
    let given = (end.status, end.body.clone());
    if last.response.as_ref() != Some(&given) {
        let stored = &last.response;
        return Some(Violation::new(
            Check::D4,
            format!("{id} was answered {given:?}; stored is {stored:?}"),
        ));
    }
    None
}

fn is_well(run: &Run) -> bool {
    run.end.as_ref().is_some_and(End::is_well)
}
