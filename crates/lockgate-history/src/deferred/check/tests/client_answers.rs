//! Checks of the responses to clients.

use super::{DeferredHistoryBuilder, FIRST_PROCESS, SECOND_PROCESS, check_history};
use crate::{
    NANOS_PER_MILLI,
    deferred::{ClientAnswer, ProcessDisturbance},
};

fn response(status: u16, body: &str) -> ClientAnswer {
    ClientAnswer::Response { status, body: body.to_owned() }
}

/// History with a direct run on the first process and its response. Clients may wait for 1,000 ms.
fn direct_run_history() -> DeferredHistoryBuilder {
    let mut history = DeferredHistoryBuilder::with_two_completed_jobs();
    history.0.max_wait = 1000 * NANOS_PER_MILLI;
    history.add_run("", 0, 30, [40, 50], 200);
    history.add_exchange([40, 51], response(200, "-0"));
    history
}

#[test]
fn served_busy_and_accepted_clients_have_no_violation() {
    let mut history = direct_run_history();
    // A request that ran had its lock; one that did not run did not.
    history.add_exchange([52, 53], response(409, "busy"));
    history.add_exchange([52, 53], ClientAnswer::Accepted);
    history.assert_valid();
    let (stats, _) = check_history(&history.0);
    assert_eq!(
        (stats.checked_answers, stats.longest_wait, stats.undisturbed_runs),
        (3, 11 * NANOS_PER_MILLI, 3)
    );
}

#[test]
fn d4_response_without_a_matching_run_is_reported() {
    for (status, body) in [(200, "--0-7"), (500, "-0"), (500, "the lock was lost")] {
        let mut history = direct_run_history();
        history.add_exchange([60, 70], response(status, body));
        history.assert_violates("D4");
    }
    // The handler started and did not finish.
    let mut history = direct_run_history();
    history.run_mut(2).end = None;
    history.0.exchanges.push(history.0.exchanges[0].clone());
    history.add_exchange([40, 60], ClientAnswer::NoResponse);
    history.0.killed_at.insert(FIRST_PROCESS, 55 * NANOS_PER_MILLI);
    history.assert_violates("D4");
}

#[test]
fn d3_second_direct_run_of_a_request_is_reported() {
    let mut history = direct_run_history();
    history.add_run("", 0, 31, [52, 60], 200);
    history.run_mut(3).end.as_mut().expect("it ended").body = "-1".to_owned();
    history.assert_violates("D3");
    // A direct run may repeat if its client got no response because its node was disturbed.
    history.add_exchange([52, 60], ClientAnswer::NoResponse);
    history.0.disturbances.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    history.assert_valid();
}

#[test]
fn l1_unserved_client_is_reported_unless_disturbed() {
    for answer in [
        ClientAnswer::NoResponse,
        ClientAnswer::PossiblyAccepted,
        response(503, ""),
        response(404, ""),
    ] {
        let mut history = direct_run_history();
        history.add_exchange([52, 60], answer.clone());
        history.assert_violates("L1");
        // A disturbance of the process excuses this, but not a 404.
        let is_not_found = matches!(answer, ClientAnswer::Response { status: 404, .. });
        history.0.disturbances.push(ProcessDisturbance {
            incarnation: None,
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        });
        if is_not_found {
            history.assert_violates("L1");
        } else {
            history.assert_valid();
        }
        history.0.disturbances[0] = ProcessDisturbance {
            incarnation: Some(SECOND_PROCESS),
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        };
        history.assert_violates("L1");
    }
}

/// A stalled process may report an unavailable store or respond late, and nothing else.
#[test]
fn l1_stall_excuses_outage_responses_and_counts_them() {
    let outage_answers = [response(503, ""), ClientAnswer::PossiblyAccepted];
    for answer in outage_answers.iter().chain(&[ClientAnswer::NoResponse, response(404, "")]) {
        let mut history = direct_run_history();
        history.add_exchange([52, 60], answer.clone());
        for (incarnation, from, excused) in [
            (Some(FIRST_PROCESS), 59, 1),
            (None, 10, 1),
            (Some(FIRST_PROCESS), 60, 0),
            (Some(SECOND_PROCESS), 10, 0),
        ] {
            history.0.stalls = vec![ProcessDisturbance {
                incarnation,
                from: from * NANOS_PER_MILLI,
                to: 70 * NANOS_PER_MILLI,
            }];
            let excused = if outage_answers.contains(answer) { excused } else { 0 };
            if excused == 1 {
                history.assert_valid();
            } else {
                history.assert_violates("L1");
            }
            assert_eq!(
                check_history(&history.0).0.excused_answers,
                excused,
                "{answer:?} {incarnation:?} {from}"
            );
        }
    }
}

#[test]
fn l1_response_in_time_during_a_stall_is_not_counted() {
    let mut history = direct_run_history();
    history.0.stalls.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 10 * NANOS_PER_MILLI,
        to: 70 * NANOS_PER_MILLI,
    });
    let (stats, _) = check_history(&history.0);
    assert_eq!((stats.excused_answers, stats.checked_answers), (0, 0));
}

#[test]
fn l1_late_response_is_reported_unless_stalled() {
    let mut history = direct_run_history();
    history.add_exchange([52, 1053], ClientAnswer::Accepted);
    history.assert_violates("L1");
    history.0.stalls.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    history.assert_valid();
    assert_eq!(check_history(&history.0).0.excused_answers, 1);
    let mut history = direct_run_history();
    history.add_exchange([52, 1053], ClientAnswer::Accepted);
    history.0.stop_requested_at.insert(FIRST_PROCESS, 2000 * NANOS_PER_MILLI);
    history.assert_violates("L1");
    history.0.stop_requested_at.insert(FIRST_PROCESS, 60 * NANOS_PER_MILLI);
    history.assert_valid();
}
