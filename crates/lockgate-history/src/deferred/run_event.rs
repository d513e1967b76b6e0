//! Events that handlers log, one line each, so that a kill loses no written event.

use std::{collections::HashMap, fmt, str::FromStr};

use super::deferred_history::{ProcessDisturbance, RecordedRun, RunEnd};
use crate::{ProcessIncarnation, parse_lines};

/// Event of one handler, written and parsed as one line of words. The first number identifies the
/// run within its process; times are those of the history's clock in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    /// The run started: resource, job or `-`, attempt, fence, end of the validity time.
    Started(u64, String, String, u32, u64, u64),
    /// The lock was renewed: end of the validity time.
    Renewed(u64, u64),
    /// The run responded: status, and a body of one word.
    Ended(u64, u16, String),
    /// The run aborts its process.
    Aborted(u64),
    /// The run was dropped before its end.
    Dropped(u64),
    /// The process was stalled: start of the stall, and end of its effects. It is not about a run.
    Stalled(u64, u64),
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(run, resource, job, attempt, fence, valid) => {
                write!(f, "start {run} {resource} {job} {attempt} {fence} {valid}")
            }
            Self::Renewed(run, valid) => write!(f, "holds {run} {valid}"),
            Self::Ended(run, status, body) => write!(f, "end {run} {status} {body}"),
            Self::Aborted(run) => write!(f, "abort {run}"),
            Self::Dropped(run) => write!(f, "drop {run}"),
            Self::Stalled(since, to) => write!(f, "stall {since} {to}"),
        }
    }
}

impl FromStr for RunEvent {
    type Err = ();

    #[expect(clippy::indexing_slicing, reason = "what is split has at least one part")]
    fn from_str(text: &str) -> Result<Self, ()> {
        fn parse_part<T: FromStr>(words: &[&str], at: usize) -> Result<T, ()> {
            words.get(at).and_then(|word| word.parse().ok()).ok_or(())
        }
        let words: Vec<_> = text.split(' ').collect();
        let words = &words[..];
        let run = parse_part(words, 1)?;
        Ok(match words[0] {
            "start" => Self::Started(
                run,
                parse_part(words, 2)?,
                parse_part(words, 3)?,
                parse_part(words, 4)?,
                parse_part(words, 5)?,
                parse_part(words, 6)?,
            ),
            "holds" => Self::Renewed(run, parse_part(words, 2)?),
            "end" => Self::Ended(run, parse_part(words, 2)?, parse_part(words, 3)?),
            "abort" => Self::Aborted(run),
            "drop" => Self::Dropped(run),
            "stall" => Self::Stalled(run, parse_part(words, 2)?),
            _ => return Err(()),
        })
    }
}

/// Parses the runs in the log of one process; a line that a kill has cut off is ignored.
pub(super) fn parse_runs(life: ProcessIncarnation, text: &str) -> Vec<RecordedRun> {
    let mut runs: HashMap<u64, RecordedRun> = HashMap::new();
    let events =
        parse_lines(text).filter_map(|(at, event)| Some((at, event.parse::<RunEvent>().ok()?)));
    for (at, event) in events {
        match event {
            RunEvent::Started(number, resource, job, attempt, fence, valid) => {
                let job = (job != "-").then_some(job);
                runs.insert(
                    number,
                    RecordedRun {
                        incarnation: life,
                        resource,
                        job_id: job,
                        attempt,
                        fence,
                        started_at: at,
                        valid_until: valid,
                        end: None,
                        aborted_at: None,
                        dropped_at: None,
                    },
                );
            }
            RunEvent::Renewed(number, valid) => {
                if let Some(run) = runs.get_mut(&number) {
                    run.valid_until = valid;
                }
            }
            RunEvent::Ended(number, status, body) => {
                if let Some(run) = runs.get_mut(&number) {
                    run.end = Some(RunEnd { ended_at: at, status, body });
                }
            }
            RunEvent::Aborted(number) => {
                if let Some(run) = runs.get_mut(&number) {
                    run.aborted_at = Some(at);
                }
            }
            RunEvent::Dropped(number) => {
                if let Some(run) = runs.get_mut(&number) {
                    run.dropped_at = Some(at);
                }
            }
            RunEvent::Stalled(..) => {}
        }
    }
    let mut runs: Vec<_> = runs.into_values().collect();
    runs.sort_by_key(|run| run.started_at);
    runs
}

/// Parses the stalls in the log of one process.
pub(super) fn parse_stalls(
    life: ProcessIncarnation,
    text: &str,
) -> impl Iterator<Item = ProcessDisturbance> {
    parse_lines(text).filter_map(move |(_, event)| match event.parse() {
        Ok(RunEvent::Stalled(from, to)) => {
            Some(ProcessDisturbance { incarnation: Some(life), from, to })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_line;

    #[test]
    fn run_events_round_trip_through_a_log() {
        let events = [
            RunEvent::Started(1, "7".into(), "3-ab".into(), 2, 17, 99),
            RunEvent::Started(2, "8".into(), "-".into(), 0, 18, 99),
            RunEvent::Renewed(1, 120),
            RunEvent::Ended(1, 200, "x".into()),
            RunEvent::Aborted(2),
            RunEvent::Started(3, "8".into(), "-".into(), 0, 19, 99),
            RunEvent::Dropped(3),
            RunEvent::Stalled(4, 90),
        ];
        let text: String = events.iter().map(|event| format_line(5, 70, event)).collect();
        let life = ProcessIncarnation { process: 0, generation: 0 };
        let stalls: Vec<_> =
            parse_stalls(life, &text).map(|t| (t.incarnation, t.from, t.to)).collect();
        assert_eq!(stalls, [(Some(life), 4, 90)]);
        let mut runs = parse_runs(life, &format!("{text}6 70 holds 2 1000"));
        runs.sort_by_key(|run| run.fence);
        let [first, second, third] = &runs[..] else { panic!("{runs:?}") };
        assert_eq!(
            (first.job_id.as_deref(), first.attempt, first.valid_until),
            (Some("3-ab"), 2, 120)
        );
        assert_eq!(first.end, Some(RunEnd { ended_at: 5, status: 200, body: "x".into() }));
        assert_eq!((&second.job_id, second.valid_until, second.aborted_at), (&None, 99, Some(5)));
        assert_eq!((third.dropped_at, second.dropped_at), (Some(5), None));
    }
}
