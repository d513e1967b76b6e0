//! Contenders under one load, in alternating rounds.

use crate::{
    bench::Bench,
    contestant::{Contender, Load, Who},
    outcome::Outcome,
    plan::{Keys, Trial},
    quiet, report,
    sent::Senders,
    stats::{median, paired_ratios},
    summary::Summary,
};

/// Everybody's windows, round by round.
pub(crate) struct Contest {
    pub(crate) entries: Vec<(Contender, Vec<Summary>)>,
}

impl Contest {
    /// All bear the load once a round; the order is turned round from one round to the next, so that
    /// nobody always comes first, or always after the same one.
    ///
    /// A `PING` is taken in every round; and, if there is work to be done, the same work by one task
    /// without any lock, which is the ideal.
    pub(crate) fn run(bench: &mut Bench, load: Load, trial: &Trial, who: &[Who]) -> Outcome<Self> {
        let alone = Trial { processes: 1, tasks: 1, keys: Keys::Own(1), work: trial.work };
        let mut lanes = Vec::new();
        for who in who {
            let contender = Contender::best(*who, load);
            lanes.push((contender, *trial, bench.senders(contender, trial)?));
        }
        if trial.work > 0 {
            let nothing = Contender::best(Who::Nothing, Load::Work);
            lanes.push((nothing, alone, Senders::default()));
        }
        let windows =
            alternating(bench.pace.rounds, lanes.len() + 1, |lane| match lanes.get(lane) {
                Some((contender, trial, senders)) => bench.window(*contender, trial, senders),
                None => bench.ping(),
            })?;
        let ping = Contender::best(Who::Ping, Load::Uncontended);
        let contenders = lanes.into_iter().map(|(contender, ..)| contender).chain([ping]);
        let contest = Self { entries: contenders.zip(windows).collect() };
        report::contest(&contest);
        bench.quiet &= quiet::check();
        let ours = contest.faults().filter(|(who, _)| who.is_ours());
        bench.faults.extend(ours.map(|(_, what)| what));
        Ok(contest)
    }

    /// What must not happen: calls that fail, and two holders at once.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (Who, String)> {
        self.entries.iter().flat_map(|(contender, windows)| {
            let sum = |value: fn(&Summary) -> u64| windows.iter().map(value).sum::<u64>();
            let (errors, overlaps) = (sum(|window| window.errors), sum(|window| window.overlaps));
            let first = windows.iter().find_map(|window| window.first_error.as_deref());
            let first = first.unwrap_or("?");
            let errors = (errors > 0)
                .then(|| format!("{contender}: {errors} calls FAILED, the first: {first}"));
            let overlaps = (overlaps > 0)
                .then(|| format!("{contender}: TWO HOLDERS AT ONCE, {overlaps} times"));
            errors.into_iter().chain(overlaps).map(|what| (contender.who, what))
        })
    }

    /// One value of each of somebody's windows.
    pub(crate) fn rounds(&self, who: Who, value: impl Fn(&Summary) -> f64) -> Vec<f64> {
        let entry = self.entries.iter().find(|(contender, _)| contender.who == who);
        entry.map(|(_, windows)| windows.iter().map(value).collect()).unwrap_or_default()
    }

    pub(crate) fn ratios(
        &self,
        ours: Who,
        theirs: Who,
        value: impl Fn(&Summary) -> f64,
    ) -> Vec<f64> {
        paired_ratios(&self.rounds(ours, &value), &self.rounds(theirs, &value))
    }

    /// The library with the largest median: one opponent for all rounds.
    pub(crate) fn best_library(&self, value: impl Fn(&Summary) -> f64) -> Who {
        let median = |who: &Who| median(&self.rounds(*who, &value));
        let best = |a: &Who, b: &Who| median(a).total_cmp(&median(b));
        let there = |who: &Who| !self.rounds(*who, &value).is_empty();
        Who::LIBRARIES.into_iter().filter(there).max_by(best).unwrap_or(Who::Raw)
    }
}

/// Calls each lane once a round: 0, 1, 2, then 2, 1, 0, and so on. Answers by lane.
pub(crate) fn alternating<T>(
    rounds: usize,
    lanes: usize,
    mut window: impl FnMut(usize) -> Outcome<T>,
) -> Outcome<Vec<Vec<T>>> {
    let mut windows: Vec<Vec<T>> = (0..lanes).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for step in 0..lanes {
            let lane = if round % 2 == 0 { step } else { lanes - 1 - step };
            windows[lane].push(window(lane)?);
        }
        report::progress(round + 1, rounds);
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_order_turns() {
        let mut order = Vec::new();
        let windows = alternating(3, 2, |lane| {
            order.push(lane);
            Ok(order.len())
        });
        assert_eq!(windows.unwrap(), [[1, 4, 5], [2, 3, 6]]);
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn the_best_library_is_the_same_in_all_rounds() {
        let windows = |changed: [f64; 3]| {
            changed.map(|changed| Summary { changed, ..Summary::default() }).to_vec()
        };
        let entry = |who, changed| (Contender { who, pause: Duration::ZERO }, windows(changed));
        let contest = Contest {
            entries: vec![
                entry(Who::Lockgate, [60.0, 60.0, 60.0]),
                entry(Who::Raw, [90.0, 90.0, 90.0]),
                entry(Who::Rslock, [10.0, 20.0, 30.0]),
                entry(Who::Distkit, [90.0, 1.0, 2.0]),
            ],
        };
        let best = contest.best_library(|window| window.changed);
        assert_eq!(best, Who::Rslock);
        let ratios = contest.ratios(Who::Lockgate, best, |window| window.changed);
        assert_eq!(ratios, [6.0, 3.0, 2.0]);
    }
}
