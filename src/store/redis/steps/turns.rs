//! A turn of a task worker, as `tasks_turn.lua` reads it, and what that answers.

use std::time::Duration;

use crate::{
    clock::{micros, millis},
    error::Error,
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
        turned(Row::of(script::TURN.name, reply), call.ends.len())
    }
}

fn terms(call: &Turn) -> String {
    let Turn { node, worker, number, lease, limits, graves, .. } = call;
    let mixed = call.ends.iter().any(|end| !is_mere_success(end));
    // What was told of a turn is kept for ten minutes longer than its runs.
    format!(
        "{node}:{worker}.{number} {} {} {} {} {} {} {} {} {} {} {} {} {}",
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
