//! What clients were told.

use super::{ONE, Story, TWO, check_history};
use crate::{
    NANOS_PER_MILLI,
    deferred::{ClientAnswer, ProcessDisturbance},
};

/// `at once` ran on process one, and its client was told so; and how long the others may wait.
fn at_once() -> Story {
    let mut story = Story::good();
    story.0.max_wait = 1000 * NANOS_PER_MILLI;
    story.ran("", 0, 30, [40, 50], 200);
    story.asked([40, 51], ClientAnswer::Response(200, "-0".to_owned()));
    story
}

#[test]
fn what_clients_were_told_is_good() {
    let mut story = at_once();
    // A request that ran has had its lock, one that did not has not.
    story.asked([52, 53], ClientAnswer::Response(409, "busy".to_owned()));
    story.asked([52, 53], ClientAnswer::Accepted);
    story.is_good();
    let (looked, _) = check_history(&story.0);
    assert_eq!(
        (looked.judged_answers, looked.longest_wait, looked.undisturbed_runs),
        (3, 11 * NANOS_PER_MILLI, 3)
    );
}

#[test]
fn d4_a_client_that_was_told_what_no_handler_said() {
    for answer in [(200, "--0-7"), (500, "-0"), (500, "the lock was lost")] {
        let mut story = at_once();
        story.asked([60, 70], ClientAnswer::Response(answer.0, answer.1.to_owned()));
        story.is_wrong("D4");
    }
    // Its handler began, and did not come to its end.
    let mut story = at_once();
    story.run(2).end = None;
    story.0.exchanges.push(story.0.exchanges[0].clone());
    story.asked([40, 60], ClientAnswer::NoResponse);
    story.0.killed_at.insert(ONE, 55 * NANOS_PER_MILLI);
    story.is_wrong("D4");
}

#[test]
fn d3_a_request_that_ran_at_once_twice() {
    let mut story = at_once();
    story.ran("", 0, 31, [52, 60], 200);
    story.run(3).end.as_mut().expect("it ended").body = "-1".to_owned();
    story.is_wrong("D3");
    // Somebody has asked for it who had no answer, because his node was cut off.
    story.asked([52, 60], ClientAnswer::NoResponse);
    story.0.disturbances.push(ProcessDisturbance {
        incarnation: Some(ONE),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    story.is_good();
}

#[test]
fn l1_a_client_that_is_not_served() {
    for answer in [
        ClientAnswer::NoResponse,
        ClientAnswer::PossiblyAccepted,
        ClientAnswer::Response(503, String::new()),
        ClientAnswer::Response(404, String::new()),
    ] {
        let mut story = at_once();
        story.asked([52, 60], answer.clone());
        story.is_wrong("L1");
        // Something is done to the one it asks; but that makes no 404.
        let unknown = matches!(answer, ClientAnswer::Response(404, _));
        story.0.disturbances.push(ProcessDisturbance {
            incarnation: None,
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        });
        if unknown {
            story.is_wrong("L1");
        } else {
            story.is_good();
        }
        story.0.disturbances[0] = ProcessDisturbance {
            incarnation: Some(TWO),
            from: 55 * NANOS_PER_MILLI,
            to: 56 * NANOS_PER_MILLI,
        };
        story.is_wrong("L1");
    }
}

/// The machine has no time for a process: then it says that the store is away, or answers late, and nothing else.
#[test]
fn l1_what_the_machine_excuses_is_counted() {
    let away = [ClientAnswer::Response(503, String::new()), ClientAnswer::PossiblyAccepted];
    for answer in
        away.iter().chain(&[ClientAnswer::NoResponse, ClientAnswer::Response(404, String::new())])
    {
        let mut story = at_once();
        story.asked([52, 60], answer.clone());
        for (life, from, excused) in
            [(Some(ONE), 59, 1), (None, 10, 1), (Some(ONE), 60, 0), (Some(TWO), 10, 0)]
        {
            story.0.stalls = vec![ProcessDisturbance {
                incarnation: life,
                from: from * NANOS_PER_MILLI,
                to: 70 * NANOS_PER_MILLI,
            }];
            let excused = if away.contains(answer) { excused } else { 0 };
            if excused == 1 {
                story.is_good();
            } else {
                story.is_wrong("L1");
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
fn l1_what_is_good_needs_no_excuse() {
    let mut story = at_once();
    story.0.stalls.push(ProcessDisturbance {
        incarnation: Some(ONE),
        from: 10 * NANOS_PER_MILLI,
        to: 70 * NANOS_PER_MILLI,
    });
    let (looked, _) = check_history(&story.0);
    assert_eq!((looked.excused_answers, looked.judged_answers), (0, 0));
}

#[test]
fn l1_an_answer_that_comes_late() {
    let mut story = at_once();
    story.asked([52, 1053], ClientAnswer::Accepted);
    story.is_wrong("L1");
    story.0.stalls.push(ProcessDisturbance {
        incarnation: Some(ONE),
        from: 55 * NANOS_PER_MILLI,
        to: 56 * NANOS_PER_MILLI,
    });
    story.is_good();
    assert_eq!(check_history(&story.0).0.excused_answers, 1);
    let mut story = at_once();
    story.asked([52, 1053], ClientAnswer::Accepted);
    story.0.stop_requested_at.insert(ONE, 2000 * NANOS_PER_MILLI);
    story.is_wrong("L1");
    story.0.stop_requested_at.insert(ONE, 60 * NANOS_PER_MILLI);
    story.is_good();
}
