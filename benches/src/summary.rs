//! What one window comes to.

use std::collections::BTreeMap;

use crate::{
    plan::{Keys, Trial},
    record::{Event, Head},
    sent::Calls,
    stats::{float, holder_changes, millis, overlaps, per_mille, unevenness},
};

/// Times in milliseconds, rates per second.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary {
    pub(crate) acquired: f64,
    /// With one hot key: acquisitions by another task than the one before, across all processes.
    pub(crate) changed: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Of the waits that ended, and of those that had not when the window did.
    pub(crate) longest: f64,
    pub(crate) still_waiting: f64,
    /// Commands per acquisition.
    pub(crate) sent: f64,
    pub(crate) run: f64,
    pub(crate) tasks: Shares,
    pub(crate) processes: Shares,
    /// Mean of what was measured inside the lock.
    pub(crate) work: f64,
    /// Part of the window in which somebody worked under the lock.
    pub(crate) busy: f64,
    pub(crate) overlaps: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
}

/// How acquisitions are spread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shares {
    pub(crate) fewest: u64,
    pub(crate) most: u64,
    pub(crate) unevenness: f64,
}

impl Shares {
    fn of(counts: &[u64]) -> Self {
        let fewest = counts.iter().copied().min().unwrap_or(0);
        let most = counts.iter().copied().max().unwrap_or(0);
        Self { fewest, most, unevenness: unevenness(counts) }
    }
}

/// What one process has sent.
pub(crate) struct Seen {
    pub(crate) head: Head,
    pub(crate) events: Vec<Event>,
}

impl Summary {
    /// `seconds` is the length of the window.
    pub(crate) fn of(trial: &Trial, seen: Vec<Seen>, calls: Calls, seconds: f64) -> Self {
        let mut summary = Self { processes: per_process(&seen), ..Self::default() };
        let mut events = Vec::new();
        for (process, seen) in (0..).zip(seen) {
            summary.still_waiting = summary.still_waiting.max(millis(seen.head.still_waiting));
            summary.errors += seen.head.errors;
            summary.first_error = summary.first_error.or(seen.head.first_error);
            let everywhere =
                |event: Event| Event { task: process * trial.tasks + event.task, ..event };
            events.extend(seen.events.into_iter().map(everywhere));
        }
        // Mutual exclusion makes this the order in which the lock was had: the clock is everybody's.
        events.sort_unstable_by_key(|event| event.at);
        let count = float(u64::try_from(events.len()).unwrap_or(u64::MAX));
        summary.acquired = count / seconds;
        summary.tasks = per_task(trial, &events);
        if let Keys::Hot = trial.keys {
            summary.changed = float(holder_changes(&events)) / seconds;
            summary.overlaps = overlaps(&events);
        }
        summary.waits(&events);
        let worked = events.iter().map(|event| float(event.held)).sum::<f64>() / 1e6;
        summary.work = worked / count;
        summary.busy = worked / (seconds * 1e3);
        summary.sent = calls.sent / count;
        summary.run = calls.run / count;
        summary
    }

    fn waits(&mut self, events: &[Event]) {
        let mut waits: Vec<u64> = events.iter().map(|event| event.wait).collect();
        waits.sort_unstable();
        self.p50 = millis(per_mille(&waits, 500));
        self.p99 = millis(per_mille(&waits, 990));
        self.longest = millis(per_mille(&waits, 1000)).max(self.still_waiting);
    }
}

fn per_process(seen: &[Seen]) -> Shares {
    let counts = seen.iter().map(|seen| u64::try_from(seen.events.len()).unwrap_or(u64::MAX));
    Shares::of(&counts.collect::<Vec<_>>())
}

/// Those who got nothing are counted too.
fn per_task(trial: &Trial, events: &[Event]) -> Shares {
    let mut counts: BTreeMap<u32, u64> =
        (0..trial.processes * trial.tasks).map(|task| (task, 0)).collect();
    for event in events {
        *counts.entry(event.task).or_default() += 1;
    }
    Shares::of(&counts.into_values().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_the_processes_together() {
        let trial = Trial { processes: 2, tasks: 2, keys: Keys::Hot, work: 1 };
        let event =
            |at: u64, task| Event { at: at * 1_000_000, wait: 2_000_000, held: 500_000, task };
        let seen = |events: Vec<Event>, still_waiting| Seen {
            head: Head { events: events.len(), errors: 1, first_error: None, still_waiting },
            events,
        };
        let first = seen(vec![event(1, 0), event(3, 0), event(4, 0)], 7_000_000);
        let second = seen(vec![event(2, 0)], 0);
        let calls = Calls { sent: 8.0, run: 16.0 };
        let summary = Summary::of(&trial, vec![first, second], calls, 0.01);
        let told = [summary.acquired, summary.changed, summary.sent, summary.run, summary.work];
        assert_eq!(told, [400.0, 200.0, 2.0, 4.0, 0.5]);
        assert_eq!([summary.p99, summary.longest, summary.busy], [2.0, 7.0, 0.2]);
        assert_eq!((summary.tasks.fewest, summary.tasks.most), (0, 3));
        assert_eq!((summary.processes.fewest, summary.processes.most), (1, 3));
        assert_eq!((summary.overlaps, summary.errors), (0, 2));
        assert!((summary.processes.unevenness - 3.0).abs() < f64::EPSILON);
    }
}
