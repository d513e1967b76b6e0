//! Checks of a Redis store, page by page: `fsck_jobs.lua`, `fsck_tasks.lua`.
//!
//! Each script call is about one shard, and so about one slot of a cluster. Keys are listed by
//! SCAN. If there are several servers, they are scanned one after the other, each chosen by a shard
//! that it owns ([`KeyScanCursor`]).
//!
//! A submodule of `redis::operations`, because it uses the connections there.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use super::number_arg;
use crate::{
    error::Error,
    key::{Key, SHARD_COUNT},
    store::{
        fsck::{CheckFinding, FindingKind, FsckPart, FsckPartResult, KeyScanCursor},
        redis::{RedisBackend, reply_reader::ReplyReader, scripts::LuaScript},
    },
};

/// Checks keys, indexes and totals of a shard. It ends jobs and advances queues as `claim_job.lua`
/// does.
static SHARD_SCRIPT: LuaScript = LuaScript::new(
    "fsck",
    concat!(
        include_str!("../lua/publish_channel.lua"),
        include_str!("../lua/wait_queue.lua"),
        include_str!("../lua/ended_jobs.lua"),
        include_str!("../lua/job_common.lua"),
        include_str!("../lua/finish_job.lua"),
        include_str!("../lua/claim_job.lua"),
        include_str!("lua/fsck_jobs.lua"),
        include_str!("lua/fsck_indexes.lua"),
        include_str!("lua/fsck_keys.lua")
    ),
    true,
);

/// Checks a task queue.
static TASKS_SCRIPT: LuaScript = LuaScript::new(
    "fsck_tasks",
    concat!(
        include_str!("../lua/publish_channel.lua"),
        include_str!("../lua/server_time.lua"),
        include_str!("../lua/tasks_wakeups.lua"),
        include_str!("lua/fsck_tasks.lua")
    ),
    true,
);

/// Number of names in one call.
const PAGE_SIZE: usize = 100;

/// Key that every connection writes.
const NAMESPACE_META: &str = "{0}:meta";

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
        mend: bool,
    ) -> Result<FsckPartResult, Error> {
        match part {
            FsckPart::KeyPage(from) => self.fsck_key_page(from, mend).await,
            FsckPart::Shard { shard, locks: lines, are_all_locks: all } => {
                self.fsck_shard(shard, lines, all, mend).await
            }
            FsckPart::TaskQueue(queue) => self.fsck_task_queue(&queue, mend).await,
        }
    }

    async fn fsck_key_page(
        &self,
        mut from: KeyScanCursor,
        mend: bool,
    ) -> Result<FsckPartResult, Error> {
        if (from.shard, from.cursor) == (0, 0) {
            from.topology_version = self.lanes.map_version();
        }
        let mut shards = BTreeMap::<u16, Vec<String>>::new();
        let (next, names) = self.scan_keys(from.shard, from.cursor).await?;
        let mut found =
            FsckPartResult {
                is_complete_scan: self.lanes.map_version() == from.topology_version,
                next_page: match next {
                    Some(cursor) => Some(KeyScanCursor { cursor, ..from }),
                    None => self
                        .first_shard_of_next_server(from.shard)
                        .map(|shard| KeyScanCursor { shard, cursor: 0, ..from }),
                },
                examined: names.len() as u64,
                namespace_keys: names.iter().filter(|name| *name != NAMESPACE_META).count() as u64,
                ..FsckPartResult::default()
            };
        for name in names {
            match shard_of(&name) {
                Some(shard) if expected_type(&name).is_none() => {
                    shards.entry(shard).or_default().push(name);
                }
                _ => found.findings.extend(self.fsck_shared_key(from.shard, name, mend).await?),
            }
        }
        for (shard, names) in shards {
            found.task_queues.extend(names.iter().filter_map(|name| task_queue_of(name)));
            for names in names.chunks(PAGE_SIZE) {
                let mut look =
                    RedisShardFsck { redis: self, shard, repair: mend, result: &mut found };
                let names = Vec::from_iter(
                    names.iter().map(|name| self.keys.channel_prefix().to_owned() + name),
                );
                let (_, lines) = look.run_script("keys", "-", &names).await?;
                found.locks_with_jobs.extend(lines.into_iter().map(|line| (shard, line)));
            }
        }
        Ok(found)
    }

    /// Returns a shard of the next server, if there is one.
    fn first_shard_of_next_server(&self, shard: u16) -> Option<u16> {
        self.lanes.representative_shards().into_iter().find(|other| *other > shard)
    }

    /// Returns a page of the keys on the server of this shard, without the namespace's prefix.
    async fn scan_keys(&self, shard: u16, from: u64) -> Result<(Option<u64>, Vec<String>), Error> {
        let prefix = self.keys.channel_prefix();
        let plain = |c: char| !matches!(c, '*' | '?' | '[' | ']' | '\\');
        let escape = |c: char| if plain(c) { String::from(c) } else { format!("\\{c}") };
        let pattern: String = prefix.chars().map(escape).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("SCAN").arg(from).arg("MATCH").arg(pattern + "*").arg("COUNT").arg(PAGE_SIZE);
        let answer = self.run_read_pipeline(shard, "scan", &pipe).await?;
        let mut row = ReplyReader::new("scan", Value::Array(answer)).read_list()?;
        let (next, mut page) = (row.read_number()?, row.read_list()?);
        let mut names = Vec::new();
        while !page.is_empty() {
            // A name that is no UTF-8 was not written by lockgate. It is replaced lossily.
            let name = page.read_bytes()?;
            let name = String::from_utf8_lossy(&name);
            names.extend(name.strip_prefix(prefix).map(str::to_owned));
        }
        Ok((Some(next).filter(|next| *next > 0), names))
    }

    /// Checks a key that belongs to no shard, on the server of the shard `at`.
    async fn fsck_shared_key(
        &self,
        at: u16,
        name: String,
        mend: bool,
    ) -> Result<Option<CheckFinding>, Error> {
        let key = self.keys.channel_prefix().to_owned() + &name;
        let (want, must_end) = expected_type(&name).unwrap_or_default();
        let mut pipe = redis::pipe();
        pipe.cmd("TYPE").arg(&key).cmd("PTTL").arg(&key);
        let mut row = ReplyReader::new(
            "fsck",
            Value::Array(self.run_read_pipeline(at, "fsck", &pipe).await?),
        );
        let (kind, left) = (row.read_text()?, row.read_text()?);
        let (what, detail) = match (want, kind.as_str()) {
            (_, "none") => return Ok(None),
            ("", _) => (FindingKind::UnknownKey, String::new()),
            (want, kind) if want != kind => (FindingKind::WrongKeyType, kind.to_owned()),
            _ if must_end && left == "-1" => (FindingKind::MissingExpiry, String::new()),
            _ => return Ok(None),
        };
        let mended = mend && what == FindingKind::MissingExpiry;
        if mended {
            let mut pipe = redis::pipe();
            // The next heartbeat sets the right one.
            pipe.cmd("PEXPIRE").arg(&key).arg(60_000);
            self.run_read_pipeline(at, "fsck", &pipe).await?;
        }
        Ok(Some(CheckFinding { kind: what, shard: None, name, detail, repaired: mended }))
    }

    async fn fsck_shard(
        &self,
        shard: u16,
        lines: Vec<String>,
        all_lines: bool,
        mend: bool,
    ) -> Result<FsckPartResult, Error> {
        let mut found = FsckPartResult::default();
        let mut look = RedisShardFsck { redis: self, shard, repair: mend, result: &mut found };
        // Locks that no index names are checked with the others.
        let mut all = BTreeSet::from_iter(lines.clone());
        all.extend(look.check_index("due").await?);
        let all = Vec::from_iter(all);
        for lines in all.chunks(PAGE_SIZE) {
            look.check_locks(lines).await?;
        }
        for index in ["late", "exp", "done", "dead"] {
            look.check_index(index).await?;
        }
        // More than one call can sum, and a part of them is no total.
        if lines.len() > PAGE_SIZE {
            found.sums_skipped = true;
            return Ok(found);
        }
        let names = if all_lines { "all" } else { "some" };
        let (next, _) = look.run_script("sums", names, &lines).await?;
        found.sums_skipped = !next.is_empty();
        Ok(found)
    }

    async fn fsck_task_queue(&self, queue: &Key, mend: bool) -> Result<FsckPartResult, Error> {
        let (mut found, keys) = (FsckPartResult::default(), self.keys.queue_keys(queue));
        for look in ["z", "zl", "zd", "zm", "zu", "zt", "sum"] {
            let mut from = FIRST_PAGE.to_owned();
            for _ in 0..MAX_PAGES {
                let args = [look.into(), repair_argument(mend), from.into_bytes()];
                let reply = self.call_script(queue.shard(), &TASKS_SCRIPT, &keys, &args).await?;
                let mut row = ReplyReader::new("fsck_tasks", reply);
                from = row.read_text()?;
                while !row.is_empty() {
                    let mut finding = parse_finding(&mut row, queue.shard())?;
                    finding.detail =
                        format!("queue {queue} {}", finding.detail).trim_end().to_owned();
                    found.findings.push(finding);
                }
                found.examined += 1;
                if from.is_empty() {
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Check of one shard.
struct RedisShardFsck<'a> {
    redis: &'a RedisBackend,
    shard: u16,
    repair: bool,
    result: &'a mut FsckPartResult,
}

impl RedisShardFsck<'_> {
    /// Runs one step. Returns the start of the next page, and names.
    async fn run_script(
        &mut self,
        what: &str,
        from: &str,
        names: &[String],
    ) -> Result<(String, Vec<String>), Error> {
        let keys = [self.redis.keys.shard_key(self.shard, "f")];
        let mut args = vec![what.into(), repair_argument(self.repair), from.into()];
        args.extend(names.iter().map(|name| name.clone().into_bytes()));
        let reply = self.redis.call_script(self.shard, &SHARD_SCRIPT, &keys, &args).await?;
        let mut row = ReplyReader::new("fsck", reply);
        let (next, mut page, mut names) = (row.read_text()?, row.read_list()?, Vec::new());
        while !page.is_empty() {
            names.push(page.read_text()?);
        }
        while !row.is_empty() {
            self.result.findings.push(parse_finding(&mut row, self.shard)?);
        }
        self.result.examined += names.len().max(1) as u64;
        Ok((next, names))
    }

    /// Checks all pages of an index. Returns the names in it.
    async fn check_index(&mut self, index: &str) -> Result<Vec<String>, Error> {
        let (mut from, mut all) = (FIRST_PAGE.to_owned(), Vec::new());
        for _ in 0..MAX_PAGES {
            let (next, names) = self.run_script(index, &from, &[]).await?;
            all.extend(names);
            if next.is_empty() {
                break;
            }
            from = next;
        }
        Ok(all)
    }

    /// Checks locks with all their jobs.
    async fn check_locks(&mut self, mut lines: &[String]) -> Result<(), Error> {
        let mut after = BEFORE_FIRST_JOB.to_owned();
        for _ in 0..MAX_PAGES {
            let (next, _) = self.run_script("lines", &after, lines).await?;
            let Some((line, seq)) = next.split_once(' ') else {
                break;
            };
            let done = line.parse::<usize>().unwrap_or(1).saturating_sub(1);
            lines = lines.get(done..).unwrap_or_default();
            after = seq.to_owned();
        }
        Ok(())
    }
}

fn repair_argument(mend: bool) -> Vec<u8> {
    number_arg(u64::from(mend))
}

fn parse_finding(row: &mut ReplyReader, shard: u16) -> Result<CheckFinding, Error> {
    let mut found = row.read_list()?;
    let kind =
        FindingKind::from_wire_name(&found.read_text()?).ok_or_else(|| found.protocol_error())?;
    let (name, detail) = (read_lossy(&mut found)?, read_lossy(&mut found)?);
    Ok(CheckFinding { kind, shard: Some(shard), name, detail, repaired: found.read_number()? == 1 })
}

/// Values written by hand may be no UTF-8.
fn read_lossy(row: &mut ReplyReader) -> Result<String, Error> {
    row.read_bytes().map(|read_bytes| String::from_utf8_lossy(&read_bytes).into_owned())
}

/// Returns the type of a key that belongs to no shard, and true if it must expire.
fn expected_type(name: &str) -> Option<(&'static str, bool)> {
    // They carry the hash tag of `COMMON_SHARD`.
    match name.strip_prefix("{0}:")? {
        "meta" => Some(("hash", false)),
        "paused" | "workers" => Some(("string", false)),
        "limiters" => Some(("zset", true)),
        _ => None,
    }
}

/// Parses `{<shard>}:..`.
fn shard_of(name: &str) -> Option<u16> {
    let (text, _) = name.strip_prefix('{')?.split_once("}:")?;
    let shard: u16 = text.parse().ok()?;
    (shard < SHARD_COUNT && shard.to_string() == text).then_some(shard)
}

/// Returns the task queue that a key of records or counts belongs to.
fn task_queue_of(name: &str) -> Option<Key> {
    let (_, name) = name.split_once("}:")?;
    let queue = name.strip_prefix("zt:").or_else(|| name.strip_prefix("zf:"))?;
    Some(Key::from_store(queue))
}
