//! Checks of a Redis store's shards and task queues, page by page: `fsck_jobs.lua`,
//! `fsck_indexes.lua` and `fsck_tasks.lua`. The keys are checked in `redis_key_scan_fsck.rs`.
//!
//! Each script call is about one shard, and so about one slot of a cluster.
//!
//! A submodule of `redis::operations`, because it uses the connections there.

use std::collections::BTreeSet;

use super::number_arg;
use crate::{
    error::Error,
    key::Key,
    store::{
        fsck::{CheckFinding, FindingKind, FsckPart, FsckPartResult},
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources::ScriptSource},
    },
};

/// Checks keys, indexes and totals of a shard. It ends jobs and advances queues as
/// `claim_lock_and_job.lua` does.
static SHARD_SCRIPT: ScriptSource = ScriptSource::new(
    "fsck",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/ended_job_bookkeeping.lua"),
        include_str!("../lua/pending_job_bookkeeping.lua"),
        include_str!("../lua/dequeue_ended_job.lua"),
        include_str!("../lua/claim_lock_and_job.lua"),
        include_str!("lua/fsck_jobs.lua"),
        include_str!("lua/fsck_indexes.lua"),
        include_str!("lua/fsck_check_repair_keys.lua"),
        include_str!("lua/fsck_run_check.lua")
    ),
    true,
);

/// Checks a task queue.
static TASKS_SCRIPT: ScriptSource = ScriptSource::new(
    "fsck_tasks",
    concat!(
        include_str!("../lua/choose_publish_command.lua"),
        include_str!("../lua/server_time.lua"),
        include_str!("../lua/tasks_wakeups.lua"),
        include_str!("lua/fsck_tasks.lua")
    ),
    true,
);

/// Number of names in one call.
pub(super) const PAGE_SIZE: usize = 100;

/// Cursors of the first page of an index, and of the first job of a lock.
const FIRST_PAGE: &str = "0";
const BEFORE_FIRST_JOB: &str = "-inf";

/// Maximum number of calls for one index or one set of locks, so that a check ends even if entries
/// are added meanwhile.
const MAX_PAGES: usize = 10_000;

impl RedisBackend {
    pub(super) async fn fsck_part(
        &self,
        part: FsckPart,
        repair: bool,
    ) -> Result<FsckPartResult, Error> {
        match part {
            FsckPart::KeyPage(start) => self.fsck_key_page(start, repair).await,
            FsckPart::Shard { shard, locks: lock_names, are_all_locks } => {
                self.fsck_shard(shard, lock_names, are_all_locks, repair).await
            }
            FsckPart::TaskQueue(queue) => self.fsck_task_queue(&queue, repair).await,
        }
    }

    async fn fsck_shard(
        &self,
        shard: u16,
        lock_names: Vec<String>,
        are_all_locks: bool,
        repair: bool,
    ) -> Result<FsckPartResult, Error> {
        let mut result = FsckPartResult::default();
        let mut fsck = RedisShardFsck { redis: self, shard, repair, result: &mut result };
        // Locks that no index names are checked with those of the index.
        let mut checked_locks = BTreeSet::from_iter(lock_names.clone());
        checked_locks.extend(fsck.check_index("due").await?);
        let checked_locks = Vec::from_iter(checked_locks);
        for lock_names in checked_locks.chunks(PAGE_SIZE) {
            fsck.check_locks(lock_names).await?;
        }
        for index in ["delayed", "deadlines", "done", "dead"] {
            fsck.check_index(index).await?;
        }
        // More locks than one call can sum, and a part of them is no total.
        if lock_names.len() > PAGE_SIZE {
            result.totals_skipped = true;
            return Ok(result);
        }
        let scope = if are_all_locks { "all" } else { "some" };
        let (obstacle, _) = fsck.run_script("totals", scope, &lock_names).await?;
        result.totals_skipped = !obstacle.is_empty();
        Ok(result)
    }

    async fn fsck_task_queue(&self, queue: &Key, repair: bool) -> Result<FsckPartResult, Error> {
        let (mut result, keys) = (FsckPartResult::default(), self.keys.queue_keys(queue));
        for check in ["z", "zl", "zd", "zm", "zu", "zt", "totals"] {
            let mut cursor = FIRST_PAGE.to_owned();
            for _ in 0..MAX_PAGES {
                let args = [check.into(), repair_argument(repair), cursor.into_bytes()];
                let reply = self.call_script(queue.shard(), &TASKS_SCRIPT, &keys, &args).await?;
                let mut row = ReplyReader::new("fsck_tasks", reply);
                cursor = row.read_text()?;
                while !row.is_empty() {
                    let mut finding = parse_finding(&mut row, queue.shard())?;
                    finding.detail =
                        format!("queue {queue} {}", finding.detail).trim_end().to_owned();
                    result.findings.push(finding);
                }
                result.examined += 1;
                if cursor.is_empty() {
                    break;
                }
            }
        }
        Ok(result)
    }
}

/// Check of one shard.
pub(super) struct RedisShardFsck<'a> {
    pub(super) redis: &'a RedisBackend,
    pub(super) shard: u16,
    pub(super) repair: bool,
    pub(super) result: &'a mut FsckPartResult,
}

impl RedisShardFsck<'_> {
    /// Runs one check of the script, from a cursor on. Returns the cursor of the next page, and
    /// names.
    pub(super) async fn run_script(
        &mut self,
        check: &str,
        cursor: &str,
        names: &[String],
    ) -> Result<(String, Vec<String>), Error> {
        let keys = [self.redis.keys.shard_key(self.shard, "f")];
        let mut args = vec![check.into(), repair_argument(self.repair), cursor.into()];
        args.extend(names.iter().map(|name| name.clone().into_bytes()));
        let reply = self.redis.call_script(self.shard, &SHARD_SCRIPT, &keys, &args).await?;
        let mut row = ReplyReader::new("fsck", reply);
        let (next_cursor, mut name_list, mut names) =
            (row.read_text()?, row.read_list()?, Vec::new());
        while !name_list.is_empty() {
            names.push(name_list.read_text()?);
        }
        while !row.is_empty() {
            self.result.findings.push(parse_finding(&mut row, self.shard)?);
        }
        self.result.examined += names.len().max(1) as u64;
        Ok((next_cursor, names))
    }

    /// Checks all pages of an index. Returns the names in it.
    async fn check_index(&mut self, index: &str) -> Result<Vec<String>, Error> {
        let (mut cursor, mut index_names) = (FIRST_PAGE.to_owned(), Vec::new());
        for _ in 0..MAX_PAGES {
            let (next_cursor, names) = self.run_script(index, &cursor, &[]).await?;
            index_names.extend(names);
            if next_cursor.is_empty() {
                break;
            }
            cursor = next_cursor;
        }
        Ok(index_names)
    }

    /// Checks locks with all their jobs.
    async fn check_locks(&mut self, mut lock_names: &[String]) -> Result<(), Error> {
        let mut after_seq = BEFORE_FIRST_JOB.to_owned();
        for _ in 0..MAX_PAGES {
            let (next_cursor, _) = self.run_script("wait_queues", &after_seq, lock_names).await?;
            let Some((position, seq)) = next_cursor.split_once(' ') else {
                break;
            };
            let checked = position.parse::<usize>().unwrap_or(1).saturating_sub(1);
            lock_names = lock_names.get(checked..).unwrap_or_default();
            after_seq = seq.to_owned();
        }
        Ok(())
    }
}

fn repair_argument(repair: bool) -> Vec<u8> {
    number_arg(u64::from(repair))
}

fn parse_finding(row: &mut ReplyReader, shard: u16) -> Result<CheckFinding, Error> {
    let mut fields = row.read_list()?;
    let kind =
        FindingKind::from_wire_name(&fields.read_text()?).ok_or_else(|| fields.protocol_error())?;
    let (name, detail) = (read_lossy(&mut fields)?, read_lossy(&mut fields)?);
    let repaired = fields.read_number()? == 1;
    Ok(CheckFinding { kind, shard: Some(shard), name, detail, repaired })
}

/// Values written by hand may be no UTF-8.
fn read_lossy(row: &mut ReplyReader) -> Result<String, Error> {
    row.read_bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
