//! The clients' side: D4, D3 and L1 of what they were told at once.

use std::collections::BTreeSet;

use super::Looked;
use crate::{
    Check, Life, MS, Violation,
    deferred::books::{Answer, Asked, History, Run},
};

/// What a client is told whose resource is busy.
const BUSY: u16 = 409;

/// D4: what a client was given as the response of a handler is that of one run, which came to its end with it.
pub(super) fn got_what_ran(history: &History, resource: &str) -> Option<Violation> {
    let answers = answers(history, resource);
    let given = answers.filter_map(|asked| match &asked.answer {
        Answer::Given(status @ (200 | 500), body) => Some((*status, body)),
        _ => None,
    });
    for (status, body) in given {
        let runs: Vec<_> = runs(history, resource).filter(|run| gave(run, status, body)).collect();
        if runs.len() != 1 {
            let shown = history.excerpt(runs.iter().copied());
            let many = runs.len();
            let told =
                format!("a client of {resource} was told {status} {body:?} of {many} runs:{shown}");
            return Some(Violation::new(Check::D4, told));
        }
    }
    None
}

/// D3: what ran at once is what one client was told, or what a client may have asked for that had no such answer. Judged if
/// all clients have written down what they were told.
pub(super) fn ran_once(history: &History, resource: &str) -> Option<Violation> {
    if history.patience == 0 {
        return None;
    }
    let told: BTreeSet<_> =
        answers(history, resource).filter_map(|asked| body(&asked.answer)).collect();
    let heard = |run: &&Run| run.end.as_ref().is_some_and(|end| told.contains(&*end.body));
    let at_once = runs(history, resource).filter(|run| run.job.is_none());
    let strange: Vec<_> = at_once.filter(|run| !heard(run)).collect();
    // It ran, and then its connection ended, or its lock was lost and that is what its client was told.
    let may_be = |asked: &&Asked| match asked.answer {
        Answer::Nothing => true,
        Answer::Given(status, _) => status > 500,
        Answer::Accepted | Answer::Perhaps => false,
    };
    let may_be = answers(history, resource).filter(may_be).count();
    (strange.len() > may_be).then(|| {
        let (many, shown) = (strange.len(), history.excerpt(strange));
        let told =
            format!("{many} ran at once on {resource} for no client, at most {may_be}:{shown}");
        Violation::new(Check::D3, told)
    })
}

/// L1: whom nobody does anything to answers in time, and with nothing but what a handler said, a 202, or that the
/// resource is busy. Whom the machine has no time for may answer late, or that the store is away, and nothing else; how many
/// do is counted.
pub(super) fn are_answered(history: &History, looked: &mut Looked) -> Vec<Violation> {
    if history.patience == 0 {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for asked in &history.asked {
        let Asked { life, sent, told, answer, .. } = asked;
        let served = matches!(answer, Answer::Given(200 | 500 | BUSY, _) | Answer::Accepted);
        // Whatever is done to anybody, no request that clients make has any other 4xx.
        let never = !served && matches!(answer, Answer::Given(400..=499, _));
        if !never && history.is_troubled(*life, *sent, *told) {
            continue;
        }
        let took = told.saturating_sub(*sent);
        let good = served && took <= history.patience;
        if history.stood_still(*life, *sent, *told) {
            if !good && (served || is_away(answer)) {
                looked.excused += 1;
                continue;
            }
        } else {
            looked.answers += 1;
            looked.longest = looked.longest.max(took);
        }
        if !good {
            wrong.push(unserved(asked, took));
        }
    }
    wrong
}

/// Said by a process that had no answer from its store in time, or whose lock had ended by then.
fn is_away(answer: &Answer) -> bool {
    matches!(answer, Answer::Given(503, _) | Answer::Perhaps)
}

fn unserved(asked: &Asked, took: u64) -> Violation {
    let Asked { resource, life, sent, answer, .. } = asked;
    let Life { process, number } = life.unwrap_or(Life { process: 0, number: 0 });
    let told = format!(
        "a client of {resource} was told {} by process {process}.{number} after {} ms, sent {}",
        shown(answer),
        took / MS,
        sent / 1000,
    );
    Violation::new(Check::L1, told)
}

fn shown(answer: &Answer) -> String {
    match answer {
        Answer::Given(status, _) => status.to_string(),
        other => format!("{other:?}"),
    }
}

fn body(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::Given(200 | 500, body) => Some(body),
        _ => None,
    }
}

fn gave(run: &Run, status: u16, body: &str) -> bool {
    run.end.as_ref().is_some_and(|end| end.status == status && end.body == body)
}

fn answers<'a>(history: &'a History, resource: &str) -> impl Iterator<Item = &'a Asked> {
    history.asked.iter().filter(move |asked| asked.resource == resource)
}

fn runs<'a>(history: &'a History, resource: &str) -> impl Iterator<Item = &'a Run> {
    history.runs.iter().filter(move |run| run.resource == resource)
}
