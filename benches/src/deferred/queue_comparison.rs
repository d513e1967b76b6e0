//! Comparison of queues under one load, in alternating rounds.

use std::collections::BTreeMap;

use super::queue_bench::QueueBench;
use crate::{
    bench_figure::format_number,
    bench_result::BenchResult,
    cpu_share,
    lock_comparison::run_alternating,
    lock_measurement::LockMeasurement,
    queue::QueueKind,
    report,
    stats::{median, paired_ratios},
};

/// Measurement of a queue in one window. Times are milliseconds, rates are per second; values that
/// a load does not measure are zero.
#[derive(Debug, Clone, Default)]
pub(super) struct QueueMeasurement {
    /// Jobs pushed or run.
    pub(super) jobs_per_second: f64,
    /// Jobs that were first pushed, and then run and settled.
    pub(super) pushed_and_run_per_second: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) shortest: f64,
    pub(super) longest: f64,
    /// Jobs that started before they were due.
    pub(super) early_starts: f64,
    /// Share of a core that Redis used.
    pub(super) redis_core_share: f64,
    /// CPU time of Redis per job, in microseconds.
    pub(super) redis_micros_per_job: f64,
    /// Commands per job, inside and outside of scripts.
    pub(super) commands_per_job: f64,
    /// For each command: calls and their microseconds.
    pub(super) command_profile: BTreeMap<String, (u64, u64)>,
    /// Failed check of the counts, if any.
    pub(super) failure: Option<String>,
}

pub(super) type QueueColumn = (&'static str, fn(&QueueMeasurement) -> f64);

/// Measurements of all queues, one per round.
pub(super) struct QueueComparison {
    entries: Vec<(QueueKind, Vec<QueueMeasurement>)>,
    pings: Vec<LockMeasurement>,
}

impl QueueComparison {
    /// Like [`LockComparison::run`](crate::lock_comparison::LockComparison::run): calls `measure`
    /// for each queue once per round, in alternating order, and measures a `PING` in each round. A
    /// queue that fails to run is reported and left out of this load.
    pub(super) fn run(
        bench: &mut QueueBench,
        kinds: &[QueueKind],
        columns: &[QueueColumn],
        mut measure: impl FnMut(&mut QueueBench, QueueKind) -> BenchResult<QueueMeasurement>,
    ) -> BenchResult<Self> {
        let kinds: Vec<QueueKind> =
            kinds.iter().copied().filter(|kind| bench.is_available(*kind)).collect();
        let mut pings = Vec::new();
        let rounds = bench.runner.settings.rounds;
        let mut skipped = Vec::new();
        let measurements = run_alternating(rounds, kinds.len() + 1, |index| {
            let Some(kind) = kinds.get(index).copied() else {
                pings.push(bench.runner.measure_ping()?);
                return Ok(QueueMeasurement::default());
            };
            if skipped.contains(&kind) {
                return Ok(QueueMeasurement::default());
            }
            Ok(measure(bench, kind).unwrap_or_else(|error| {
                skipped.push(kind);
                bench.report_skipped(kind, &error.to_string());
                QueueMeasurement::default()
            }))
        })?;
        let entries = kinds.into_iter().zip(measurements);
        let entries = entries.filter(|(kind, _)| !skipped.contains(kind)).collect();
        let comparison = Self { entries, pings };
        comparison.print_table(columns);
        bench.runner.is_undisturbed &= cpu_share::check_undisturbed();
        comparison.report_failures(bench);
        Ok(comparison)
    }

    pub(super) fn measurements(&self, kind: QueueKind) -> &[QueueMeasurement] {
        let entry = self.entries.iter().find(|(other, _)| *other == kind);
        entry.map_or(&[], |(_, measurements)| measurements.as_slice())
    }

    pub(super) fn round_values(
        &self,
        kind: QueueKind,
        value: impl Fn(&QueueMeasurement) -> f64,
    ) -> Vec<f64> {
        self.measurements(kind).iter().map(value).collect()
    }

    /// Returns the peer with the largest median over all rounds, among the measured ones for which
    /// `can_compare` is true.
    pub(super) fn best_peer(
        &self,
        value: impl Fn(&QueueMeasurement) -> f64,
        can_compare: impl Fn(QueueKind) -> bool,
    ) -> Option<QueueKind> {
        let median = |kind: &QueueKind| median(&self.round_values(*kind, &value));
        let measured =
            QueueKind::PEERS.into_iter().filter(|kind| !self.measurements(*kind).is_empty());
        measured.filter(|kind| can_compare(*kind)).max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    pub(super) fn ratios(
        &self,
        own: QueueKind,
        other: QueueKind,
        value: impl Fn(&QueueMeasurement) -> f64,
    ) -> Vec<f64> {
        paired_ratios(&self.round_values(own, &value), &self.round_values(other, &value))
    }

    /// Returns the median p50 of a `PING`, in milliseconds.
    pub(super) fn median_ping_millis(&self) -> f64 {
        median(&self.pings.iter().map(|ping| ping.p50).collect::<Vec<_>>())
    }

    fn print_table(&self, columns: &[QueueColumn]) {
        let names = columns.iter().map(|(name, _)| (*name).to_owned());
        let mut rows: Vec<Vec<String>> =
            vec![[report::MEDIAN_HEADER.to_owned()].into_iter().chain(names).collect()];
        for (kind, _) in &self.entries {
            let cell =
                |(_, value): &QueueColumn| format_number(median(&self.round_values(*kind, value)));
            rows.push([kind.to_string()].into_iter().chain(columns.iter().map(cell)).collect());
        }
        report::print_table(&rows);
        let ping =
            |value: fn(&LockMeasurement) -> f64| self.pings.iter().map(value).collect::<Vec<_>>();
        report::print_ping(&ping(|ping| ping.p50), &ping(|ping| ping.p99));
    }

    /// Reports one message per queue with failed checks: their number and the first one.
    fn report_failures(&self, bench: &mut QueueBench) {
        for (kind, measurements) in &self.entries {
            let mut failures = measurements.iter().filter_map(|window| window.failure.as_ref());
            if let Some(first_failure) = failures.next() {
                let count = failures.count() + 1;
                let message = format!(
                    "{kind}: {count} windows FAILED their check, the first: {first_failure}"
                );
                report::report_failure(&mut bench.runner, kind.is_lockgate(), message);
            }
        }
    }
}
