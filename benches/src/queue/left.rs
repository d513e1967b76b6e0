//! What of the jobs is in the server, as each of them keeps it. Not timed.

use std::collections::BTreeMap;

use redis::{Cmd, cmd, pipe};

use super::Kind;
use crate::{outcome::Outcome, redis::Server};

/// How many jobs are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Delayed ones too.
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    pub(crate) done: u64,
    /// Dead, failed, cancelled, expired, or in no state that is known here.
    pub(crate) other: u64,
}

impl Left {
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }
}

pub(crate) fn left(server: &mut Server, kind: Kind) -> Outcome<Left> {
    match kind {
        Kind::Requests | Kind::Busy => requests(server),
        #[cfg(feature = "queue-tasks")]
        Kind::Tasks => super::tasks::left(server.port()),
        #[cfg(not(feature = "queue-tasks"))]
        Kind::Tasks => Err(format!("{kind} is not in this build").into()),
        Kind::BullmqRust | Kind::BullmqNode => counted(
            server,
            &["bull:bench:wait", "bull:bench:delayed", "bull:bench:prioritized"],
            &["bull:bench:active"],
            &["bull:bench:completed"],
            &["bull:bench:failed"],
        ),
        Kind::BeeQueue => counted(
            server,
            &["bq:bench:waiting", "bq:bench:delayed"],
            &["bq:bench:active"],
            &["bq:bench:succeeded"],
            &["bq:bench:failed"],
        ),
        Kind::ApalisRedis => counted(
            server,
            &["bench:active", "bench:scheduled"],
            &["bench:inflight:bench-worker"],
            &["bench:done"],
            &["bench:dead", "bench:failed"],
        ),
    }
}

fn counted(
    server: &mut Server,
    waiting: &[&str],
    running: &[&str],
    done: &[&str],
    other: &[&str],
) -> Outcome<Left> {
    let mut sum = |keys: &[&str]| keys.iter().map(|key| length(server, key)).sum::<Outcome<u64>>();
    Ok(Left {
        waiting: sum(waiting)?,
        running: sum(running)?,
        done: sum(done)?,
        other: sum(other)?,
    })
}

/// Of whatever is under this key: lists, sets and sorted sets have one command each.
fn length(server: &mut Server, key: &str) -> Outcome<u64> {
    let kind: String = server.ask(cmd("TYPE").arg(key))?;
    let command = match kind.as_str() {
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "none" => return Ok(0),
        other => return Err(format!("`{key}` is a {other}").into()),
    };
    server.ask(cmd(command).arg(key))
}

/// Ours have a hash each, with their state.
fn requests(server: &mut Server) -> Outcome<Left> {
    let mut left = Left::default();
    for (state, count) in states(server)? {
        match state.as_str() {
            "queued" => left.waiting += count,
            "running" => left.running += count,
            "done" => left.done += count,
            _ => left.other += count,
        }
    }
    Ok(left)
}

fn states(server: &mut Server) -> Outcome<BTreeMap<String, u64>> {
    let mut states = BTreeMap::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = Cmd::new();
        scan.arg("SCAN").arg(cursor).arg("MATCH").arg("lg:*}:j:*").arg("COUNT").arg(5_000);
        let (next, keys): (u64, Vec<String>) = server.ask(&scan)?;
        if !keys.is_empty() {
            let mut get = pipe();
            for key in &keys {
                get.cmd("HGET").arg(key).arg("state");
            }
            for state in server.ask_all::<Option<String>>(&get)? {
                *states.entry(state.unwrap_or_default()).or_default() += 1;
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(states);
        }
    }
}
