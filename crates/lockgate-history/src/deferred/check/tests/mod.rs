//! Hand-made histories. Each check must find the violation in a wrong one, and nothing in a correct
//! one.

mod client_answers;

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

const FIRST_PROCESS: ProcessIncarnation = ProcessIncarnation { process: 1, generation: 0 };
const SECOND_PROCESS: ProcessIncarnation = ProcessIncarnation { process: 2, generation: 0 };

/// Builder of a history with one resource. Times are in ms.
#[derive(Default)]
struct DeferredHistoryBuilder(DeferredHistory);

impl DeferredHistoryBuilder {
    /// Adds a job that was sent at `sent` and accepted a ms later.
    fn add_accepted(&mut self, id: &str, sent: u64, terms: AcceptedTerms) {
        self.0.accepted.push(AcceptedJob {
            id: id.to_owned(),
            resource: "7".to_owned(),
            sent_at: sent * NANOS_PER_MILLI,
            answered_at: (sent + 1) * NANOS_PER_MILLI,
            terms,
            is_certain: true,
        });
    }

    /// Adds a run on the first process with this response status; 0 means no response.
    fn add_run(&mut self, id: &str, attempt: u32, fence: u64, [from, to]: [u64; 2], status: u16) {
        let body = format!("{id}-{attempt}");
        let end = RunEnd { ended_at: to * NANOS_PER_MILLI, status, body };
        self.0.runs.push(RecordedRun {
            incarnation: FIRST_PROCESS,
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

    /// Adds a request to the first process, with its response.
    fn add_exchange(&mut self, [sent, answered]: [u64; 2], answer: ClientAnswer) {
        self.0.exchanges.push(ClientExchange {
            resource: "7".to_owned(),
            incarnation: Some(FIRST_PROCESS),
            sent_at: sent * NANOS_PER_MILLI,
            answered_at: answered * NANOS_PER_MILLI,
            answer,
        });
    }

    fn add_observed_status(&mut self, id: &str, state: &str, attempt: u32) {
        let response = (state == "done").then(|| (200, format!("{id}-{attempt}")));
        let status = ObservedStatus { state: state.to_owned(), reason: String::new(), response };
        self.0.observed_statuses.entry(id.to_owned()).or_default().push(status);
    }

    /// Creates a history in which `a` and `b` were accepted and ran in order.
    fn with_two_completed_jobs() -> Self {
        let mut history = Self::default();
        history.add_accepted("a", 0, AcceptedTerms::SINGLE_RUN);
        history.add_accepted("b", 5, AcceptedTerms::retryable(5));
        history.add_run("a", 1, 10, [10, 20], 200);
        history.add_run("b", 1, 20, [20, 30], 200);
        history.add_observed_status("a", "done", 1);
        history.add_observed_status("b", "done", 1);
        history
    }

    fn run_mut(&mut self, index: usize) -> &mut RecordedRun {
        &mut self.0.runs[index]
    }

    fn assert_valid(&self) {
        let (_, violations) = check_history(&self.0);
        assert!(violations.is_empty(), "{violations:?}");
    }

    fn assert_violates(&self, name: &str) {
        let (_, violations) = check_history(&self.0);
        assert!(!violations.is_empty(), "{name} expected");
        assert!(
            violations.iter().all(|violation| violation.guarantee.to_string() == name),
            "{name} expected: {violations:?}"
        );
    }
}

#[test]
fn sequential_runs_have_no_violation() {
    let history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.assert_valid();
    let (stats, _) = check_history(&history.0);
    assert_eq!(
        (stats.accepted, stats.runs, stats.ordered_pairs, stats.repeated_runs),
        (2, 2, 1, 0)
    );
}

#[test]
fn d1_job_without_final_status_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    history.assert_violates("D1");
    for state in ["queued", "running", ""] {
        let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
        history.add_accepted("c", 9, AcceptedTerms::SINGLE_RUN);
        history.add_observed_status("c", state, 0);
        history.assert_violates("D1");
    }
}

#[test]
fn d1_uncertain_job_may_be_missing_unless_it_ran() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    history.0.accepted[2].is_certain = false;
    history.add_observed_status("c", "", 0);
    history.assert_valid();
    history.add_run("c", 1, 30, [30, 40], 200);
    history.assert_violates("D1");
}

#[test]
fn d1_job_with_two_final_states_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    history.add_observed_status("c", "queued", 0);
    history.add_observed_status("c", "cancelled", 0);
    history.assert_valid();
    history.add_observed_status("c", "expired", 0);
    history.assert_violates("D1");
}

#[test]
fn d1_duplicate_job_id_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_accepted(
        "a",
        50,
        AcceptedTerms { is_unordered: true, ..AcceptedTerms::SINGLE_RUN },
    );
    history.assert_violates("D1");
}

#[test]
fn d1_done_without_a_successful_run_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    (history.run_mut(0).end, history.run_mut(0).valid_until) = (None, 20 * NANOS_PER_MILLI);
    history.assert_violates("D1");
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.run_mut(0).end.as_mut().expect("it ended").status = 500;
    history.assert_violates("D1");
}

#[test]
fn d1_dead_after_a_successful_run_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_observed_status("b", "dead", 0);
    history.0.observed_statuses.get_mut("b").expect("seen").remove(0);
    history.assert_violates("D1");
    // The process was killed before it could settle the run.
    history.0.killed_at.insert(FIRST_PROCESS, 31 * NANOS_PER_MILLI);
    history.assert_valid();
}

/// History in which `b` may run `max_attempts` times, got this status once, and is dead for
/// `reason`.
fn dead_job_history(max_attempts: u32, status: u16, reason: &str) -> DeferredHistoryBuilder {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.accepted[1].terms = AcceptedTerms::retryable(max_attempts);
    match status {
        0 => {
            (history.run_mut(1).end, history.run_mut(1).dropped_at) =
                (None, Some(25 * NANOS_PER_MILLI));
        }
        status => history.run_mut(1).end.as_mut().expect("it ended").status = status,
    }
    history.0.observed_statuses.remove("b");
    history.add_observed_status("b", "dead", 0);
    history.0.observed_statuses.get_mut("b").expect("seen")[0].reason = reason.to_owned();
    history
}

#[test]
fn d1_dead_job_with_attempts_left_is_reported() {
    for reason in ["failed", "panicked", "drained, may have run", ""] {
        dead_job_history(2, 500, reason).assert_violates("D1");
        dead_job_history(1, 500, reason).assert_valid();
    }
    // Returned by a draining process, and not run again.
    let mut drained = dead_job_history(2, 0, "drained, may have run");
    drained.0.drained.insert(FIRST_PROCESS);
    drained.assert_violates("D1");
    // Its terms allow a single run.
    let mut once = dead_job_history(2, 500, "failed");
    once.0.accepted[1].terms = AcceptedTerms::SINGLE_RUN;
    once.assert_valid();
}

#[test]
fn d1_legitimate_end_with_attempts_left_is_accepted() {
    for (status, reason) in
        [(401, "auth"), (403, "auth"), (500, "unreadable"), (500, "crashed, may have run")]
    {
        dead_job_history(2, status, reason).assert_valid();
    }
    // The job was cancelled, or its deadline has passed.
    for state in ["cancelled", "expired"] {
        let mut ended = dead_job_history(2, 500, "");
        ended.0.observed_statuses.get_mut("b").expect("seen")[0].state = state.to_owned();
        ended.assert_valid();
    }
    let mut killed = dead_job_history(2, 0, "lost");
    killed.0.killed_at.insert(FIRST_PROCESS, 25 * NANOS_PER_MILLI);
    killed.assert_valid();
    let mut poison = dead_job_history(2, 0, "");
    poison.run_mut(1).aborted_at = Some(25 * NANOS_PER_MILLI);
    poison.assert_valid();
    let mut stalled = dead_job_history(2, 500, "failed");
    stalled.0.stalls.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 25 * NANOS_PER_MILLI,
        to: 26 * NANOS_PER_MILLI,
    });
    stalled.assert_valid();
}

#[test]
fn d4_wrong_or_missing_stored_response_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.run_mut(1).end.as_mut().expect("it ended").body = "other".to_owned();
    history.assert_violates("D4");
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.observed_statuses.get_mut("a").expect("seen")[0].response = None;
    history.assert_violates("D4");
}

#[test]
fn d2_runs_out_of_order_are_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    (history.run_mut(0).started_at, history.run_mut(1).started_at) =
        (12 * NANOS_PER_MILLI, 11 * NANOS_PER_MILLI);
    (history.run_mut(0).fence, history.run_mut(1).fence) = (20, 10);
    history.run_mut(1).end.as_mut().expect("it ended").ended_at = 12 * NANOS_PER_MILLI;
    history.assert_violates("D2");
    // Sent at the same time, so either may be first.
    history.0.accepted[1].sent_at = 0;
    history.assert_valid();
}

/// History in which `b` fails, and runs again after `c`.
fn retried_job_history(allows_overtaking: bool) -> DeferredHistoryBuilder {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.accepted[1].terms.allows_overtaking = allows_overtaking;
    history.add_accepted("c", 9, AcceptedTerms::SINGLE_RUN);
    history.run_mut(1).end.as_mut().expect("it ended").status = 500;
    history.add_run("c", 1, 30, [31, 40], 200);
    history.add_run("b", 2, 40, [41, 50], 200);
    history.0.observed_statuses.remove("b");
    history.add_observed_status("b", "done", 2);
    history.add_observed_status("c", "done", 1);
    history
}

#[test]
fn d2_overtaking_a_retry_is_reported_unless_allowed() {
    retried_job_history(false).assert_violates("D2");
    retried_job_history(true).assert_valid();
    let mut history = retried_job_history(true);
    // The first run of `b` must still be in order.
    let (b, c) = (1, 2);
    (history.run_mut(b).started_at, history.run_mut(c).started_at) =
        (31 * NANOS_PER_MILLI, 20 * NANOS_PER_MILLI);
    (history.run_mut(b).fence, history.run_mut(c).fence) = (30, 20);
    history.run_mut(b).end.as_mut().expect("it ended").ended_at = 40 * NANOS_PER_MILLI;
    history.run_mut(c).end.as_mut().expect("it ended").ended_at = 30 * NANOS_PER_MILLI;
    history.assert_violates("D2");
}

#[test]
fn m1_overlapping_runs_are_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.run_mut(1).started_at = 19 * NANOS_PER_MILLI;
    history.assert_violates("M1");
    // Its validity time had ended, and its fence excludes it.
    history.run_mut(0).valid_until = 18 * NANOS_PER_MILLI;
    history.assert_valid();
    // Direct runs count as well.
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_run("", 0, 15, [15, 16], 200);
    history.assert_violates("M1");
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_run("", 0, 30, [31, 32], 200);
    history.assert_valid();
}

/// A run ends with its process, or by its own abort or drop, and not before.
#[test]
fn m1_run_ends_with_its_kill_abort_or_drop() {
    let history = || {
        let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
        history.run_mut(0).end = None;
        history.run_mut(1).incarnation = SECOND_PROCESS;
        history.0.observed_statuses.remove("a");
        history.add_observed_status("a", "dead", 0);
        history
    };
    history().assert_violates("M1");
    let mut killed = history();
    killed.0.killed_at.insert(FIRST_PROCESS, 15 * NANOS_PER_MILLI);
    killed.assert_valid();
    let mut late = history();
    late.0.killed_at.insert(FIRST_PROCESS, 25 * NANOS_PER_MILLI);
    late.assert_violates("M1");
    let mut aborted = history();
    aborted.run_mut(0).aborted_at = Some(15 * NANOS_PER_MILLI);
    aborted.assert_valid();
    let mut dropped = history();
    dropped.run_mut(0).dropped_at = Some(15 * NANOS_PER_MILLI);
    dropped.assert_valid();
}

#[test]
fn m2_fence_that_does_not_grow_is_reported() {
    for fence in [10, 9] {
        let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
        history.run_mut(1).fence = fence;
        history.assert_violates("M2");
    }
    // The process was stopped before the run's first operation, so the fence excludes it at any
    // time.
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_run("", 0, 5, [40, 41], 200);
    history.assert_violates("M2");
    history.run_mut(2).valid_until = 39 * NANOS_PER_MILLI;
    history.assert_valid();
}

/// History in which `b` runs again after a response with this status.
fn rerun_history(terms: AcceptedTerms, status: u16, attempt: u32) -> DeferredHistoryBuilder {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.accepted[1].terms = terms;
    match status {
        0 => history.run_mut(1).end = None,
        status => history.run_mut(1).end.as_mut().expect("it ended").status = status,
    }
    history.add_run("b", attempt, 40, [2000, 2010], 200);
    history.0.observed_statuses.remove("b");
    history.add_observed_status("b", "done", attempt);
    history
}

#[test]
fn d3_rerun_without_failure_or_fault_is_reported() {
    rerun_history(AcceptedTerms::retryable(5), 200, 2).assert_violates("D3");
    rerun_history(AcceptedTerms::retryable(5), 500, 2).assert_valid();
    let mut stopped = rerun_history(AcceptedTerms::retryable(5), 200, 2);
    let disturbance = ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 25 * NANOS_PER_MILLI,
        to: 60 * NANOS_PER_MILLI,
    };
    stopped.0.disturbances.push(disturbance);
    stopped.assert_valid();
    // Another process, or another time, is no excuse.
    stopped.0.disturbances[0].incarnation = Some(SECOND_PROCESS);
    stopped.assert_violates("D3");
    stopped.0.disturbances[0] = ProcessDisturbance {
        incarnation: None,
        from: 1500 * NANOS_PER_MILLI,
        to: 1600 * NANOS_PER_MILLI,
    };
    stopped.assert_violates("D3");
}

/// Faults excuse a rerun only within the validity time of the first run.
#[test]
fn d3_validity_time_decides_which_faults_excuse_a_rerun() {
    for (valid_ms, is_violated) in [(29, false), (30, false), (31, true)] {
        let mut history = rerun_history(AcceptedTerms::retryable(5), 200, 2);
        history.run_mut(1).valid_until = valid_ms * NANOS_PER_MILLI;
        if is_violated { history.assert_violates("D3") } else { history.assert_valid() }
    }
    let mut history = rerun_history(AcceptedTerms::retryable(5), 200, 2);
    history.0.disturbances.push(ProcessDisturbance {
        incarnation: None,
        from: 1500 * NANOS_PER_MILLI,
        to: 1600 * NANOS_PER_MILLI,
    });
    history.run_mut(1).valid_until = 1501 * NANOS_PER_MILLI;
    history.assert_valid();
    history.run_mut(1).valid_until = 1499 * NANOS_PER_MILLI;
    history.assert_violates("D3");
}

#[test]
fn d3_stall_of_the_running_process_excuses_a_rerun() {
    let mut history = rerun_history(AcceptedTerms::retryable(5), 200, 2);
    let stall = |from: u64, to: u64| {
        format_line(
            to * NANOS_PER_MILLI,
            0,
            &RunEvent::Stalled { from: from * NANOS_PER_MILLI, to: to * NANOS_PER_MILLI },
        )
    };
    history.0.add_log(SECOND_PROCESS, &stall(25, 60));
    history.0.add_log(FIRST_PROCESS, &stall(1500, 1600));
    history.assert_violates("D3");
    history.0.add_log(FIRST_PROCESS, &stall(25, 60));
    history.assert_valid();
}

#[test]
fn d3_rerun_beyond_the_accepted_terms_is_reported() {
    rerun_history(AcceptedTerms::SINGLE_RUN, 500, 2).assert_violates("D3");
    let mut killed = rerun_history(AcceptedTerms::SINGLE_RUN, 0, 2);
    killed.0.killed_at.insert(FIRST_PROCESS, 25 * NANOS_PER_MILLI);
    killed.run_mut(2).incarnation = SECOND_PROCESS;
    killed.assert_violates("D3");
    rerun_history(AcceptedTerms::retryable(1), 500, 2).assert_violates("D3");
}

#[test]
fn d3_uncharged_rerun_is_reported_unless_drained() {
    rerun_history(AcceptedTerms::retryable(5), 500, 1).assert_violates("D3");
    // Returned by a draining process.
    let mut drained = rerun_history(AcceptedTerms::retryable(5), 0, 1);
    drained.assert_violates("D3");
    drained.0.drained.insert(FIRST_PROCESS);
    drained.0.runs[1].dropped_at = Some(40 * NANOS_PER_MILLI);
    drained.assert_valid();
}

#[test]
fn d3_run_without_a_client_request_is_reported() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.add_run("x", 1, 30, [31, 40], 200);
    history.assert_violates("D3");
    history.0.unanswered_counts.insert("7".to_owned(), 1);
    history.assert_valid();
    history.add_run("y", 1, 40, [41, 50], 200);
    history.assert_violates("D3");
}

/// Disturbances by the test are counted apart from stalls of the machine.
#[test]
fn faulted_and_stalled_runs_are_counted_separately() {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.stalls.push(ProcessDisturbance {
        incarnation: None,
        from: 15 * NANOS_PER_MILLI,
        to: 16 * NANOS_PER_MILLI,
    });
    let (stats, _) = check_history(&history.0);
    assert_eq!((stats.unfaulted_runs, stats.undisturbed_runs), (2, 1));
    history.0.disturbances.push(ProcessDisturbance {
        incarnation: None,
        from: 15 * NANOS_PER_MILLI,
        to: 16 * NANOS_PER_MILLI,
    });
    let (stats, _) = check_history(&history.0);
    assert_eq!((stats.unfaulted_runs, stats.undisturbed_runs), (1, 1));
}

/// History with these writes of `a` and `b`.
fn history_with_register_writes(writes: &[(u64, u64)]) -> DeferredHistoryBuilder {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.registers.push(FencedRegister { lock: "7".to_owned(), writes: writes.to_vec() });
    history
}

#[test]
fn m3_register_regression_or_lost_write_is_reported() {
    history_with_register_writes(&[(10, 1), (20, 2)]).assert_valid();
    for writes in [
        &[(20, 1), (10, 2)][..],
        &[(10, 1), (20, 1)],
        &[(10, 1), (10, 2), (20, 3)],
        &[(10, 1)],
        &[(20, 1)],
    ] {
        history_with_register_writes(writes).assert_violates("M3");
    }
    // The process was stopped: its write was either in time or excluded.
    let mut stopped = history_with_register_writes(&[(20, 1)]);
    stopped.0.disturbances.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 12 * NANOS_PER_MILLI,
        to: 13 * NANOS_PER_MILLI,
    });
    stopped.assert_valid();
}
