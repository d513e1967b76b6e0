//! Counts of the stored jobs, read from the data of each library. Not timed.

use std::collections::BTreeMap;

use redis::{Cmd, cmd, pipe};

use super::{QueueKind, task_queue};
use crate::{bench_result::BenchResult, redis_server::RedisServer};

/// Number of jobs in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JobCounts {
    /// Includes delayed jobs.
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    pub(crate) done: u64,
    /// Dead, failed, cancelled, expired, or in an unknown state.
    pub(crate) other: u64,
}

impl JobCounts {
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }
}

pub(crate) fn count_jobs(server: &mut RedisServer, kind: QueueKind) -> BenchResult<JobCounts> {
    match kind {
        QueueKind::Requests | QueueKind::BlockedRequests => count_requests(server),
        QueueKind::Tasks => task_queue::count_tasks(server.port()),
        QueueKind::BullmqRust | QueueKind::BullmqNode => count_keys(
            server,
            &["bull:bench:wait", "bull:bench:delayed", "bull:bench:prioritized"],
            &["bull:bench:active"],
            &["bull:bench:completed"],
            &["bull:bench:failed"],
        ),
        QueueKind::BeeQueue => count_keys(
            server,
            &["bq:bench:waiting", "bq:bench:delayed"],
            &["bq:bench:active"],
            &["bq:bench:succeeded"],
            &["bq:bench:failed"],
        ),
        QueueKind::ApalisRedis => count_keys(
            server,
            &["bench:active", "bench:scheduled"],
            &["bench:inflight:bench-worker"],
            &["bench:done"],
            &["bench:dead", "bench:failed"],
        ),
    }
}

fn count_keys(
    server: &mut RedisServer,
    waiting: &[&str],
    running: &[&str],
    done: &[&str],
    other: &[&str],
) -> BenchResult<JobCounts> {
    let mut sum =
        |keys: &[&str]| keys.iter().map(|key| key_length(server, key)).sum::<BenchResult<u64>>();
    Ok(JobCounts {
        waiting: sum(waiting)?,
        running: sum(running)?,
        done: sum(done)?,
        other: sum(other)?,
    })
}

/// Returns the number of elements of a key, which is a list, a set or a sorted set.
fn key_length(server: &mut RedisServer, key: &str) -> BenchResult<u64> {
    let key_type: String = server.query(cmd("TYPE").arg(key))?;
    let command = match key_type.as_str() {
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "none" => return Ok(0),
        unexpected => return Err(format!("`{key}` has the type {unexpected}").into()),
    };
    server.query(cmd(command).arg(key))
}

/// Counts jobs of lockgate, each of which has a hash with its state.
fn count_requests(server: &mut RedisServer) -> BenchResult<JobCounts> {
    let mut counts = JobCounts::default();
    for (state, count) in count_request_states(server)? {
        match state.as_str() {
            "queued" => counts.waiting += count,
            "running" => counts.running += count,
            "done" => counts.done += count,
            _ => counts.other += count,
        }
    }
    Ok(counts)
}

fn count_request_states(server: &mut RedisServer) -> BenchResult<BTreeMap<String, u64>> {
    let mut states = BTreeMap::new();
    let mut cursor = 0_u64;
    loop {
        let mut scan = Cmd::new();
        scan.arg("SCAN").arg(cursor).arg("MATCH").arg("lg:*}:j:*").arg("COUNT").arg(5_000);
        let (next, keys): (u64, Vec<String>) = server.query(&scan)?;
        if !keys.is_empty() {
            let mut get = pipe();
            for key in &keys {
                get.cmd("HGET").arg(key).arg("state");
            }
            for state in server.query_pipeline::<Option<String>>(&get)? {
                *states.entry(state.unwrap_or_default()).or_default() += 1;
            }
        }
        cursor = next;
        if cursor == 0 {
            return Ok(states);
        }
    }
}
