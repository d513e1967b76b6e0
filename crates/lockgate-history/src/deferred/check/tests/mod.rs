//! Hand-made histories: each check finds what is wrong with one, and nothing in a good one.

mod clients;

use super::check_history;
use crate::format_line;
use crate::{
    NANOS_PER_MILLI, ProcessIncarnation,
    deferred::{
        AcceptedJob, AcceptedTerms, ClientAnswer, ClientExchange, DeferredHistory, ObservedStatus,
        ProcessDisturbance, RecordedRun, RunEnd, RunEvent,
    },
    locks::FencedRegister,
};

const ONE: ProcessIncarnation = ProcessIncarnation { process: 1, generation: 0 };
const TWO: ProcessIncarnation = ProcessIncarnation { process: 2, generation: 0 };

/// A history in the making, of one resource. Times are in ms.
#[derive(Default)]
struct Story(DeferredHistory);

impl Story {
    /// Sent at that time, and accepted a ms later.
    fn accepted(&mut self, id: &str, sent: u64, terms: AcceptedTerms) {
        self.0.accepted.push(AcceptedJob {
            id: id.to_owned(),
            resource: "7".to_owned(),
            sent_at: sent * NANOS_PER_MILLI,
            answered_at: (sent + 1) * NANOS_PER_MILLI,
            terms,
            is_certain: true,
        });
    }

    /// Ran on process one, and answered with this status; 0 is no answer.
    fn ran(&mut self, id: &str, attempt: u32, fence: u64, [from, to]: [u64; 2], status: u16) {
        let body = format!("{id}-{attempt}");
        let end = RunEnd { ended_at: to * NANOS_PER_MILLI, status, body };
        self.0.runs.push(RecordedRun {
            incarnation: ONE,
            resource: "7".to_owned(),
            job_id: (!id.is_empty()).then(|| id.to_owned()),
            attempt,
            fence,
            started_at: from * NANOS_PER_MILLI,
            valid_until: (to + 1000) * NANOS_PER_MILLI,
            end: (status != 0).then_some(end),
            aborted_at: None,
            dropped_at: None,
        });
    }

    /// A client has asked process one, and was told this.
    fn asked(&mut self, [sent, told]: [u64; 2], answer: ClientAnswer) {
        self.0.exchanges.push(ClientExchange {
            resource: "7".to_owned(),
            incarnation: Some(ONE),
            sent_at: sent * NANOS_PER_MILLI,
            answered_at: told * NANOS_PER_MILLI,
            answer,
        });
    }

    fn sees(&mut self, id: &str, state: &str, attempt: u32) {
        let response = (state == "done").then(|| (200, format!("{id}-{attempt}")));
        let seen = ObservedStatus { state: state.to_owned(), reason: String::new(), response };
        self.0.observed.entry(id.to_owned()).or_default().push(seen);
    }

    /// `a` and `b` were accepted, and have run in turn.
    fn good() -> Self {
        let mut story = Self::default();
        story.accepted("a", 0, AcceptedTerms::SINGLE_RUN);
        story.accepted("b", 5, AcceptedTerms::retryable(5));
        story.ran("a", 1, 10, [10, 20], 200);
        story.ran("b", 1, 20, [20, 30], 200);
        story.sees("a", "done", 1);
        story.sees("b", "done", 1);
        story
    }

    fn run(&mut self, at: usize) -> &mut RecordedRun {
        &mut self.0.runs[at]
    }

    fn is_good(&self) {
        let (_, wrong) = check_history(&self.0);
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    fn is_wrong(&self, name: &str) {
        let (_, wrong) = check_history(&self.0);
        assert!(!wrong.is_empty(), "{name} expected");
        assert!(
            wrong.iter().all(|wrong| wrong.guarantee.to_string() == name),
            "{name} expected: {wrong:?}"
        );
    }
}

#[test]
fn one_after_the_other_is_good() {
    let story = Story::good();
    story.is_good();
    let (looked, _) = check_history(&story.0);
    assert_eq!(
        (looked.accepted, looked.runs, looked.ordered_pairs, looked.repeated_runs),
        (2, 2, 1, 0)
    );
}

#[test]
fn d1_a_request_that_is_lost() {
    let mut story = Story::good();
    story.accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    story.is_wrong("D1");
    for state in ["queued", "running", ""] {
        let mut story = Story::good();
        story.accepted("c", 9, AcceptedTerms::SINGLE_RUN);
        story.sees("c", state, 0);
        story.is_wrong("D1");
    }
}

#[test]
fn d1_a_request_that_may_have_been_stored_may_be_gone() {
    let mut story = Story::good();
    story.accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    story.0.accepted[2].is_certain = false;
    story.sees("c", "", 0);
    story.is_good();
    story.ran("c", 1, 30, [30, 40], 200);
    story.is_wrong("D1");
}

#[test]
fn d1_a_request_that_ends_twice() {
    let mut story = Story::good();
    story.accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    story.sees("c", "queued", 0);
    story.sees("c", "cancelled", 0);
    story.is_good();
    story.sees("c", "expired", 0);
    story.is_wrong("D1");
}

#[test]
fn d1_one_id_for_two() {
    let mut story = Story::good();
    story.accepted("a", 50, AcceptedTerms { is_unordered: true, ..AcceptedTerms::SINGLE_RUN });
    story.is_wrong("D1");
}

#[test]
fn d1_a_state_that_no_run_has_given() {
    let mut story = Story::good();
    (story.run(0).end, story.run(0).valid_until) = (None, 20 * NANOS_PER_MILLI);
    story.is_wrong("D1");
    let mut story = Story::good();
    story.run(0).end.as_mut().expect("it ended").status = 500;
    story.is_wrong("D1");
}

#[test]
fn d1_a_run_that_counts_for_nothing() {
    let mut story = Story::good();
    story.sees("b", "dead", 0);
    story.0.observed.get_mut("b").expect("seen").remove(0);
    story.is_wrong("D1");
    // Its process was killed before it could tell.
    story.0.killed_at.insert(ONE, 31 * NANOS_PER_MILLI);
    story.is_good();
}

/// `b`, which may run so often, was answered with this status once, and is dead for this reason.
fn buried(most: u32, status: u16, reason: &str) -> Story {
    let mut story = Story::good();
    story.0.accepted[1].terms = AcceptedTerms::retryable(most);
    match status {
        0 => (story.run(1).end, story.run(1).dropped_at) = (None, Some(25 * NANOS_PER_MILLI)),
        status => story.run(1).end.as_mut().expect("it ended").status = status,
    }
    story.0.observed.remove("b");
    story.sees("b", "dead", 0);
    story.0.observed.get_mut("b").expect("seen")[0].reason = reason.to_owned();
    story
}

#[test]
fn d1_a_request_that_could_have_run_again() {
    for reason in ["failed", "panicked", "drained, may have run", ""] {
        buried(2, 500, reason).is_wrong("D1");
        buried(1, 500, reason).is_good();
    }
    // Handed back by a process that was told to stop, and nobody has run it again.
    let mut drained = buried(2, 0, "drained, may have run");
    drained.0.drained.insert(ONE);
    drained.is_wrong("D1");
    // Its method allows no other.
    let mut once = buried(2, 500, "failed");
    once.0.accepted[1].terms = AcceptedTerms::SINGLE_RUN;
    once.is_good();
}

#[test]
fn d1_what_ends_a_request_that_could_have_run_again() {
    for (status, reason) in
        [(401, "auth"), (403, "auth"), (500, "unreadable"), (500, "crashed, may have run")]
    {
        buried(2, status, reason).is_good();
    }
    // Somebody has cancelled it, or its deadline has passed.
    for state in ["cancelled", "expired"] {
        let mut ended = buried(2, 500, "");
        ended.0.observed.get_mut("b").expect("seen")[0].state = state.to_owned();
        ended.is_good();
    }
    let mut killed = buried(2, 0, "lost");
    killed.0.killed_at.insert(ONE, 25 * NANOS_PER_MILLI);
    killed.is_good();
    let mut poison = buried(2, 0, "");
    poison.run(1).aborted_at = Some(25 * NANOS_PER_MILLI);
    poison.is_good();
    let mut stalled = buried(2, 500, "failed");
    stalled.0.stalls.push(ProcessDisturbance {
        incarnation: Some(ONE),
        from: 25 * NANOS_PER_MILLI,
        to: 26 * NANOS_PER_MILLI,
    });
    stalled.is_good();
}

#[test]
fn d4_another_response_than_was_given() {
    let mut story = Story::good();
    story.run(1).end.as_mut().expect("it ended").body = "other".to_owned();
    story.is_wrong("D4");
    let mut story = Story::good();
    story.0.observed.get_mut("a").expect("seen")[0].response = None;
    story.is_wrong("D4");
}

#[test]
fn d2_out_of_order() {
    let mut story = Story::good();
    (story.run(0).started_at, story.run(1).started_at) =
        (12 * NANOS_PER_MILLI, 11 * NANOS_PER_MILLI);
    (story.run(0).fence, story.run(1).fence) = (20, 10);
    story.run(1).end.as_mut().expect("it ended").ended_at = 12 * NANOS_PER_MILLI;
    story.is_wrong("D2");
    // Sent at the same time: either may be first.
    story.0.accepted[1].sent_at = 0;
    story.is_good();
}

/// `b` fails, and comes back after `c` has run.
fn retried(skips: bool) -> Story {
    let mut story = Story::good();
    story.0.accepted[1].terms.allows_overtaking = skips;
    story.accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    story.run(1).end.as_mut().expect("it ended").status = 500;
    story.ran("c", 1, 30, [31, 40], 200);
    story.ran("b", 2, 40, [41, 50], 200);
    story.0.observed.remove("b");
    story.sees("b", "done", 2);
    story.sees("c", "done", 1);
    story
}

#[test]
fn d2_a_retry_that_others_may_not_pass() {
    retried(false).is_wrong("D2");
    retried(true).is_good();
    let mut story = retried(true);
    // Its first run is still in turn.
    let (b, c) = (1, 2);
    (story.run(b).started_at, story.run(c).started_at) =
        (31 * NANOS_PER_MILLI, 20 * NANOS_PER_MILLI);
    (story.run(b).fence, story.run(c).fence) = (30, 20);
    story.run(b).end.as_mut().expect("it ended").ended_at = 40 * NANOS_PER_MILLI;
    story.run(c).end.as_mut().expect("it ended").ended_at = 30 * NANOS_PER_MILLI;
    story.is_wrong("D2");
}

#[test]
fn m1_two_at_once() {
    let mut story = Story::good();
    story.run(1).started_at = 19 * NANOS_PER_MILLI;
    story.is_wrong("M1");
    // It was not sure of its lock any more, and shut out by its fence.
    story.run(0).valid_until = 18 * NANOS_PER_MILLI;
    story.is_good();
    // A request that ran at once counts as well.
    let mut story = Story::good();
    story.ran("", 0, 15, [15, 16], 200);
    story.is_wrong("M1");
    let mut story = Story::good();
    story.ran("", 0, 30, [31, 32], 200);
    story.is_good();
}

/// A run ends with its process, and with its own doing, but not with less.
#[test]
fn m1_a_run_ends_with_its_process() {
    let story = || {
        let mut story = Story::good();
        story.run(0).end = None;
        story.run(1).incarnation = TWO;
        story.0.observed.remove("a");
        story.sees("a", "dead", 0);
        story
    };
    story().is_wrong("M1");
    let mut killed = story();
    killed.0.killed_at.insert(ONE, 15 * NANOS_PER_MILLI);
    killed.is_good();
    let mut late = story();
    late.0.killed_at.insert(ONE, 25 * NANOS_PER_MILLI);
    late.is_wrong("M1");
    let mut aborted = story();
    aborted.run(0).aborted_at = Some(15 * NANOS_PER_MILLI);
    aborted.is_good();
    let mut dropped = story();
    dropped.run(0).dropped_at = Some(15 * NANOS_PER_MILLI);
    dropped.is_good();
}

#[test]
fn m2_a_fence_that_does_not_grow() {
    for fence in [10, 9] {
        let mut story = Story::good();
        story.run(1).fence = fence;
        story.is_wrong("M2");
    }
    // Its process had been stopped before its first step: it is shut out, whenever it begins.
    let mut story = Story::good();
    story.ran("", 0, 5, [40, 41], 200);
    story.is_wrong("M2");
    story.run(2).valid_until = 39 * NANOS_PER_MILLI;
    story.is_good();
}

/// `b` runs once more, after it was answered with this status.
fn again(terms: AcceptedTerms, status: u16, attempt: u32) -> Story {
    let mut story = Story::good();
    story.0.accepted[1].terms = terms;
    match status {
        0 => story.run(1).end = None,
        status => story.run(1).end.as_mut().expect("it ended").status = status,
    }
    story.ran("b", attempt, 40, [2000, 2010], 200);
    story.0.observed.remove("b");
    story.sees("b", "done", attempt);
    story
}

#[test]
fn d3_another_run_for_no_reason() {
    again(AcceptedTerms::retryable(5), 200, 2).is_wrong("D3");
    again(AcceptedTerms::retryable(5), 500, 2).is_good();
    let mut stopped = again(AcceptedTerms::retryable(5), 200, 2);
    let trouble = ProcessDisturbance {
        incarnation: Some(ONE),
        from: 25 * NANOS_PER_MILLI,
        to: 60 * NANOS_PER_MILLI,
    };
    stopped.0.disturbances.push(trouble);
    stopped.is_good();
    // That was another process, or another time.
    stopped.0.disturbances[0].incarnation = Some(TWO);
    stopped.is_wrong("D3");
    stopped.0.disturbances[0] = ProcessDisturbance {
        incarnation: None,
        from: 1500 * NANOS_PER_MILLI,
        to: 1600 * NANOS_PER_MILLI,
    };
    stopped.is_wrong("D3");
}

/// Its worker is heard for as long as it has its lock, and not any longer.
#[test]
fn d3_a_run_is_settled_while_it_has_its_lock() {
    for (sure, wrong) in [(29, false), (30, false), (31, true)] {
        let mut story = again(AcceptedTerms::retryable(5), 200, 2);
        story.run(1).valid_until = sure * NANOS_PER_MILLI;
        if wrong { story.is_wrong("D3") } else { story.is_good() }
    }
    let mut story = again(AcceptedTerms::retryable(5), 200, 2);
    story.0.disturbances.push(ProcessDisturbance {
        incarnation: None,
        from: 1500 * NANOS_PER_MILLI,
        to: 1600 * NANOS_PER_MILLI,
    });
    story.run(1).valid_until = 1501 * NANOS_PER_MILLI;
    story.is_good();
    story.run(1).valid_until = 1499 * NANOS_PER_MILLI;
    story.is_wrong("D3");
}

#[test]
fn d3_a_process_that_stood_still() {
    let mut story = again(AcceptedTerms::retryable(5), 200, 2);
    let stall = |from: u64, to: u64| {
        format_line(
            to * NANOS_PER_MILLI,
            0,
            &RunEvent::Stalled(from * NANOS_PER_MILLI, to * NANOS_PER_MILLI),
        )
    };
    story.0.add_log(TWO, &stall(25, 60));
    story.0.add_log(ONE, &stall(1500, 1600));
    story.is_wrong("D3");
    story.0.add_log(ONE, &stall(25, 60));
    story.is_good();
}

#[test]
fn d3_another_run_that_is_not_allowed() {
    again(AcceptedTerms::SINGLE_RUN, 500, 2).is_wrong("D3");
    let mut killed = again(AcceptedTerms::SINGLE_RUN, 0, 2);
    killed.0.killed_at.insert(ONE, 25 * NANOS_PER_MILLI);
    killed.run(2).incarnation = TWO;
    killed.is_wrong("D3");
    again(AcceptedTerms::retryable(1), 500, 2).is_wrong("D3");
}

#[test]
fn d3_a_run_that_was_not_charged() {
    again(AcceptedTerms::retryable(5), 500, 1).is_wrong("D3");
    // Handed back by a process that was told to stop.
    let mut drained = again(AcceptedTerms::retryable(5), 0, 1);
    drained.is_wrong("D3");
    drained.0.drained.insert(ONE);
    drained.0.runs[1].dropped_at = Some(40 * NANOS_PER_MILLI);
    drained.is_good();
}

#[test]
fn d3_a_run_that_nobody_has_asked_for() {
    let mut story = Story::good();
    story.ran("x", 1, 30, [31, 40], 200);
    story.is_wrong("D3");
    story.0.unanswered.insert("7".to_owned(), 1);
    story.is_good();
    story.ran("y", 1, 40, [41, 50], 200);
    story.is_wrong("D3");
}

/// What is done on purpose is told apart from what the machine does.
#[test]
fn what_was_touched_is_counted() {
    let mut story = Story::good();
    story.0.stalls.push(ProcessDisturbance {
        incarnation: None,
        from: 15 * NANOS_PER_MILLI,
        to: 16 * NANOS_PER_MILLI,
    });
    let (looked, _) = check_history(&story.0);
    assert_eq!((looked.unfaulted_runs, looked.undisturbed_runs), (2, 1));
    story.0.disturbances.push(ProcessDisturbance {
        incarnation: None,
        from: 15 * NANOS_PER_MILLI,
        to: 16 * NANOS_PER_MILLI,
    });
    let (looked, _) = check_history(&story.0);
    assert_eq!((looked.unfaulted_runs, looked.undisturbed_runs), (1, 1));
}

/// What `a` and `b` wrote.
fn written(writes: &[(u64, u64)]) -> Story {
    let mut story = Story::good();
    story.0.registers.push(FencedRegister { lock: "7".to_owned(), writes: writes.to_vec() });
    story
}

#[test]
fn m3_a_register_that_goes_back_or_loses_a_write() {
    written(&[(10, 1), (20, 2)]).is_good();
    for writes in [
        &[(20, 1), (10, 2)][..],
        &[(10, 1), (20, 1)],
        &[(10, 1), (10, 2), (20, 3)],
        &[(10, 1)],
        &[(20, 1)],
    ] {
        written(writes).is_wrong("M3");
    }
    // Its process was stopped: whether it wrote or not, it was in time or shut out.
    let mut stopped = written(&[(20, 1)]);
    stopped.0.disturbances.push(ProcessDisturbance {
        incarnation: Some(ONE),
        from: 12 * NANOS_PER_MILLI,
        to: 13 * NANOS_PER_MILLI,
    });
    stopped.is_good();
}
