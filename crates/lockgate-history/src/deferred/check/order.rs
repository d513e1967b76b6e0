//! D2: requests of a resource start in the order in which they were accepted.

use super::Looked;
use crate::{
    Check, Violation,
    deferred::books::{Accepted, Books},
};

/// Who was told of a 202 before another request was sent was accepted before it. All of its runs begin
/// before any of the other's, or where later ones may pass it while it waits for a retry, its first.
pub(super) fn in_turn(books: &Books<'_>, resource: &str, looked: &mut Looked) -> Option<Violation> {
    let of = |accepted: &&Accepted| accepted.resource == resource && !accepted.terms.unordered;
    let mut line: Vec<_> = books.accepted.iter().filter(of).collect();
    line.sort_by_key(|accepted| accepted.sent);
    let mut told = line.clone();
    told.sort_by_key(|accepted| accepted.told);
    let mut before = told.into_iter().peekable();
    // Of all that were accepted before: the one whose turn was over last.
    let mut latest: Option<(u64, &Accepted)> = None;
    for accepted in line {
        while let Some(earlier) = before.next_if(|earlier| earlier.told < accepted.sent) {
            let runs = books.runs_of(&earlier.id);
            let run = if earlier.terms.skips { runs.first() } else { runs.last() };
            if let Some(run) = run.filter(|run| latest.is_none_or(|(at, _)| at < run.from)) {
                latest = Some((run.from, earlier));
            }
        }
        let runs = books.runs_of(&accepted.id);
        let (Some(first), Some((at, earlier))) = (runs.first(), latest) else { continue };
        looked.ordered += 1;
        if first.from < at {
            let shown = books.excerpt(books.runs_of(&earlier.id).iter().copied().chain([*first]));
            let (earlier, later) = (&earlier.id, &accepted.id);
            return Some(Violation::new(
                Check::D2,
                format!("{later} ran before its turn, which is after {earlier}:{shown}"),
            ));
        }
    }
    None
}
