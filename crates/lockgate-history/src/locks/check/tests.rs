//! Hand-made histories. Each check must find the violation in a wrong one, and nothing in a correct
//! one.

use super::check_history;
use crate::{
    NANOS_PER_MILLI, ProcessIncarnation,
    locks::{DisturbedInterval, FencedRegister, LockEvent, LockHistory, RecordedLockMode},
};

/// Builder of a history. Times are in ms.
struct LockHistoryBuilder {
    history: LockHistory,
    next_acquisition: u64,
}

impl Default for LockHistoryBuilder {
    fn default() -> Self {
        let history = LockHistory { max_wait: 6000 * NANOS_PER_MILLI, ..LockHistory::default() };
        Self { history, next_acquisition: 0 }
    }
}

impl LockHistoryBuilder {
    /// Adds a hold that was requested at `requested` and lasted from `from` to `to`, within its
    /// validity time.
    fn add_hold(
        &mut self,
        process: usize,
        mode: RecordedLockMode,
        fence: u64,
        [requested, from, to]: [u64; 3],
    ) {
        let acquisition = self.next_acquisition;
        let events = vec![
            (requested * NANOS_PER_MILLI, requested_event(acquisition, mode)),
            (
                from * NANOS_PER_MILLI,
                LockEvent::Granted {
                    acquisition,
                    fence,
                    valid_until: (from + 1000) * NANOS_PER_MILLI,
                },
            ),
            (to * NANOS_PER_MILLI, LockEvent::Releasing { acquisition }),
        ];
        self.add_events(process, events);
    }

    fn add_events(&mut self, process: usize, events: Vec<(u64, LockEvent)>) {
        self.next_acquisition += 1;
        self.history.add_events(ProcessIncarnation { process, generation: 0 }, events);
    }

    fn violation_text(&self) -> String {
        let (_, violations) = check_history(&self.history);
        assert!(violations.len() <= 1, "{violations:?}");
        violations.first().map(ToString::to_string).unwrap_or_default()
    }

    fn assert_violates(&self, name: &str) {
        let violation = self.violation_text();
        assert!(violation.starts_with(name), "{name} expected: {violation:?}");
    }

    fn assert_valid(&self) {
        assert_eq!(self.violation_text(), "");
    }
}

const EXCLUSIVE: RecordedLockMode = RecordedLockMode::Exclusive;

fn requested_event(acquisition: u64, mode: RecordedLockMode) -> LockEvent {
    LockEvent::Requested { acquisition, lock: "x".into(), mode }
}

#[test]
fn sequential_holds_have_no_violation() {
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, EXCLUSIVE, 1, [0, 1, 5]);
    history.add_hold(1, EXCLUSIVE, 2, [0, 5, 9]);
    history.add_hold(0, EXCLUSIVE, 3, [6, 10, 11]);
    history.assert_valid();
}

#[test]
fn m1_overlapping_holds_are_reported() {
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, EXCLUSIVE, 1, [0, 1, 5]);
    history.add_hold(1, EXCLUSIVE, 2, [0, 4, 9]);
    history.assert_violates("M1");
    let violation = history.violation_text();
    assert_eq!(violation.lines().count(), 3, "the two, and no more: {violation}");
}

/// Each of these events ends a hold, and no other does.
#[test]
fn m1_hold_ends_by_expiry_loss_release_or_kill() {
    let requested = || (0, requested_event(0, EXCLUSIVE));
    let add_next_hold =
        |history: &mut LockHistoryBuilder| history.add_hold(1, EXCLUSIVE, 2, [10, 60, 70]);
    for (valid, end, is_valid) in [
        (1000, None, false),
        (50, None, true),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::LossReported { acquisition: 0 })), true),
        (1000, Some((65 * NANOS_PER_MILLI, LockEvent::LossReported { acquisition: 0 })), false),
        (
            50,
            Some((
                40 * NANOS_PER_MILLI,
                LockEvent::Renewed { acquisition: 0, valid_until: 90 * NANOS_PER_MILLI },
            )),
            false,
        ),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::Releasing { acquisition: 0 })), true),
    ] {
        let mut history = LockHistoryBuilder::default();
        let granted = (
            NANOS_PER_MILLI,
            LockEvent::Granted { acquisition: 0, fence: 1, valid_until: valid * NANOS_PER_MILLI },
        );
        history.add_events(0, [requested(), granted].into_iter().chain(end).collect());
        add_next_hold(&mut history);
        if is_valid { history.assert_valid() } else { history.assert_violates("M1") }
    }
    let mut history = LockHistoryBuilder::default();
    history.add_events(
        0,
        vec![
            requested(),
            (
                NANOS_PER_MILLI,
                LockEvent::Granted {
                    acquisition: 0,
                    fence: 1,
                    valid_until: 1000 * NANOS_PER_MILLI,
                },
            ),
        ],
    );
    add_next_hold(&mut history);
    history
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 55 * NANOS_PER_MILLI);
    history.assert_valid();
}

#[test]
fn r1_writer_overlapping_readers_is_reported() {
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, RecordedLockMode::Shared, 1, [0, 1, 8]);
    history.add_hold(1, RecordedLockMode::Shared, 2, [0, 2, 9]);
    history.assert_valid();
    history.add_hold(2, EXCLUSIVE, 3, [0, 8, 12]);
    history.assert_violates("R1");
}

#[test]
fn p1_holder_beyond_the_permits_is_reported() {
    let mut history = LockHistoryBuilder::default();
    for fence in 1..=3 {
        history.add_hold(0, RecordedLockMode::Permits(3), fence, [0, fence, 20]);
    }
    history.assert_valid();
    history.add_hold(1, RecordedLockMode::Permits(3), 4, [0, 19, 30]);
    history.assert_violates("P1");
}

#[test]
fn m2_decreasing_or_repeated_fence_is_reported() {
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, EXCLUSIVE, 5, [0, 1, 3]);
    history.add_hold(1, EXCLUSIVE, 4, [2, 4, 5]);
    history.assert_violates("M2");
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, EXCLUSIVE, 5, [0, 1, 3]);
    history.add_hold(1, EXCLUSIVE, 5, [0, 4, 5]);
    history.assert_violates("M2");
    // Requested at the same time, so either may be first in the store.
    let mut history = LockHistoryBuilder::default();
    history.add_hold(0, EXCLUSIVE, 5, [0, 3, 4]);
    history.add_hold(1, EXCLUSIVE, 4, [0, 1, 2]);
    history.assert_valid();
}

/// Fences of permits may have any order among each other, but must be unique and larger than those
/// of earlier holds.
#[test]
fn m2_fences_of_permits_may_be_unordered_among_permits() {
    let permit = RecordedLockMode::Permits(3);
    let history = |before: u64, after: u64, second: u64| {
        let mut history = LockHistoryBuilder::default();
        history.add_hold(0, EXCLUSIVE, before, [0, 1, 2]);
        history.add_hold(0, permit, 12, [3, 4, 9]);
        history.add_hold(1, permit, second, [5, 6, 9]);
        history.add_hold(1, EXCLUSIVE, after, [10, 11, 12]);
        history
    };
    history(1, 20, 11).assert_valid();
    history(11, 20, 10).assert_violates("M2");
    history(1, 12, 11).assert_violates("M2");
    history(1, 11, 10).assert_violates("M2");
    history(1, 20, 12).assert_violates("M2");
}

#[test]
fn m3_register_regression_or_lost_increment_is_reported() {
    let mut history = LockHistoryBuilder::default();
    let mut violation_for = |writes: &[(u64, u64)]| {
        history.history.registers =
            vec![FencedRegister { lock: "x".into(), writes: writes.to_vec() }];
        history.violation_text()
    };
    assert_eq!(violation_for(&[(1, 1), (2, 2), (2, 3), (9, 4)]), "");
    assert!(violation_for(&[(1, 1), (3, 2), (2, 3)]).starts_with("M3: write with an older fence"));
    assert!(violation_for(&[(1, 1), (2, 2), (3, 2)]).starts_with("M3: increment lost"));
    assert!(violation_for(&[(1, 1), (2, 3)]).starts_with("M3: increment lost"));
}

#[test]
fn m3_missing_confirmed_write_is_reported() {
    let mut history = LockHistoryBuilder::default();
    let granted = (
        NANOS_PER_MILLI,
        LockEvent::Granted { acquisition: 0, fence: 7, valid_until: 1000 * NANOS_PER_MILLI },
    );
    let written = (2 * NANOS_PER_MILLI, LockEvent::Written { acquisition: 0, value: 1 });
    history.add_events(
        0,
        vec![
            (0, requested_event(0, EXCLUSIVE)),
            granted,
            written,
            (3 * NANOS_PER_MILLI, LockEvent::Releasing { acquisition: 0 }),
        ],
    );
    let registers = |writes| vec![FencedRegister { lock: "x".into(), writes }];
    history.history.registers = registers(vec![(7, 1)]);
    assert_eq!(history.violation_text(), "");
    history.history.registers = registers(vec![]);
    assert!(history.violation_text().starts_with("M3: confirmed write missing"));
}

/// History in which one waiter waits from 0 to 400, and `overtakes` later requests of another
/// process are granted before it.
fn overtaken_waiter_history(overtakes: u64) -> LockHistoryBuilder {
    let mut history = LockHistoryBuilder::default();
    for n in 0..overtakes {
        let granted_at = 200 + n;
        history.add_hold(1, EXCLUSIVE, 10 + n, [granted_at - 1, granted_at, granted_at + 1]);
    }
    history.add_hold(0, EXCLUSIVE, 500, [0, 400, 401]);
    history
}

#[test]
fn f1_overtakes_beyond_one_handover_series_are_reported() {
    overtaken_waiter_history(17).assert_valid();
    overtaken_waiter_history(18).assert_violates("F1");
    let mut history = overtaken_waiter_history(18);
    let (stats, _) = check_history(&history.history);
    assert_eq!((stats.checked_waits, stats.max_overtakes), (1, 18));
    history
        .history
        .disturbances
        .push(DisturbedInterval { from: 10 * NANOS_PER_MILLI, to: 20 * NANOS_PER_MILLI });
    history.assert_valid();
}

/// Grants to earlier or concurrent requests are no overtakes.
#[test]
fn f1_grants_to_earlier_requests_are_no_overtakes() {
    let mut history = LockHistoryBuilder::default();
    for n in 0..40 {
        let granted_at = 200 + n;
        history.add_hold(1, EXCLUSIVE, 10 + n, [n, granted_at, granted_at + 1]);
    }
    history.add_hold(0, EXCLUSIVE, 500, [0, 400, 401]);
    history.assert_valid();
}

#[test]
fn l1_unanswered_or_late_waiter_is_reported() {
    let mut history = LockHistoryBuilder::default();
    let requested = vec![(0, requested_event(0, EXCLUSIVE))];
    history.add_events(0, requested.clone());
    history.assert_violates("L1");
    history
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 5 * NANOS_PER_MILLI);
    history.assert_valid();
    let mut history = LockHistoryBuilder::default();
    history.history.last_fault_end = 5000 * NANOS_PER_MILLI;
    history.add_hold(0, EXCLUSIVE, 1, [0, 10_900, 10_901]);
    history.assert_valid();
    history.add_hold(1, EXCLUSIVE, 2, [4000, 11_100, 11_101]);
    history.assert_violates("L1");
}
