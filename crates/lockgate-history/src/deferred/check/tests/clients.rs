//! What clients were told.

use super::{ONE, Story, TWO, check};
use crate::{
    MS,
    deferred::{Answer, Trouble},
};

/// `at once` ran on process one, and its client was told so; and how long the others may wait.
fn at_once() -> Story {
    let mut story = Story::good();
    story.0.patience = 1000 * MS;
    story.ran("", 0, 30, [40, 50], 200);
    story.asked([40, 51], Answer::Given(200, "-0".to_owned()));
    story
}

#[test]
fn what_clients_were_told_is_good() {
    let mut story = at_once();
    // A request that ran has had its lock, one that did not has not.
    story.asked([52, 53], Answer::Given(409, "busy".to_owned()));
    story.asked([52, 53], Answer::Accepted);
    story.is_good();
    let (looked, _) = check(&story.0);
    assert_eq!((looked.answers, looked.longest, looked.untouched), (3, 11 * MS, 3));
}

#[test]
fn d4_a_client_that_was_told_what_no_handler_said() {
    for answer in [(200, "--0-7"), (500, "-0"), (500, "the lock was lost")] {
        let mut story = at_once();
        story.asked([60, 70], Answer::Given(answer.0, answer.1.to_owned()));
        story.is_wrong("D4");
    }
    // Its handler began, and did not come to its end.
    let mut story = at_once();
    story.run(2).end = None;
    story.0.asked.push(story.0.asked[0].clone());
    story.asked([40, 60], Answer::Nothing);
    story.0.killed.insert(ONE, 55 * MS);
    story.is_wrong("D4");
}

#[test]
fn d3_a_request_that_ran_at_once_twice() {
    let mut story = at_once();
    story.ran("", 0, 31, [52, 60], 200);
    story.run(3).end.as_mut().expect("it ended").body = "-1".to_owned();
    story.is_wrong("D3");
    // Somebody has asked for it who had no answer, because his node was cut off.
    story.asked([52, 60], Answer::Nothing);
    story.0.troubles.push(Trouble { life: Some(ONE), from: 55 * MS, to: 56 * MS });
    story.is_good();
}

#[test]
fn l1_a_client_that_is_not_served() {
    for answer in [
        Answer::Nothing,
        Answer::Perhaps,
        Answer::Given(503, String::new()),
        Answer::Given(404, String::new()),
    ] {
        let mut story = at_once();
        story.asked([52, 60], answer.clone());
        story.is_wrong("L1");
        // Something is done to the one it asks; but that makes no 404.
        let unknown = matches!(answer, Answer::Given(404, _));
        story.0.troubles.push(Trouble { life: None, from: 55 * MS, to: 56 * MS });
        if unknown {
            story.is_wrong("L1");
        } else {
            story.is_good();
        }
        story.0.troubles[0] = Trouble { life: Some(TWO), from: 55 * MS, to: 56 * MS };
        story.is_wrong("L1");
    }
}

/// The machine has no time for a process: then it says that the store is away, or answers late, and nothing else.
#[test]
fn l1_what_the_machine_excuses_is_counted() {
    let away = [Answer::Given(503, String::new()), Answer::Perhaps];
    for answer in away.iter().chain(&[Answer::Nothing, Answer::Given(404, String::new())]) {
        let mut story = at_once();
        story.asked([52, 60], answer.clone());
        for (life, from, excused) in
            [(Some(ONE), 59, 1), (None, 10, 1), (Some(ONE), 60, 0), (Some(TWO), 10, 0)]
        {
            story.0.stalls = vec![Trouble { life, from: from * MS, to: 70 * MS }];
            let excused = if away.contains(answer) { excused } else { 0 };
            if excused == 1 {
                story.is_good();
            } else {
                story.is_wrong("L1");
            }
            assert_eq!(check(&story.0).0.excused, excused, "{answer:?} {life:?} {from}");
        }
    }
}

#[test]
fn l1_what_is_good_needs_no_excuse() {
    let mut story = at_once();
    story.0.stalls.push(Trouble { life: Some(ONE), from: 10 * MS, to: 70 * MS });
    let (looked, _) = check(&story.0);
    assert_eq!((looked.excused, looked.answers), (0, 0));
}

#[test]
fn l1_an_answer_that_comes_late() {
    let mut story = at_once();
    story.asked([52, 1053], Answer::Accepted);
    story.is_wrong("L1");
    story.0.stalls.push(Trouble { life: Some(ONE), from: 55 * MS, to: 56 * MS });
    story.is_good();
    assert_eq!(check(&story.0).0.excused, 1);
    let mut story = at_once();
    story.asked([52, 1053], Answer::Accepted);
    story.0.stopping.insert(ONE, 2000 * MS);
    story.is_wrong("L1");
    story.0.stopping.insert(ONE, 60 * MS);
    story.is_good();
}
