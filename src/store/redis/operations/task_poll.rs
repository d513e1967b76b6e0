//! Task polls: the arguments of `TASKS_POLL`, and its reply.

use std::time::Duration;

use crate::{
    clock::{ceil_millis, saturating_micros},
    error::Error,
    store::{
        redis::{RedisBackend, reply_reader::ReplyReader, scripts},
        tasks::{
            StartedTask, TaskId, TaskOutcome, TaskPollCommand, TaskPollOutcome, TaskSettlement,
        },
    },
};

type PollScriptArgs = Vec<Vec<u8>>;

impl RedisBackend {
    pub(super) async fn do_poll_tasks(
        &self,
        call: TaskPollCommand,
    ) -> Result<TaskPollOutcome, Error> {
        let keys = [
            self.keys.queue_key(&call.queue, "z", ""),
            self.keys.queue_key(&call.queue, "zr", &call.worker),
        ];
        let mut args: PollScriptArgs = vec![poll_header(&call).into()];
        call.settlements.iter().for_each(|end| write_settlement(end, &mut args));
        let reply =
            self.call_script(call.queue.shard(), &scripts::TASKS_POLL, &keys, &args).await?;
        parse_poll_reply(ReplyReader::new(scripts::TASKS_POLL.name, reply), call.settlements.len())
    }
}

fn poll_header(call: &TaskPollCommand) -> String {
    let TaskPollCommand {
        node,
        worker,
        poll_number: number,
        lease,
        limits,
        dead_letter_limits: graves,
        ..
    } = call;
    let mixed = call.settlements.iter().any(|end| !is_plain_success(end));
    // The result of a poll is kept for ten minutes longer than the leases of its runs.
    format!(
        "{node}:{worker}.{number} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        call.max_runs + 1,
        u64::from(call.can_stay_idle),
        u64::from(mixed),
        saturating_micros(*lease),
        ceil_millis(*lease + Duration::from_secs(600)),
        saturating_micros(call.idle_timeout),
        limits.max_running,
        limits.start_interval_us,
        limits.start_burst,
        saturating_micros(graves.retention),
        graves.max_count,
        graves.max_bytes,
        graves.max_crashes,
    )
}

fn is_plain_success(end: &TaskSettlement) -> bool {
    matches!(end.outcome, TaskOutcome::Done) && end.unique_key.is_none()
}

fn write_settlement(end: &TaskSettlement, args: &mut PollScriptArgs) {
    let letter = |small: &'static str, capital| end.unique_key.as_ref().map_or(small, |_| capital);
    let bytes = end.record_bytes;
    args.push(match &end.outcome {
        TaskOutcome::Done => format!("{}{bytes}", letter("d", "D")).into(),
        TaskOutcome::Retry { delay, fault, reason } => {
            let (letter, delay) = (letter("r", "R"), saturating_micros(*delay));
            format!("{letter}{bytes} {delay} {} {reason}", fault.wire_letter()).into()
        }
        TaskOutcome::Dead { fault, reason } => {
            format!("{}{bytes} 0 {} {reason}", letter("k", "K"), fault.wire_letter()).into()
        }
        TaskOutcome::ReturnToQueue { delay } => {
            format!("{}{bytes} {}  ", letter("b", "B"), saturating_micros(*delay)).into()
        }
    });
    args.push(end.run.to_member().into_bytes());
    args.extend(end.unique_key.iter().map(|unique| unique.as_bytes().to_vec()));
}

fn parse_poll_reply(mut row: ReplyReader, ends: usize) -> Result<TaskPollOutcome, Error> {
    let mut stood: Vec<bool> = row.read_text()?.bytes().map(|b| b == b'1').collect();
    // A poll that arrives after its successor gets no results: its runs are over.
    stood.resize(ends, false);
    let wait = row.read_text()?.parse().ok().map(Duration::from_micros);
    let place = row.read_number()?;
    let mut runs = Vec::new();
    while !row.is_empty() {
        let id = TaskId::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())?;
        let attempt = u32::try_from(row.read_number()?).unwrap_or(u32::MAX);
        runs.push(StartedTask { id, attempt, record: row.read_bytes()? });
    }
    Ok(TaskPollOutcome {
        settled: stood,
        started: runs,
        next_poll_in: wait,
        is_listed_idle: place > 0,
        is_queue_idle: place > 1,
    })
}
