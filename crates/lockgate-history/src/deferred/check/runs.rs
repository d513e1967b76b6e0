//! M1, M2, D3, D3: runs of a resource do not overlap, their fences grow, and there are not too many.

use std::collections::BTreeSet;

use super::Looked;
use crate::{
    Check, Violation,
    deferred::books::{Accepted, Books, History, Run},
};

/// Those that were sure of their lock when they began, in the order they did. One that was not (its process
/// had been stopped before its first step) is shut out by its fence, and begins at any time.
fn sure<'a>(history: &'a History, resource: &str) -> Vec<&'a Run> {
    let of = |run: &&Run| run.resource == resource && run.from < run.valid;
    let mut runs: Vec<_> = history.runs.iter().filter(of).collect();
    runs.sort_by_key(|run| run.from);
    runs
}

/// M1: also with requests that ran at once.
pub(super) fn one_at_a_time(history: &History, resource: &str) -> Option<Violation> {
    let runs = sure(history, resource);
    let mut last: Option<&Run> = None;
    for run in runs {
        if let Some(other) = last.filter(|other| history.over(other) > run.from) {
            let shown = history.excerpt([other, run]);
            return Some(Violation::new(
                Check::M1,
                format!("two runs of {resource} at once:{shown}"),
            ));
        }
        let later = |other: &Run| history.over(other) > history.over(run);
        last = last.filter(|other| later(other)).or(Some(run));
    }
    None
}

/// M2: from each run to the next.
#[expect(clippy::indexing_slicing, reason = "each of them has two")]
pub(super) fn fences_grow(history: &History, resource: &str) -> Option<Violation> {
    let runs = sure(history, resource);
    let pair = runs.windows(2).find(|pair| pair[0].fence >= pair[1].fence)?;
    let shown = history.excerpt(pair.iter().copied());
    Some(Violation::new(
        Check::M2,
        format!("the fence of a later run of {resource} is not larger:{shown}"),
    ))
}

/// D3: nothing runs that nobody has sent.
pub(super) fn all_are_known(history: &History, resource: &str) -> Option<Violation> {
    let known: BTreeSet<_> = history.accepted.iter().map(|accepted| &*accepted.id).collect();
    let runs = history.runs.iter().filter(|run| run.resource == resource);
    let strange = runs.filter(|run| run.job.as_deref().is_some_and(|id| !known.contains(id)));
    let strange: Vec<_> = strange.collect();
    let ids: BTreeSet<_> = strange.iter().map(|run| &run.job).collect();
    let may_be = history.unanswered.get(resource).copied().unwrap_or(0);
    (ids.len() > may_be).then(|| {
        let shown = history.excerpt(strange);
        Violation::new(
            Check::D3,
            format!("{} of {resource} that no client knows, at most {may_be}:{shown}", ids.len()),
        )
    })
}

/// D3: another run needs one that failed, was handed back, or that a fault has touched; its method has to
/// allow it; and each is charged.
pub(super) fn not_too_often(
    books: &Books<'_>,
    accepted: &Accepted,
    looked: &mut Looked,
) -> Option<Violation> {
    let runs = books.runs_of(&accepted.id);
    looked.repeated += runs.len().saturating_sub(1);
    let Accepted { id, terms, .. } = accepted;
    let wrong = |what: &str, runs: &[&Run]| {
        let shown = books.excerpt(runs.iter().copied());
        Some(Violation::new(Check::D3, format!("{id} {what}:{shown}")))
    };
    for pair in runs.windows(2) {
        let [one, next] = pair else { continue };
        let handed_back = books.drained.contains(&one.life) && one.end.is_none();
        let failed = one.end.as_ref().is_some_and(|end| !end.is_well());
        if !handed_back && !failed && !books.is_touched(one) {
            return wrong("ran again for no reason", pair);
        }
        if next.attempt < one.attempt || (next.attempt == one.attempt && !handed_back) {
            return wrong("was not charged for a run", pair);
        }
    }
    if !terms.again && runs.len() > 1 {
        return wrong("ran again, which its method does not allow", runs);
    }
    if runs.iter().any(|run| run.attempt > terms.most) {
        return wrong("ran more often than it may", runs);
    }
    None
}
