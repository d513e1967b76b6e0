//! `RunEvent`: events that handlers log, one line each, so that a kill loses no written event.

use std::{collections::HashMap, fmt, str::FromStr};

use super::deferred_records::{ProcessDisturbance, RecordedRun, RunEnd};
use crate::{ProcessIncarnation, parse_lines};

/// Event of one handler, written and parsed as one line of space-separated parts. `run` identifies
/// the run within its process; times are those of the history's clock in ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    /// The run started.
    Started {
        /// Number of the run.
        run: u64,
        /// Resource of the lock that it runs under.
        resource: String,
        /// Id of its job, or `-` for a request that runs directly.
        job: String,
        /// Number of the attempt, from 1; 0 for a request that runs directly.
        attempt: u32,
        /// Fence of its lock.
        fence: u64,
        /// End of the validity time of its lock in ns.
        valid_until: u64,
    },
    /// The lock was renewed.
    Renewed {
        /// Number of the run.
        run: u64,
        /// End of the validity time of its lock in ns.
        valid_until: u64,
    },
    /// The run responded.
    Ended {
        /// Number of the run.
        run: u64,
        /// Status of the response.
        status: u16,
        /// Body of the response, one word.
        body: String,
    },
    /// The run aborts its process.
    Aborted {
        /// Number of the run.
        run: u64,
    },
    /// The run was dropped before its end.
    Dropped {
        /// Number of the run.
        run: u64,
    },
    /// The process was stalled. This event is not about a run.
    Stalled {
        /// Start of the stall in ns.
        from: u64,
        /// End of its effects in ns.
        to: u64,
    },
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { run, resource, job, attempt, fence, valid_until } => {
                write!(f, "start {run} {resource} {job} {attempt} {fence} {valid_until}")
            }
            Self::Renewed { run, valid_until } => write!(f, "holds {run} {valid_until}"),
            Self::Ended { run, status, body } => write!(f, "end {run} {status} {body}"),
            Self::Aborted { run } => write!(f, "abort {run}"),
            Self::Dropped { run } => write!(f, "drop {run}"),
            Self::Stalled { from, to } => write!(f, "stall {from} {to}"),
        }
    }
}

impl FromStr for RunEvent {
    type Err = ();

    #[expect(clippy::indexing_slicing, reason = "a split text has at least one part")]
    fn from_str(text: &str) -> Result<Self, ()> {
        fn parse_part<T: FromStr>(parts: &[&str], index: usize) -> Result<T, ()> {
            parts.get(index).and_then(|part| part.parse().ok()).ok_or(())
        }
        let parts: Vec<_> = text.split(' ').collect();
        let parts = &parts[..];
        let run = parse_part(parts, 1)?;
        Ok(match parts[0] {
            "start" => Self::Started {
                run,
                resource: parse_part(parts, 2)?,
                job: parse_part(parts, 3)?,
                attempt: parse_part(parts, 4)?,
                fence: parse_part(parts, 5)?,
                valid_until: parse_part(parts, 6)?,
            },
            "holds" => Self::Renewed { run, valid_until: parse_part(parts, 2)? },
            "end" => {
                Self::Ended { run, status: parse_part(parts, 2)?, body: parse_part(parts, 3)? }
            }
            "abort" => Self::Aborted { run },
            "drop" => Self::Dropped { run },
            "stall" => Self::Stalled { from: run, to: parse_part(parts, 2)? },
            _ => return Err(()),
        })
    }
}

/// Parses the runs in the log of one process; a line that a kill has cut off is ignored.
pub(super) fn parse_runs(incarnation: ProcessIncarnation, text: &str) -> Vec<RecordedRun> {
    let mut runs: HashMap<u64, RecordedRun> = HashMap::new();
    let events =
        parse_lines(text).filter_map(|(at, event)| Some((at, event.parse::<RunEvent>().ok()?)));
    for (at, event) in events {
        match event {
            RunEvent::Started { run: number, resource, job, attempt, fence, valid_until } => {
                let run = RecordedRun {
                    incarnation,
                    resource,
                    job_id: (job != "-").then_some(job),
                    attempt,
                    fence,
                    started_at: at,
                    valid_until,
                    end: None,
                    aborted_at: None,
                    dropped_at: None,
                };
                runs.insert(number, run);
            }
            RunEvent::Renewed { run, valid_until } => {
                if let Some(run) = runs.get_mut(&run) {
                    run.valid_until = valid_until;
                }
            }
            RunEvent::Ended { run, status, body } => {
                if let Some(run) = runs.get_mut(&run) {
                    run.end = Some(RunEnd { ended_at: at, status, body });
                }
            }
            RunEvent::Aborted { run } => {
                if let Some(run) = runs.get_mut(&run) {
                    run.aborted_at = Some(at);
                }
            }
            RunEvent::Dropped { run } => {
                if let Some(run) = runs.get_mut(&run) {
                    run.dropped_at = Some(at);
                }
            }
            RunEvent::Stalled { .. } => {}
        }
    }
    let mut runs: Vec<_> = runs.into_values().collect();
    runs.sort_by_key(|run| run.started_at);
    runs
}

/// Parses the stalls in the log of one process.
pub(super) fn parse_stalls(
    incarnation: ProcessIncarnation,
    text: &str,
) -> impl Iterator<Item = ProcessDisturbance> {
    parse_lines(text).filter_map(move |(_, event)| match event.parse() {
        Ok(RunEvent::Stalled { from, to }) => {
            Some(ProcessDisturbance { incarnation: Some(incarnation), from, to })
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
        let direct_run = |run, fence| RunEvent::Started {
            run,
            resource: "8".into(),
            job: "-".into(),
            attempt: 0,
            fence,
            valid_until: 99,
        };
        let events = [
            RunEvent::Started {
                run: 1,
                resource: "7".into(),
                job: "3-ab".into(),
                attempt: 2,
                fence: 17,
                valid_until: 99,
            },
            direct_run(2, 18),
            RunEvent::Renewed { run: 1, valid_until: 120 },
            RunEvent::Ended { run: 1, status: 200, body: "x".into() },
            RunEvent::Aborted { run: 2 },
            direct_run(3, 19),
            RunEvent::Dropped { run: 3 },
            RunEvent::Stalled { from: 4, to: 90 },
        ];
        let text: String = events.iter().map(|event| format_line(5, 70, event)).collect();
        let incarnation = ProcessIncarnation { process: 0, generation: 0 };
        let stalls: Vec<_> =
            parse_stalls(incarnation, &text).map(|t| (t.incarnation, t.from, t.to)).collect();
        assert_eq!(stalls, [(Some(incarnation), 4, 90)]);
        let mut runs = parse_runs(incarnation, &format!("{text}6 70 holds 2 1000"));
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
