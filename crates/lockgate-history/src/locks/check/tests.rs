//! Hand-made histories: each check finds what is wrong with one, and nothing in a good one.

use super::check_history;
use crate::{
    NANOS_PER_MILLI, ProcessIncarnation,
    locks::{DisturbedInterval, FencedRegister, LockEvent, LockHistory, RecordedLockMode},
};

/// A history in the making. Times are in ms.
struct Story {
    history: LockHistory,
    ops: u64,
}

impl Default for Story {
    fn default() -> Self {
        let history = LockHistory { max_wait: 6000 * NANOS_PER_MILLI, ..LockHistory::default() };
        Self { history, ops: 0 }
    }
}

impl Story {
    /// One who asked at `asked`, had the lock from `from` to `to`, and was sure of it for longer.
    fn held(
        &mut self,
        process: usize,
        mode: RecordedLockMode,
        fence: u64,
        [asked, from, to]: [u64; 3],
    ) {
        let op = self.ops;
        let events = vec![
            (asked * NANOS_PER_MILLI, LockEvent::Requested(op, "x".into(), mode)),
            (
                from * NANOS_PER_MILLI,
                LockEvent::Granted(op, fence, (from + 1000) * NANOS_PER_MILLI),
            ),
            (to * NANOS_PER_MILLI, LockEvent::Releasing(op)),
        ];
        self.tell(process, events);
    }

    fn tell(&mut self, process: usize, events: Vec<(u64, LockEvent)>) {
        self.ops += 1;
        self.history.add_events(ProcessIncarnation { process, generation: 0 }, events);
    }

    fn complaint(&self) -> String {
        let (_, wrong) = check_history(&self.history);
        assert!(wrong.len() <= 1, "{wrong:?}");
        wrong.first().map(ToString::to_string).unwrap_or_default()
    }

    fn is_wrong(&self, name: &str) {
        let complaint = self.complaint();
        assert!(complaint.starts_with(name), "{name} expected: {complaint:?}");
    }

    fn is_good(&self) {
        assert_eq!(self.complaint(), "");
    }
}

const X: RecordedLockMode = RecordedLockMode::Exclusive;

#[test]
fn one_after_the_other_is_good() {
    let mut story = Story::default();
    story.held(0, X, 1, [0, 1, 5]);
    story.held(1, X, 2, [0, 5, 9]);
    story.held(0, X, 3, [6, 10, 11]);
    story.is_good();
}

#[test]
fn m1_two_at_once() {
    let mut story = Story::default();
    story.held(0, X, 1, [0, 1, 5]);
    story.held(1, X, 2, [0, 4, 9]);
    story.is_wrong("M1");
    let complaint = story.complaint();
    assert_eq!(complaint.lines().count(), 3, "the two, and no more: {complaint}");
}

/// Each end of a hold ends it, and nothing else does.
#[test]
fn m1_a_hold_ends_with_its_validity_a_loss_or_a_death() {
    let asked = || (0, LockEvent::Requested(0, "x".into(), X));
    let next = |story: &mut Story| story.held(1, X, 2, [10, 60, 70]);
    for (valid, end, good) in [
        (1000, None, false),
        (50, None, true),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::LossReported(0))), true),
        (1000, Some((65 * NANOS_PER_MILLI, LockEvent::LossReported(0))), false),
        (50, Some((40 * NANOS_PER_MILLI, LockEvent::Renewed(0, 90 * NANOS_PER_MILLI))), false),
        (1000, Some((55 * NANOS_PER_MILLI, LockEvent::Releasing(0))), true),
    ] {
        let mut story = Story::default();
        let got = (NANOS_PER_MILLI, LockEvent::Granted(0, 1, valid * NANOS_PER_MILLI));
        story.tell(0, [asked(), got].into_iter().chain(end).collect());
        next(&mut story);
        if good { story.is_good() } else { story.is_wrong("M1") }
    }
    let mut story = Story::default();
    story.tell(
        0,
        vec![asked(), (NANOS_PER_MILLI, LockEvent::Granted(0, 1, 1000 * NANOS_PER_MILLI))],
    );
    next(&mut story);
    story
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 55 * NANOS_PER_MILLI);
    story.is_good();
}

#[test]
fn r1_a_writer_among_readers() {
    let mut story = Story::default();
    story.held(0, RecordedLockMode::Shared, 1, [0, 1, 8]);
    story.held(1, RecordedLockMode::Shared, 2, [0, 2, 9]);
    story.is_good();
    story.held(2, X, 3, [0, 8, 12]);
    story.is_wrong("R1");
}

#[test]
fn p1_more_than_there_are_permits() {
    let mut story = Story::default();
    for fence in 1..=3 {
        story.held(0, RecordedLockMode::Permits(3), fence, [0, fence, 20]);
    }
    story.is_good();
    story.held(1, RecordedLockMode::Permits(3), 4, [0, 19, 30]);
    story.is_wrong("P1");
}

#[test]
fn m2_a_fence_that_goes_back_or_comes_twice() {
    let mut story = Story::default();
    story.held(0, X, 5, [0, 1, 3]);
    story.held(1, X, 4, [2, 4, 5]);
    story.is_wrong("M2");
    let mut story = Story::default();
    story.held(0, X, 5, [0, 1, 3]);
    story.held(1, X, 5, [0, 4, 5]);
    story.is_wrong("M2");
    // Asked at the same time: either may be first in the store.
    let mut story = Story::default();
    story.held(0, X, 5, [0, 3, 4]);
    story.held(1, X, 4, [0, 1, 2]);
    story.is_good();
}

/// Permits are numbered in any order, but not before what came before all of them, nor twice.
#[test]
fn m2_fences_of_permits() {
    let permit = RecordedLockMode::Permits(3);
    let story = |before: u64, after: u64, second: u64| {
        let mut story = Story::default();
        story.held(0, X, before, [0, 1, 2]);
        story.held(0, permit, 12, [3, 4, 9]);
        story.held(1, permit, second, [5, 6, 9]);
        story.held(1, X, after, [10, 11, 12]);
        story
    };
    story(1, 20, 11).is_good();
    story(11, 20, 10).is_wrong("M2");
    story(1, 12, 11).is_wrong("M2");
    story(1, 11, 10).is_wrong("M2");
    story(1, 20, 12).is_wrong("M2");
}

#[test]
fn m3_a_register_that_goes_back_or_loses_something() {
    let mut story = Story::default();
    let mut register = |writes: &[(u64, u64)]| {
        story.history.registers =
            vec![FencedRegister { lock: "x".into(), writes: writes.to_vec() }];
        story.complaint()
    };
    assert_eq!(register(&[(1, 1), (2, 2), (2, 3), (9, 4)]), "");
    assert!(register(&[(1, 1), (3, 2), (2, 3)]).starts_with("M3: the register of x took"));
    assert!(register(&[(1, 1), (2, 2), (3, 2)]).starts_with("M3: the register of x lost"));
    assert!(register(&[(1, 1), (2, 3)]).starts_with("M3: the register of x lost"));
}

#[test]
fn m3_a_write_that_was_told_and_is_not_there() {
    let mut story = Story::default();
    let got = (NANOS_PER_MILLI, LockEvent::Granted(0, 7, 1000 * NANOS_PER_MILLI));
    let wrote = (2 * NANOS_PER_MILLI, LockEvent::Written(0, 1));
    story.tell(
        0,
        vec![
            (0, LockEvent::Requested(0, "x".into(), X)),
            got,
            wrote,
            (3 * NANOS_PER_MILLI, LockEvent::Releasing(0)),
        ],
    );
    let register = |writes| vec![FencedRegister { lock: "x".into(), writes }];
    story.history.registers = register(vec![(7, 1)]);
    assert_eq!(story.complaint(), "");
    story.history.registers = register(vec![]);
    assert!(story.complaint().starts_with("M3: a write"));
}

/// One waits from 0 to 400, and so many of another process come after it stood in line.
fn passed_by(others: u64) -> Story {
    let mut story = Story::default();
    for n in 0..others {
        let at = 200 + n;
        story.held(1, X, 10 + n, [at - 1, at, at + 1]);
    }
    story.held(0, X, 500, [0, 400, 401]);
    story
}

#[test]
fn f1_a_cohort_and_one_more() {
    passed_by(17).is_good();
    passed_by(18).is_wrong("F1");
    let mut story = passed_by(18);
    let (looked, _) = check_history(&story.history);
    assert_eq!((looked.judged_waits, looked.max_overtakes), (1, 18));
    story
        .history
        .disturbances
        .push(DisturbedInterval { from: 10 * NANOS_PER_MILLI, to: 20 * NANOS_PER_MILLI });
    story.is_good();
}

/// What came first, or at the same time, may go first.
#[test]
fn f1_those_who_came_before_do_not_pass() {
    let mut story = Story::default();
    for n in 0..40 {
        let at = 200 + n;
        story.held(1, X, 10 + n, [n, at, at + 1]);
    }
    story.held(0, X, 500, [0, 400, 401]);
    story.is_good();
}

#[test]
fn l1_a_waiter_that_is_forgotten_or_served_late() {
    let mut story = Story::default();
    let asked = vec![(0, LockEvent::Requested(0, "x".into(), X))];
    story.tell(0, asked.clone());
    story.is_wrong("L1");
    story
        .history
        .killed_at
        .insert(ProcessIncarnation { process: 0, generation: 0 }, 5 * NANOS_PER_MILLI);
    story.is_good();
    let mut story = Story::default();
    story.history.last_fault_end = 5000 * NANOS_PER_MILLI;
    story.held(0, X, 1, [0, 10_900, 10_901]);
    story.is_good();
    story.held(1, X, 2, [4000, 11_100, 11_101]);
    story.is_wrong("L1");
}
