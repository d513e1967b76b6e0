//! What clients were told.

use super::{DeferredHistoryBuilder, FIRST_PROCESS, SECOND_PROCESS, check_history};
use crate::{
    NANOS_PER_MILLI,
    deferred::{ClientAnswer, ProcessDisturbance},
};

/// `at once` ran on process one, and its client was told so; and how long the others may wait.
fn direct_run_history() -> DeferredHistoryBuilder {
    let mut story = DeferredHistoryBuilder::with_two_completed_jobs();
    story.0.max_wait = 1000 * NANOS_PER_MILLI;
    story.add_run("", 0, 30, [40, 50], 200);
    story.add_exchange([40, 51], ClientAnswer::Response(200, "-0".to_owned()));
    story
}

#[test]
fn served_busy_and_accepted_clients_have_no_violation() {
    let mut story = direct_run_history();
    // A request that ran has had its lock, one that did not has not.
    story.add_exchange([52, 53], ClientAnswer::Response(409, "busy".to_owned()));
    story.add_exchange([52, 53], ClientAnswer::Accepted);
    story.assert_valid();
    let (looked, _) = check_history(&story.0);
    assert_eq!(
        (looked.checked_answers, looked.longest_wait, looked.undisturbed_runs),
        (3, 11 * NANOS_PER_MILLI, 3)
    );
}

#[test]
fn d4_response_without_a_matching_run_is_reported() {
    for answer in [(200, "--0-7"), (500, "-0"), (500, "the lock was lost")] {
        let mut story = direct_run_history();
        story.add_exchange([60, 70], ClientAnswer::Response(answer.0, answer.1.to_owned()));
        story.assert_violates("D4");
    }
    // Its handler began, and did not come to its end.
    let mut story = direct_run_history();
    story.run_mut(2).end = None;
    story.0.exchanges.push(story.0.exchanges[0].clone());
    story.add_exchange([40, 60], ClientAnswer::NoResponse);
    story.0.killed_at.insert(FIRST_PROCESS, 55 * NANOS_PER_MILLI);
    story.assert_violates("D4");
}

#[test]
fn d3_second_direct_run_of_a_request_is_reported() {
    let mut story = direct_run_history();
    story.add_run("", 0, 31, [52, 60], 200);
    story.run_mut(3).end.as_mut().expect("it ended").body = "-1".to_owned();
    story.assert_violates("D3");
    // Somebody has asked for it who had no answer, because his node was cut off.
    story.add_exchange([52, 60], ClientAnswer::NoResponse);
    story.0.disturbances.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    story.assert_valid();
}

#[test]
fn l1_unserved_client_is_reported_unless_disturbed() {
    for answer in [
        ClientAnswer::NoResponse,
        ClientAnswer::PossiblyAccepted,
        ClientAnswer::Response(503, String::new()),
        ClientAnswer::Response(404, String::new()),
    ] {
        let mut story = direct_run_history();
        story.add_exchange([52, 60], answer.clone());
        story.assert_violates("L1");
        // Something is done to the one it asks; but that makes no 404.
        let unknown = matches!(answer, ClientAnswer::Response(404, _));
        story.0.disturbances.push(ProcessDisturbance {
            incarnation: None,
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        });
        if unknown {
            story.assert_violates("L1");
        } else {
            story.assert_valid();
        }
        story.0.disturbances[0] = ProcessDisturbance {
            incarnation: Some(SECOND_PROCESS),
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        };
        story.assert_violates("L1");
    }
}

/// The machine has no time for a process: then it says that the store is away, or answers late, and nothing else.
#[test]
fn l1_stall_excuses_outage_responses_and_counts_them() {
    let away = [ClientAnswer::Response(503, String::new()), ClientAnswer::PossiblyAccepted];
    for answer in
        away.iter().chain(&[ClientAnswer::NoResponse, ClientAnswer::Response(404, String::new())])
    {
        let mut story = direct_run_history();
        story.add_exchange([52, 60], answer.clone());
        for (life, from, excused) in [
            (Some(FIRST_PROCESS), 59, 1),
            (None, 10, 1),
            (Some(FIRST_PROCESS), 60, 0),
            (Some(SECOND_PROCESS), 10, 0),
        ] {
            story.0.stalls = vec![ProcessDisturbance {
                incarnation: life,
                from: from * NANOS_PER_MILLI,
                to: 70 * NANOS_PER_MILLI,
            }];
            let excused = if away.contains(answer) { excused } else { 0 };
            if excused == 1 {
                story.assert_valid();
            } else {
                story.assert_violates("L1");
            }
            assert_eq!(
                check_history(&story.0).0.excused_answers,
                excused,
                "{answer:?} {life:?} {from}"
            );
        }
    }
}

#[test]
fn l1_response_in_time_during_a_stall_is_not_counted() {
    let mut story = direct_run_history();
    story.0.stalls.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 10 * NANOS_PER_MILLI,
        to: 70 * NANOS_PER_MILLI,
    });
    let (looked, _) = check_history(&story.0);
    assert_eq!((looked.excused_answers, looked.checked_answers), (0, 0));
}

#[test]
fn l1_late_response_is_reported_unless_stalled() {
    let mut story = direct_run_history();
    story.add_exchange([52, 1053], ClientAnswer::Accepted);
    story.assert_violates("L1");
    story.0.stalls.push(ProcessDisturbance {
        incarnation: Some(FIRST_PROCESS),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    story.assert_valid();
    assert_eq!(check_history(&story.0).0.excused_answers, 1);
    let mut story = direct_run_history();
    story.add_exchange([52, 1053], ClientAnswer::Accepted);
    story.0.stop_requested_at.insert(FIRST_PROCESS, 2000 * NANOS_PER_MILLI);
    story.assert_violates("L1");
    story.0.stop_requested_at.insert(FIRST_PROCESS, 60 * NANOS_PER_MILLI);
    story.assert_valid();
}
