//! Task polls: the arguments of `TASKS_SETTLE_AND_POLL`, and its reply.

use std::time::Duration;

use super::ScriptArgs;
use crate::{
    durations::{ceil_millis, saturating_micros},
    error::Error,
    store::{
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
        tasks::{
            StartedTask, TaskId, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskSettlement,
        },
    },
};

impl RedisBackend {
    pub(super) async fn call_task_poll(
        &self,
        call: TaskPollCommand,
    ) -> Result<TaskPollOutcome, Error> {
        let keys = [
            self.keys.queue_key(&call.queue, "z", ""),
            self.keys.queue_key(&call.queue, "zr", &call.worker),
        ];
        let mut args: ScriptArgs = vec![poll_parameters(&call).into()];
        call.settlements.iter().for_each(|settlement| write_settlement(settlement, &mut args));
        let reply = self
            .call_script(call.queue.shard(), &script_sources::TASKS_SETTLE_AND_POLL, &keys, &args)
            .await?;
        parse_poll_reply(
            ReplyReader::new(script_sources::TASKS_SETTLE_AND_POLL.name, reply),
            call.settlements.len(),
        )
    }
}

fn poll_parameters(call: &TaskPollCommand) -> String {
    let TaskPollCommand { node, worker, poll_number, lease, limits, dead_letter_limits, .. } = call;
    let has_other_outcomes =
        call.settlements.iter().any(|settlement| !is_plain_success(settlement));
    // The result of a poll is kept for ten minutes longer than the leases of its runs.
    format!(
        "{node}:{worker}.{poll_number} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        call.max_runs + 1,
        u64::from(call.can_stay_idle),
        u64::from(has_other_outcomes),
        saturating_micros(*lease),
        ceil_millis(*lease + Duration::from_secs(600)),
        saturating_micros(call.idle_timeout),
        limits.max_running,
        limits.start_interval_us,
        limits.start_burst,
        saturating_micros(dead_letter_limits.retention),
        dead_letter_limits.max_count,
        dead_letter_limits.max_bytes,
        dead_letter_limits.max_crashes,
    )
}

fn is_plain_success(settlement: &TaskSettlement) -> bool {
    matches!(settlement.outcome, TaskOutcome::Done) && settlement.unique_key.is_none()
}

fn write_settlement(settlement: &TaskSettlement, args: &mut ScriptArgs) {
    let letter =
        |plain: &'static str, with_key| settlement.unique_key.as_ref().map_or(plain, |_| with_key);
    let bytes = settlement.record_bytes;
    args.push(match &settlement.outcome {
        TaskOutcome::Done => format!("{}{bytes}", letter("d", "D")).into(),
        TaskOutcome::Retry { delay, fault, reason } => {
            let (letter, delay) = (letter("r", "R"), saturating_micros(*delay));
            format!("{letter}{bytes} {delay} {} {reason}", fault.wire_letter()).into()
        }
        TaskOutcome::Dead { fault, reason } => {
            format!("{}{bytes} 0 {} {reason}", letter("k", "K"), fault.wire_letter()).into()
        }
        TaskOutcome::Cancelled => format!("{}{bytes}", letter("c", "C")).into(),
        TaskOutcome::ReturnToQueue { delay } => {
            format!("{}{bytes} {}  ", letter("b", "B"), saturating_micros(*delay)).into()
        }
    });
    args.push(settlement.run.to_member().into_bytes());
    args.extend(settlement.unique_key.iter().map(|unique| unique.as_bytes().to_vec()));
}

fn parse_poll_reply(
    mut reader: ReplyReader,
    settlement_count: usize,
) -> Result<TaskPollOutcome, Error> {
    let mut settled: Vec<bool> = reader.read_text()?.bytes().map(|b| b == b'1').collect();
    // A poll that arrives after its successor gets no results: its runs are over.
    settled.resize(settlement_count, false);
    let next_poll_in = reader.read_text()?.parse().ok().map(Duration::from_micros);
    let (idle_state, [lost_runs, dead_runs]) =
        parse_idle_state(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?;
    let mut started = Vec::new();
    while !reader.is_empty() {
        let id = TaskId::parse(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?;
        let attempt = u32::try_from(reader.read_number()?).unwrap_or(u32::MAX);
        started.push(StartedTask { id, attempt, record: reader.read_bytes()? });
    }
    Ok(TaskPollOutcome {
        settled,
        started,
        next_poll_in,
        is_listed_idle: idle_state > 0,
        is_queue_idle: idle_state > 1,
        lost_runs,
        dead_runs,
    })
}

/// Parses the state of the worker, and the numbers of runs that were taken back, if any were.
fn parse_idle_state(text: &str) -> Option<(u32, [u32; 2])> {
    let numbers: Vec<u32> = text.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    match *numbers {
        [idle_state] => Some((idle_state, [0, 0])),
        [idle_state, lost_runs, dead_runs] => Some((idle_state, [lost_runs, dead_runs])),
        _ => None,
    }
}
