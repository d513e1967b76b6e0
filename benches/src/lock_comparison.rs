//! Comparison of lock contenders under one load, in alternating rounds.

use crate::{
    bench_result::BenchResult,
    bench_runner::BenchRunner,
    command_origins::CommandOrigins,
    cpu_share,
    lock_contender::{ContenderConfig, ContenderKind, LockLoad},
    lock_measurement::LockMeasurement,
    report,
    stats::{median, paired_ratios},
    worker_plan::{LockKeys, LockScenario},
};

/// Measurements of all contenders, one per round.
pub(crate) struct LockComparison {
    pub(crate) entries: Vec<(ContenderConfig, Vec<LockMeasurement>)>,
}

impl LockComparison {
    /// Measures each contender once per round. The order is reversed after each round, so that no
    /// contender always comes first or always follows the same one.
    ///
    /// Each round also measures `PING`. If the scenario has work, it measures the same work by one
    /// task without a lock, which is the ideal.
    pub(crate) fn run(
        bench: &mut BenchRunner,
        load: LockLoad,
        scenario: &LockScenario,
        kinds: &[ContenderKind],
    ) -> BenchResult<Self> {
        let ideal_scenario = LockScenario {
            processes: 1,
            tasks_per_process: 1,
            keys: LockKeys::Own(1),
            work_iterations: scenario.work_iterations,
        };
        let mut entries = Vec::new();
        for kind in kinds {
            let contender = ContenderConfig::with_best_setting(*kind, load);
            entries.push((contender, *scenario, bench.observe_contender(contender, scenario)?));
        }
        if scenario.work_iterations > 0 {
            let ideal = ContenderConfig::with_best_setting(ContenderKind::NoLock, LockLoad::Work);
            entries.push((ideal, ideal_scenario, CommandOrigins::default()));
        }
        let measurements = run_alternating(bench.settings.rounds, entries.len() + 1, |index| {
            match entries.get(index) {
                Some((contender, scenario, origins)) => {
                    bench.measure_window(*contender, scenario, origins)
                }
                None => bench.measure_ping(),
            }
        })?;
        let ping = ContenderConfig::with_best_setting(ContenderKind::Ping, LockLoad::Uncontended);
        let contenders = entries.into_iter().map(|(contender, ..)| contender).chain([ping]);
        let comparison = Self { entries: contenders.zip(measurements).collect() };
        report::print_comparison(&comparison);
        bench.is_undisturbed &= cpu_share::check_undisturbed();
        let own_failures = comparison.failures().filter(|(kind, _)| kind.is_lockgate());
        bench.failures.extend(own_failures.map(|(_, message)| message));
        Ok(comparison)
    }

    /// Returns one message per contender with failed calls, and one if two tasks held the lock at
    /// once.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (ContenderKind, String)> {
        self.entries.iter().flat_map(|(contender, measurements)| {
            let sum =
                |value: fn(&LockMeasurement) -> u64| measurements.iter().map(value).sum::<u64>();
            let (errors, overlaps) = (sum(|window| window.errors), sum(|window| window.overlaps));
            let first_error = measurements.iter().find_map(|window| window.first_error.as_deref());
            let first_error = first_error.unwrap_or("?");
            let errors = (errors > 0)
                .then(|| format!("{contender}: {errors} calls FAILED, the first: {first_error}"));
            let overlaps = (overlaps > 0)
                .then(|| format!("{contender}: TWO HOLDERS AT ONCE, {overlaps} times"));
            errors.into_iter().chain(overlaps).map(|message| (contender.kind, message))
        })
    }

    /// Returns one value per round of a contender; empty if it was not measured.
    pub(crate) fn round_values(
        &self,
        kind: ContenderKind,
        value: impl Fn(&LockMeasurement) -> f64,
    ) -> Vec<f64> {
        let entry = self.entries.iter().find(|(contender, _)| contender.kind == kind);
        entry.map(|(_, measurements)| measurements.iter().map(value).collect()).unwrap_or_default()
    }

    pub(crate) fn ratios(
        &self,
        own: ContenderKind,
        other: ContenderKind,
        value: impl Fn(&LockMeasurement) -> f64,
    ) -> Vec<f64> {
        paired_ratios(&self.round_values(own, &value), &self.round_values(other, &value))
    }

    /// Returns the library with the largest median over all rounds.
    pub(crate) fn best_library(&self, value: impl Fn(&LockMeasurement) -> f64) -> ContenderKind {
        let median = |kind: &ContenderKind| median(&self.round_values(*kind, &value));
        let by_median = |a: &ContenderKind, b: &ContenderKind| median(a).total_cmp(&median(b));
        let is_measured = |kind: &ContenderKind| !self.round_values(*kind, &value).is_empty();
        ContenderKind::LIBRARIES
            .into_iter()
            .filter(is_measured)
            .max_by(by_median)
            .unwrap_or(ContenderKind::Raw)
    }
}

/// Calls `measure` with each contender index once per round: 0, 1, 2, then 2, 1, 0, and so on.
/// Returns the results by contender.
pub(crate) fn run_alternating<T>(
    rounds: usize,
    contender_count: usize,
    mut measure: impl FnMut(usize) -> BenchResult<T>,
) -> BenchResult<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = (0..contender_count).map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for position in 0..contender_count {
            let index = if round % 2 == 0 { position } else { contender_count - 1 - position };
            results[index].push(measure(index)?);
        }
        report::print_progress(round + 1, rounds);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn contender_order_reverses_every_round() {
        let mut order = Vec::new();
        let results = run_alternating(3, 2, |index| {
            order.push(index);
            Ok(order.len())
        });
        assert_eq!(results.unwrap(), [[1, 4, 5], [2, 3, 6]]);
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn best_library_has_largest_median_over_all_rounds() {
        let measurements = |values: [f64; 3]| {
            values
                .map(|value| LockMeasurement {
                    holder_changes_per_second: value,
                    ..LockMeasurement::default()
                })
                .to_vec()
        };
        let entry = |kind, values| {
            (ContenderConfig { kind, retry_delay: Duration::ZERO }, measurements(values))
        };
        let comparison = LockComparison {
            entries: vec![
                entry(ContenderKind::Lockgate, [60.0, 60.0, 60.0]),
                entry(ContenderKind::Raw, [90.0, 90.0, 90.0]),
                entry(ContenderKind::Rslock, [10.0, 20.0, 30.0]),
                entry(ContenderKind::Distkit, [90.0, 1.0, 2.0]),
            ],
        };
        let best = comparison.best_library(|window| window.holder_changes_per_second);
        assert_eq!(best, ContenderKind::Rslock);
        let ratios = comparison
            .ratios(ContenderKind::Lockgate, best, |window| window.holder_changes_per_second);
        assert_eq!(ratios, [6.0, 3.0, 2.0]);
    }
}
