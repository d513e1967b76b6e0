//! Poll for locks with due jobs, in some shards: `poll_due_locks_and_jobs.lua`.
//!
//! A single server is polled by one call. In a cluster there is one call per shard, all at once.
//! Shards of an unavailable cluster node are left out; the others are served.

use std::time::Duration;

use futures_util::future::join_all;

use super::number_arg;
use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{DueLocks, JobId},
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

/// Time after which an unreachable shard is polled again.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(300);

impl RedisBackend {
    pub(super) async fn poll_due_locks(
        &self,
        shards: Vec<u16>,
        max_locks: usize,
    ) -> Result<Vec<DueLocks>, Error> {
        let Some(&first_shard) = shards.first() else {
            return Ok(Vec::new());
        };
        if self.keys.is_clustered() {
            return self.poll_shards_separately(&shards, max_locks).await;
        }
        let keys: Vec<_> = shards.iter().map(|&shard| self.keys.shard_key(shard, "due")).collect();
        let args = [number_arg(max_locks as u64), number_arg(shards.len() as u64)];
        let reply = self
            .call_script(first_shard, &script_sources::POLL_DUE_LOCKS_AND_JOBS, &keys, &args)
            .await?;
        let mut reader = ReplyReader::new("poll_due_locks_and_jobs", reply);
        shards.iter().map(|_| parse_due_locks(reader.read_list()?)).collect()
    }

    /// Polls each shard; fails if all of them are unreachable.
    async fn poll_shards_separately(
        &self,
        shards: &[u16],
        max_locks: usize,
    ) -> Result<Vec<DueLocks>, Error> {
        let poll_shard = async |&shard: &u16| {
            let (keys, args) = (
                [self.keys.shard_key(shard, "due")],
                [number_arg(max_locks as u64), number_arg(1)],
            );
            let mut reader = ReplyReader::new(
                "poll_due",
                self.call_script(shard, &script_sources::POLL_DUE_LOCKS_AND_JOBS, &keys, &args)
                    .await?,
            );
            parse_due_locks(reader.read_list()?)
        };
        let mut polls = join_all(shards.iter().map(poll_shard)).await;
        if polls.iter().all(Result::is_err)
            && let Some(Err(error)) = polls.pop()
        {
            return Err(error);
        }
        let mut remaining = max_locks;
        let bounded = polls.into_iter().map(|poll| {
            let Ok(mut due) = poll else {
                return DueLocks { locks: Vec::new(), next_due_in: Some(UNREACHABLE_RETRY) };
            };
            if due.locks.len() > remaining {
                // The others stay due.
                due.locks.truncate(remaining);
                due.next_due_in = Some(Duration::ZERO);
            }
            remaining -= due.locks.len();
            due
        });
        Ok(bounded.collect())
    }
}

fn parse_due_locks(mut reader: ReplyReader) -> Result<DueLocks, Error> {
    // -1 if no lock becomes due.
    let next_due_in = reader.read_text()?.parse().ok().map(Duration::from_micros);
    let mut locks = Vec::new();
    while !reader.is_empty() {
        let lock = Key::from_store(&reader.read_text()?);
        locks.push((lock, JobId::parse(&reader.read_text()?)));
    }
    Ok(DueLocks { locks, next_due_in })
}
