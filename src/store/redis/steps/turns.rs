//! A turn of a task worker, as `tasks_turn.lua` reads it, and what that answers.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::{
    clock::{micros, millis},
    error::{Error, ErrorKind},
    store::{
        redis::{Redis, read::Row, script},
        tasks::{End, EndAs, Started, TaskId, Turn, Turned},
    },
};

type Args = Vec<Vec<u8>>;

impl Redis {
    pub(super) async fn do_turn(&self, call: Turn) -> Result<Turned, Error> {
        let keys =
            [self.keys.task(&call.queue, "z", ""), self.keys.task(&call.queue, "zr", &call.worker)];
        let mut args: Args = vec![terms(&call).into()];
        call.ends.iter().for_each(|end| write_end(end, &mut args));
        let reply = self.script(call.queue.shard(), &script::TURN, &keys, &args).await?;
        match reply {
            Value::BulkString(text) => next_run(&text.into())
                .ok_or_else(|| Error::new(ErrorKind::Protocol, script::TURN.name)),
            list => turned(Row::of(script::TURN.name, list), call.ends.len()),
        }
    }
}

fn terms(call: &Turn) -> String {
    let Turn { node, worker, number, lease, limits, graves, .. } = call;
    let mixed = call.ends.iter().any(|end| !is_mere_success(end));
    let limited = limits.running > 0 || limits.interval_us > 0;
    // One run has ended and one is wanted: whoever had an idle place before has none now.
    let usual = call.ends.len() == 1 && call.want == 1 && !mixed && !limited;
    let usual = usual && !call.listed && !call.idle.is_zero();
    let letter = if usual { 'u' } else { 'x' };
    // What was told of a turn is kept for ten minutes longer than its runs.
    format!(
        "{letter}{node}:{worker}.{number} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        call.want + 1,
        u64::from(call.listed),
        u64::from(mixed),
        micros(*lease),
        millis(*lease + Duration::from_secs(600)),
        micros(call.idle),
        limits.running,
        limits.interval_us,
        limits.burst,
        micros(graves.keep),
        graves.most,
        graves.bytes,
        graves.crashes,
    )
}

fn is_mere_success(end: &End) -> bool {
    matches!(end.verdict, EndAs::Done) && end.unique.is_none()
}

fn write_end(end: &End, args: &mut Args) {
    let letter = |small: &'static str, capital| end.unique.as_ref().map_or(small, |_| capital);
    let bytes = end.bytes;
    args.push(match &end.verdict {
        EndAs::Done => format!("{}{bytes}", letter("d", "D")).into(),
        EndAs::Retry { delay, fault, reason } => {
            let (letter, delay) = (letter("r", "R"), micros(*delay));
            format!("{letter}{bytes} {delay} {} {reason}", fault.letter()).into()
        }
        EndAs::Dead { fault, reason } => {
            format!("{}{bytes} 0 {} {reason}", letter("k", "K"), fault.letter()).into()
        }
        EndAs::Back { delay } => format!("{}{bytes} {}  ", letter("b", "B"), micros(*delay)).into(),
    });
    args.push(end.run.member().into_bytes());
    args.extend(end.unique.iter().map(|unique| unique.as_bytes().to_vec()));
}

/// What `tasks_next.lua` answers: the end stands, and this run has begun.
fn next_run(text: &Bytes) -> Option<Turned> {
    let rest = text.strip_prefix(b"1")?;
    let (id, rest) = rest.split_at_checked(TaskId::LENGTH)?;
    let cut = rest.iter().position(|&byte| byte == b' ')?;
    let (attempt, record) = rest.split_at_checked(cut)?;
    let id = TaskId::parse(std::str::from_utf8(id).ok()?)?;
    let attempt = std::str::from_utf8(attempt).ok()?.parse().unwrap_or(u32::MAX);
    let run = Started { id, attempt, record: text.slice_ref(record.get(1..)?) };
    Some(Turned { stood: vec![true], runs: vec![run], ..Turned::default() })
}

fn turned(mut row: Row, ends: usize) -> Result<Turned, Error> {
    let mut stood: Vec<bool> = row.text()?.bytes().map(|b| b == b'1').collect();
    // A turn that was too late is told nothing: it has nothing any more.
    stood.resize(ends, false);
    let wait = row.text()?.parse().ok().map(Duration::from_micros);
    let place = row.number()?;
    let mut runs = Vec::new();
    while !row.is_empty() {
        let id = TaskId::parse(&row.text()?).ok_or_else(|| row.odd())?;
        let attempt = u32::try_from(row.number()?).unwrap_or(u32::MAX);
        runs.push(Started { id, attempt, record: row.bytes()? });
    }
    Ok(Turned { stood, runs, wait, listed: place > 0, quiet: place > 1 })
}
