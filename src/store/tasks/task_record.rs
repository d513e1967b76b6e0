//! `TaskRecord`: stored form of a task, with `TaskHistory`, the history of its failures.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use super::TaskPushCommand;
use crate::{durations::saturating_micros, trace::TraceContext};

/// Maximum number of failures in a task's history; the latest are kept.
pub(crate) const MAX_HISTORY: usize = 8;

/// Maximum length of the reason of a failure, in bytes.
pub(crate) const MAX_REASON_BYTES: usize = 200;

/// Fault that ended an attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TaskFault {
    /// The handler returned an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The worker ended or stalled for longer than the lease.
    Crashed,
    /// The payload could not be decoded as the type that the worker expects.
    Undecodable,
}

impl TaskFault {
    pub(crate) fn wire_letter(self) -> &'static str {
        match self {
            Self::Failed => "f",
            Self::Panicked => "p",
            Self::Crashed => "c",
            Self::Undecodable => "u",
        }
    }

    pub(crate) fn from_letter(letter: &str) -> Option<Self> {
        let faults = [Self::Failed, Self::Panicked, Self::Crashed, Self::Undecodable];
        faults.into_iter().find(|fault| fault.wire_letter() == letter)
    }
}

impl fmt::Display for TaskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::Crashed => "crashed",
            Self::Undecodable => "undecodable",
        })
    }
}

/// Record of a task, stored as one text: `<pushed us> <retry after crash> <max attempts> <unique>[
/// <delay us>[ <traceparent>[ <tracestate>]]]\n<payload>`. The store writes `<pushed us>`. Readers
/// ignore what follows the parts that they know.
pub(crate) struct TaskRecord {
    pub(crate) pushed_us: u64,
    /// Time at which the task was due for the first time.
    pub(crate) due_us: u64,
    pub(crate) retry_after_crash: bool,
    pub(crate) max_attempts: u32,
    pub(crate) unique: Option<Arc<str>>,
    /// Context of the span that pushed the task.
    pub(crate) trace: Option<TraceContext>,
    pub(crate) payload: Bytes,
}

impl TaskRecord {
    /// Encodes the record without its first part, which the store writes.
    pub(crate) fn encode_tail(push: &TaskPushCommand) -> Vec<u8> {
        let unique = push.unique.as_ref().filter(|unique| unique.window.is_none());
        let unique = unique.map_or("", |unique| unique.name.as_str());
        let delay_and_trace = match (saturating_micros(push.delay), &push.trace) {
            (0, None) => String::new(),
            (delay, None) => format!(" {delay}"),
            (delay, Some(trace)) => format!(" {delay} {}", trace.to_text()),
        };
        let header = format!(
            " {} {} {unique}{delay_and_trace}\n",
            u8::from(push.retry_after_crash),
            push.max_attempts
        );
        let mut record_tail = Vec::with_capacity(header.len() + push.payload.len());
        record_tail.extend_from_slice(header.as_bytes());
        record_tail.extend_from_slice(&push.payload);
        record_tail
    }

    #[expect(clippy::indexing_slicing, reason = "the index is a position in the text")]
    pub(crate) fn decode(text: &Bytes) -> Option<Self> {
        let header_end = text.iter().position(|b| *b == b'\n')?;
        let mut fields = std::str::from_utf8(&text[..header_end]).ok()?.splitn(6, ' ');
        let mut next_field = || fields.next();
        let pushed_us: u64 = next_field()?.parse().ok()?;
        Some(Self {
            pushed_us,
            retry_after_crash: next_field()? == "1",
            max_attempts: next_field()?.parse().ok()?,
            unique: Some(next_field()?).filter(|name| !name.is_empty()).map(Into::into),
            due_us: pushed_us
                .saturating_add(next_field().and_then(|us| us.parse().ok()).unwrap_or(0)),
            trace: next_field().and_then(TraceContext::from_text),
            payload: text.slice(header_end + 1..),
        })
    }
}

/// Failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttemptFailure {
    pub(crate) at_us: u64,
    pub(crate) fault: TaskFault,
    pub(crate) reason: String,
}

/// History of a task with a failed attempt, stored beside the record: `<attempts> <crashes>\n`,
/// then a line for each of the latest failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TaskHistory {
    pub(crate) attempts: u32,
    pub(crate) crashes: u32,
    pub(crate) failures: Vec<AttemptFailure>,
}

impl TaskHistory {
    pub(crate) fn decode(text: &str) -> Self {
        let mut lines = text.split('\n');
        let mut counts =
            lines.next().unwrap_or_default().split(' ').map(|n| n.parse().unwrap_or(0));
        let (attempts, crashes) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
        let parse_failure = |line: &str| {
            let mut fields = line.splitn(3, ' ');
            let at_us = fields.next()?.parse().ok()?;
            let fault = TaskFault::from_letter(fields.next()?)?;
            let reason = fields.next().unwrap_or_default().to_owned();
            Some(AttemptFailure { at_us, fault, reason })
        };
        Self { attempts, crashes, failures: lines.filter_map(parse_failure).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    /// Payloads of any bytes, line breaks and what looks like a head included.
    #[test]
    fn payload_round_trips_and_any_bytes_decode_or_fail() {
        bolero::check!()
            .with_iterations(3_000)
            .with_type::<(Vec<u8>, u32, bool, u32, u32)>()
            .for_each(|(payload, max_attempts, again, pushed_us, delay_us)| {
                let (again, max_attempts) = (*again, *max_attempts);
                let queue = Key::custom("q");
                let traceparent = format!("00-{pushed_us:032x}-{delay_us:016x}-01");
                let trace = TraceContext::new(&traceparent, again.then_some("a=1,b=two words"));
                let push = TaskPushCommand {
                    queue,
                    id: crate::store::TaskId::new(),
                    delay: std::time::Duration::from_micros((*delay_us).into()),
                    unique: None,
                    retry_after_crash: again,
                    max_attempts,
                    trace: trace.clone(),
                    payload: payload.clone().into(),
                    capacity: (1, 1),
                };
                let text =
                    [pushed_us.to_string().into_bytes(), TaskRecord::encode_tail(&push)].concat();
                let read = TaskRecord::decode(&text.into()).expect("it is whole");
                assert_eq!((&read.payload[..], read.retry_after_crash), (&payload[..], again));
                let (pushed_us, delay_us) = (u64::from(*pushed_us), u64::from(*delay_us));
                assert_eq!((read.pushed_us, read.max_attempts), (pushed_us, max_attempts));
                assert_eq!(read.due_us, pushed_us + delay_us);
                assert!(read.unique.is_none());
                assert_eq!(read.trace, trace);
                let _ = TaskRecord::decode(&payload.clone().into());
            });
    }
}
