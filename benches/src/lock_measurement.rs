//! Measurement of a lock contender in one window.

use std::collections::BTreeMap;

use crate::{
    acquire_event::{AcquireEvent, EventsHeader},
    command_origins::CommandCounts,
    stats::{
        count_holder_changes, count_overlaps, max_min_ratio, nanos_to_millis, per_mille_value,
        to_f64,
    },
    worker_plan::{LockKeys, LockScenario},
};

/// Values of one window. Times are milliseconds, rates are per second.
#[derive(Debug, Clone, Default)]
pub(crate) struct LockMeasurement {
    pub(crate) acquired_per_second: f64,
    /// Acquisitions by another task than the one before, over all processes; only of a hot key.
    pub(crate) holder_changes_per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Includes waits that had not ended when the window did.
    pub(crate) longest: f64,
    pub(crate) longest_open_wait: f64,
    /// Commands per acquisition that clients sent.
    pub(crate) sent_per_acquire: f64,
    /// The same, plus the calls of scripts.
    pub(crate) executed_per_acquire: f64,
    pub(crate) task_shares: AcquireShares,
    pub(crate) process_shares: AcquireShares,
    /// Mean time under the lock.
    pub(crate) mean_work: f64,
    /// Share of the window in which a task worked under the lock.
    pub(crate) busy_share: f64,
    pub(crate) overlaps: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

/// Distribution of acquisitions over tasks or processes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AcquireShares {
    pub(crate) fewest: u64,
    pub(crate) most: u64,
    pub(crate) max_min_ratio: f64,
}

impl AcquireShares {
    fn from_counts(counts: &[u64]) -> Self {
        let fewest = counts.iter().copied().min().unwrap_or(0);
        let most = counts.iter().copied().max().unwrap_or(0);
        Self { fewest, most, max_min_ratio: max_min_ratio(counts) }
    }
}

/// Results of one worker process.
pub(crate) struct ProcessEvents {
    pub(crate) header: EventsHeader,
    pub(crate) events: Vec<AcquireEvent>,
}

impl LockMeasurement {
    /// Computes the measurement of a window of `seconds`.
    pub(crate) fn from_events(
        scenario: &LockScenario,
        processes: Vec<ProcessEvents>,
        commands: CommandCounts,
        seconds: f64,
    ) -> Self {
        let mut measurement =
            Self { process_shares: shares_per_process(&processes), ..Self::default() };
        let mut events = Vec::new();
        for (index, process) in (0..).zip(processes) {
            measurement.longest_open_wait = measurement
                .longest_open_wait
                .max(nanos_to_millis(process.header.longest_open_wait));
            measurement.errors += process.header.errors;
            measurement.first_error = measurement.first_error.or(process.header.first_error);
            let with_global_task = |event: AcquireEvent| AcquireEvent {
                task: index * scenario.tasks_per_process + event.task,
                ..event
            };
            events.extend(process.events.into_iter().map(with_global_task));
        }
        // Mutual exclusion makes this the order of the acquisitions, because all processes share
        // the clock.
        events.sort_unstable_by_key(|event| event.acquired_at);
        let count = to_f64(u64::try_from(events.len()).unwrap_or(u64::MAX));
        measurement.acquired_per_second = count / seconds;
        measurement.task_shares = shares_per_task(scenario, &events);
        if let LockKeys::Hot = scenario.keys {
            measurement.holder_changes_per_second = to_f64(count_holder_changes(&events)) / seconds;
            measurement.overlaps = count_overlaps(&events);
        }
        measurement.set_wait_times(&events);
        let work_millis = events.iter().map(|event| to_f64(event.held_for)).sum::<f64>() / 1e6;
        measurement.mean_work = work_millis / count;
        measurement.busy_share = work_millis / (seconds * 1e3);
        measurement.sent_per_acquire = commands.sent / count;
        measurement.executed_per_acquire = commands.executed / count;
        measurement
    }

    fn set_wait_times(&mut self, events: &[AcquireEvent]) {
        let mut waits: Vec<u64> = events.iter().map(|event| event.wait).collect();
        waits.sort_unstable();
        self.p50 = nanos_to_millis(per_mille_value(&waits, 500));
        self.p99 = nanos_to_millis(per_mille_value(&waits, 990));
        self.longest = nanos_to_millis(per_mille_value(&waits, 1000)).max(self.longest_open_wait);
    }
}

fn shares_per_process(processes: &[ProcessEvents]) -> AcquireShares {
    let counts =
        processes.iter().map(|process| u64::try_from(process.events.len()).unwrap_or(u64::MAX));
    AcquireShares::from_counts(&counts.collect::<Vec<_>>())
}

/// Counts acquisitions per task, including tasks without any.
fn shares_per_task(scenario: &LockScenario, events: &[AcquireEvent]) -> AcquireShares {
    let mut counts: BTreeMap<u32, u64> =
        (0..scenario.processes * scenario.tasks_per_process).map(|task| (task, 0)).collect();
    for event in events {
        *counts.entry(event.task).or_default() += 1;
    }
    AcquireShares::from_counts(&counts.into_values().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_all_processes_are_combined() {
        let scenario = LockScenario {
            processes: 2,
            tasks_per_process: 2,
            keys: LockKeys::Hot,
            work_iterations: 1,
        };
        let event = |acquired_at_millis: u64, task| AcquireEvent {
            acquired_at: acquired_at_millis * 1_000_000,
            wait: 2_000_000,
            held_for: 500_000,
            task,
        };
        let process_events = |events: Vec<AcquireEvent>, longest_open_wait| ProcessEvents {
            header: EventsHeader {
                event_count: events.len(),
                errors: 1,
                first_error: None,
                longest_open_wait,
            },
            events,
        };
        let first = process_events(vec![event(1, 0), event(3, 0), event(4, 0)], 7_000_000);
        let second = process_events(vec![event(2, 0)], 0);
        let commands = CommandCounts { sent: 8.0, executed: 16.0 };
        let measurement =
            LockMeasurement::from_events(&scenario, vec![first, second], commands, 0.01);
        let rates = [
            measurement.acquired_per_second,
            measurement.holder_changes_per_second,
            measurement.sent_per_acquire,
            measurement.executed_per_acquire,
            measurement.mean_work,
        ];
        assert_eq!(rates, [400.0, 200.0, 2.0, 4.0, 0.5]);
        assert_eq!([measurement.p99, measurement.longest, measurement.busy_share], [2.0, 7.0, 0.2]);
        assert_eq!((measurement.task_shares.fewest, measurement.task_shares.most), (0, 3));
        assert_eq!((measurement.process_shares.fewest, measurement.process_shares.most), (1, 3));
        assert_eq!((measurement.overlaps, measurement.errors), (0, 2));
        assert!((measurement.process_shares.max_min_ratio - 3.0).abs() < f64::EPSILON);
    }
}
