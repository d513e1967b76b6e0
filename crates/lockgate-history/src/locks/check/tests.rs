//! Hand-made histories: each check finds what is wrong with one, and nothing in a good one.

use super::check_history;
use crate::{
    NANOS_PER_MILLI, ProcessIncarnation,
    locks::{DisturbedInterval, FencedRegister, LockEvent, LockHistory, RecordedLockMode},
};

/// A history in the making. Times are in ms.
struct LockHistoryBuilder {
    history: LockHistory,
    next_op_id: u64,
}

impl Default for LockHistoryBuilder {
    fn default() -> Self {
        let history = LockHistory { max_wait: 6000 * NANOS_PER_MILLI, ..LockHistory::default() };
        Self { history, next_op_id: 0 }
    }
}

impl LockHistoryBuilder {
    /// One who asked at `asked`, had the lock from `from` to `to`, and was sure of it for longer.
    fn add_hold(
        &mut self,
        process: usize,
        mode: RecordedLockMode,
        fence: u64,
        [asked, from, to]: [u64; 3],
    ) {
        let op = self.next_op_id;
        let events = vec![
            (asked * NANOS_PER_MILLI, LockEvent::Requested(op, "x".into(), mode)),
            (
                from * NANOS_PER_MILLI,
                LockEvent::Granted(op, fence, (from + 1000) * NANOS_PER_MILLI),
            ),
            (to * NANOS_PER_MILLI, LockEvent::Releasing(op)),
        ];
        self.add_events(process, events);
    }

    fn add_events(&mut self, process: usize, events: Vec<(u64, LockEvent)>) {
        self.next_op_id += 1;
        self.history.add_events(ProcessIncarnation { process, generation: 0 }, events);
    }

    fn violation_text(&self) -> String {
        let (_, wrong) = check_history(&self.history);
        assert!(wrong.len() <= 1, "{wrong:?}");
        wrong.first().map(ToString::to_string).unwrap_or_default()
    }

    fn assert_violates(&self, name: &str) {
        let complaint = self.violation_text();
        assert!(complaint.starts_with(name), "{name} expected: {complaint:?}");
    }

    fn assert_valid(&self) {
        assert_eq!(self.violation_text(), "");
    }
}

const EXCLUSIVE: RecordedLockMode = RecordedLockMode::Exclusive;

#[test]
fn sequential_holds_have_no_violation() {
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, EXCLUSIVE, 1, [0, 1, 5]);
    story.add_hold(1, EXCLUSIVE, 2, [0, 5, 9]);
    story.add_hold(0, EXCLUSIVE, 3, [6, 10, 11]);
    story.assert_valid();
}

#[test]
fn m1_overlapping_holds_are_reported() {
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, EXCLUSIVE, 1, [0, 1, 5]);
    story.add_hold(1, EXCLUSIVE, 2, [0, 4, 9]);
    story.assert_violates("M1");
    let complaint = story.violation_text();
    assert_eq!(complaint.lines().count(), 3, "the two, and no more: {complaint}");
}

/// Each end of a hold ends it, and nothing else does.
#[test]
fn m1_hold_ends_by_expiry_loss_release_or_kill() {
    let asked = || (0, LockEvent::Requested(0, "x".into(), EXCLUSIVE));
    let next = |story: &mut LockHistoryBuilder| story.add_hold(1, EXCLUSIVE, 2, [10, 60, 70]);
    for (valid, end, good) in [
        (1000, None, false),
        (50, None, true),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::LossReported(0))), true),
        (1000, Some((65 * NANOS_PER_MILLI, LockEvent::LossReported(0))), false),
        (50, Some((40 * NANOS_PER_MILLI, LockEvent::Renewed(0, 90 * NANOS_PER_MILLI))), false),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::Releasing(0))), true),
    ] {
        let mut story = LockHistoryBuilder::default();
        let got = (NANOS_PER_MILLI, LockEvent::Granted(0, 1, valid * NANOS_PER_MILLI));
        story.add_events(0, [asked(), got].into_iter().chain(end).collect());
        next(&mut story);
        if good { story.assert_valid() } else { story.assert_violates("M1") }
    }
    let mut story = LockHistoryBuilder::default();
    story.add_events(
        0,
        vec![asked(), (NANOS_PER_MILLI, LockEvent::Granted(0, 1, 1000 * NANOS_PER_MILLI))],
    );
    next(&mut story);
    story
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 55 * NANOS_PER_MILLI);
    story.assert_valid();
}

#[test]
fn r1_writer_overlapping_readers_is_reported() {
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, RecordedLockMode::Shared, 1, [0, 1, 8]);
    story.add_hold(1, RecordedLockMode::Shared, 2, [0, 2, 9]);
    story.assert_valid();
    story.add_hold(2, EXCLUSIVE, 3, [0, 8, 12]);
    story.assert_violates("R1");
}

#[test]
fn p1_holder_beyond_the_permits_is_reported() {
    let mut story = LockHistoryBuilder::default();
    for fence in 1..=3 {
        story.add_hold(0, RecordedLockMode::Permits(3), fence, [0, fence, 20]);
    }
    story.assert_valid();
    story.add_hold(1, RecordedLockMode::Permits(3), 4, [0, 19, 30]);
    story.assert_violates("P1");
}

#[test]
fn m2_decreasing_or_repeated_fence_is_reported() {
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, EXCLUSIVE, 5, [0, 1, 3]);
    story.add_hold(1, EXCLUSIVE, 4, [2, 4, 5]);
    story.assert_violates("M2");
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, EXCLUSIVE, 5, [0, 1, 3]);
    story.add_hold(1, EXCLUSIVE, 5, [0, 4, 5]);
    story.assert_violates("M2");
    // Asked at the same time: either may be first in the store.
    let mut story = LockHistoryBuilder::default();
    story.add_hold(0, EXCLUSIVE, 5, [0, 3, 4]);
    story.add_hold(1, EXCLUSIVE, 4, [0, 1, 2]);
    story.assert_valid();
}

/// Permits are numbered in any order, but not before what came before all of them, nor twice.
#[test]
fn m2_fences_of_permits_may_be_unordered_among_permits() {
    let permit = RecordedLockMode::Permits(3);
    let story = |before: u64, after: u64, second: u64| {
        let mut story = LockHistoryBuilder::default();
        story.add_hold(0, EXCLUSIVE, before, [0, 1, 2]);
        story.add_hold(0, permit, 12, [3, 4, 9]);
        story.add_hold(1, permit, second, [5, 6, 9]);
        story.add_hold(1, EXCLUSIVE, after, [10, 11, 12]);
        story
    };
    story(1, 20, 11).assert_valid();
    story(11, 20, 10).assert_violates("M2");
    story(1, 12, 11).assert_violates("M2");
    story(1, 11, 10).assert_violates("M2");
    story(1, 20, 12).assert_violates("M2");
}

#[test]
fn m3_register_regression_or_lost_increment_is_reported() {
    let mut story = LockHistoryBuilder::default();
    let mut register = |writes: &[(u64, u64)]| {
        story.history.registers =
            vec![FencedRegister { lock: "x".into(), writes: writes.to_vec() }];
        story.violation_text()
    };
    assert_eq!(register(&[(1, 1), (2, 2), (2, 3), (9, 4)]), "");
    assert!(register(&[(1, 1), (3, 2), (2, 3)]).starts_with("M3: the register of x took"));
    assert!(register(&[(1, 1), (2, 2), (3, 2)]).starts_with("M3: the register of x lost"));
    assert!(register(&[(1, 1), (2, 3)]).starts_with("M3: the register of x lost"));
}

#[test]
fn m3_missing_confirmed_write_is_reported() {
    let mut story = LockHistoryBuilder::default();
    let got = (NANOS_PER_MILLI, LockEvent::Granted(0, 7, 1000 * NANOS_PER_MILLI));
    let wrote = (2 * NANOS_PER_MILLI, LockEvent::Written(0, 1));
    story.add_events(
        0,
        vec![
            (0, LockEvent::Requested(0, "x".into(), EXCLUSIVE)),
            got,
            wrote,
            (3 * NANOS_PER_MILLI, LockEvent::Releasing(0)),
        ],
    );
    let register = |writes| vec![FencedRegister { lock: "x".into(), writes }];
    story.history.registers = register(vec![(7, 1)]);
    assert_eq!(story.violation_text(), "");
    story.history.registers = register(vec![]);
    assert!(story.violation_text().starts_with("M3: a write"));
}

/// One waits from 0 to 400, and so many of another process come after it stood in line.
fn overtaken_waiter_history(others: u64) -> LockHistoryBuilder {
    let mut story = LockHistoryBuilder::default();
    for n in 0..others {
        let at = 200 + n;
        story.add_hold(1, EXCLUSIVE, 10 + n, [at - 1, at, at + 1]);
    }
    story.add_hold(0, EXCLUSIVE, 500, [0, 400, 401]);
    story
}

#[test]
fn f1_overtakes_beyond_one_handover_series_are_reported() {
    overtaken_waiter_history(17).assert_valid();
    overtaken_waiter_history(18).assert_violates("F1");
    let mut story = overtaken_waiter_history(18);
    let (looked, _) = check_history(&story.history);
    assert_eq!((looked.checked_waits, looked.max_overtakes), (1, 18));
    story
        .history
        .disturbances
        .push(DisturbedInterval { from: 10 * NANOS_PER_MILLI, to: 20 * NANOS_PER_MILLI });
    story.assert_valid();
}

/// What came first, or at the same time, may go first.
#[test]
fn f1_grants_to_earlier_requests_are_no_overtakes() {
    let mut story = LockHistoryBuilder::default();
    for n in 0..40 {
        let at = 200 + n;
        story.add_hold(1, EXCLUSIVE, 10 + n, [n, at, at + 1]);
    }
    story.add_hold(0, EXCLUSIVE, 500, [0, 400, 401]);
    story.assert_valid();
}

#[test]
fn l1_unanswered_or_late_waiter_is_reported() {
    let mut story = LockHistoryBuilder::default();
    let asked = vec![(0, LockEvent::Requested(0, "x".into(), EXCLUSIVE))];
    story.add_events(0, asked.clone());
    story.assert_violates("L1");
    story
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 5 * NANOS_PER_MILLI);
    story.assert_valid();
    let mut story = LockHistoryBuilder::default();
    story.history.last_fault_end = 5000 * NANOS_PER_MILLI;
    story.add_hold(0, EXCLUSIVE, 1, [0, 10_900, 10_901]);
    story.assert_valid();
    story.add_hold(1, EXCLUSIVE, 2, [4000, 11_100, 11_101]);
    story.assert_violates("L1");
}
