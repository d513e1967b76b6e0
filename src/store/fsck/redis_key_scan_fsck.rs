//! Check of a Redis store's keys: scans the keys of all servers, page by page, and checks the type
//! and the expiry of each key.
//!
//! If there are several servers, they are scanned one after the other, each chosen by a shard that
//! it owns ([`KeyScanCursor`]). The keys of a shard are checked by
//! `fsck_check_repair_keys.lua`, the few that belong to no shard here.
//!
//! A submodule of `redis::operations`, because it uses the connections there.

use std::collections::BTreeMap;

use redis::Value;

use super::fsck::{PAGE_SIZE, RedisShardFsck};
use crate::{
    error::Error,
    key::{Key, SHARD_COUNT},
    store::{
        fsck::{CheckFinding, FindingKind, FsckPartResult, KeyScanCursor},
        redis::{RedisBackend, reply_reader::ReplyReader},
    },
};

/// Number of keys in one step of the scan. They belong to 64 shards, and those of a shard are
/// checked by one call: with a hundred keys, nearly every key took a call of its own.
const SCAN_COUNT: usize = 1_000;

/// Key that every connection writes.
const NAMESPACE_META: &str = "{0}:meta";

/// Page of the keys on one server.
struct KeyPage {
    /// Names without the namespace's prefix.
    names: Vec<String>,
    /// Cursor of the next page of the same server.
    next_cursor: Option<u64>,
}

/// Expectation for a key that belongs to no shard.
struct SharedKeyKind {
    redis_type: &'static str,
    must_expire: bool,
}

impl RedisBackend {
    /// Checks one page of all keys.
    pub(super) async fn fsck_key_page(
        &self,
        mut start: KeyScanCursor,
        repair: bool,
    ) -> Result<FsckPartResult, Error> {
        if (start.shard, start.cursor) == (0, 0) {
            start.topology_version = self.lanes.map_version();
        }
        let mut names_by_shard = BTreeMap::<u16, Vec<String>>::new();
        let KeyPage { names, next_cursor } = self.scan_keys(start.shard, start.cursor).await?;
        let next_page = match next_cursor {
            Some(cursor) => Some(KeyScanCursor { cursor, ..start }),
            None => self.first_shard_of_next_server(start.shard).map(|shard| KeyScanCursor {
                shard,
                cursor: 0,
                ..start
            }),
        };
        let mut result = FsckPartResult {
            is_complete_scan: self.lanes.map_version() == start.topology_version,
            next_page,
            scanned_per_mille: self.scanned_per_mille(start.shard, next_cursor),
            examined: names.len() as u64,
            namespace_keys: names.iter().filter(|name| *name != NAMESPACE_META).count() as u64,
            ..FsckPartResult::default()
        };
        for name in names {
            match shard_of(&name) {
                Some(shard) if shared_key_kind(&name).is_none() => {
                    names_by_shard.entry(shard).or_default().push(name);
                }
                _ => {
                    let finding = self.fsck_shared_key(start.shard, name, repair).await?;
                    result.findings.extend(finding);
                }
            }
        }
        for (shard, names) in names_by_shard {
            self.fsck_shard_keys(shard, &names, repair, &mut result).await?;
        }
        Ok(result)
    }

    /// Checks keys of one shard.
    async fn fsck_shard_keys(
        &self,
        shard: u16,
        names: &[String],
        repair: bool,
        result: &mut FsckPartResult,
    ) -> Result<(), Error> {
        result.task_queues.extend(names.iter().filter_map(|name| task_queue_of(name)));
        for names in names.chunks(PAGE_SIZE) {
            let full_names = Vec::from_iter(
                names.iter().map(|name| self.keys.channel_prefix().to_owned() + name),
            );
            let mut fsck = RedisShardFsck { redis: self, shard, repair, result };
            let (_, lock_names) = fsck.run_script("keys", "-", &full_names).await?;
            result.locks_with_jobs.extend(lock_names.into_iter().map(|name| (shard, name)));
        }
        Ok(())
    }

    /// Returns a shard of the next server, if there is one.
    fn first_shard_of_next_server(&self, shard: u16) -> Option<u16> {
        self.lanes.representative_shards().into_iter().find(|other| *other > shard)
    }

    /// Estimates the part of all keys before a cursor, in thousandths. SCAN counts with reversed
    /// bits, so the reversed cursor is the position in a table of any size. Several servers are
    /// taken to have as many keys each.
    fn scanned_per_mille(&self, shard: u16, next_cursor: Option<u64>) -> u64 {
        let servers = self.lanes.representative_shards();
        let scanned_servers = servers.iter().filter(|other| **other < shard).count() as u64;
        let scanned_here = match next_cursor {
            Some(cursor) => ((cursor.reverse_bits() >> 32) * 1_000) >> 32,
            None => 1_000,
        };
        (scanned_servers * 1_000 + scanned_here) / (servers.len() as u64).max(1)
    }

    /// Returns a page of the keys on the server of this shard.
    async fn scan_keys(&self, shard: u16, cursor: u64) -> Result<KeyPage, Error> {
        let prefix = self.keys.channel_prefix();
        let is_plain = |c: char| !matches!(c, '*' | '?' | '[' | ']' | '\\');
        let escape = |c: char| if is_plain(c) { String::from(c) } else { format!("\\{c}") };
        let pattern: String = prefix.chars().map(escape).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern + "*").arg("COUNT").arg(SCAN_COUNT);
        let reply = self.run_read_pipeline(shard, "scan", &pipe).await?;
        let mut row = ReplyReader::new("scan", Value::Array(reply)).read_list()?;
        let (next_cursor, mut page) = (row.read_number()?, row.read_list()?);
        let mut names = Vec::new();
        while !page.is_empty() {
            // A name that is no UTF-8 was not written by lockgate. It is replaced lossily.
            let name = page.read_bytes()?;
            let name = String::from_utf8_lossy(&name);
            names.extend(name.strip_prefix(prefix).map(str::to_owned));
        }
        Ok(KeyPage { names, next_cursor: Some(next_cursor).filter(|cursor| *cursor > 0) })
    }

    /// Checks a key that belongs to no shard, on the server of the shard `server_shard`.
    async fn fsck_shared_key(
        &self,
        server_shard: u16,
        name: String,
        repair: bool,
    ) -> Result<Option<CheckFinding>, Error> {
        let key = self.keys.channel_prefix().to_owned() + &name;
        let mut pipe = redis::pipe();
        pipe.cmd("TYPE").arg(&key).cmd("PTTL").arg(&key);
        let reply = self.run_read_pipeline(server_shard, "fsck", &pipe).await?;
        let mut row = ReplyReader::new("fsck", Value::Array(reply));
        let (actual_type, ttl) = (row.read_text()?, row.read_text()?);
        if actual_type == "none" {
            return Ok(None);
        }
        let (kind, detail) = match shared_key_kind(&name) {
            None => (FindingKind::UnknownKey, String::new()),
            Some(expected) if expected.redis_type != actual_type => {
                (FindingKind::WrongKeyType, actual_type)
            }
            Some(expected) if expected.must_expire && ttl == "-1" => {
                (FindingKind::MissingExpiry, String::new())
            }
            Some(_) => return Ok(None),
        };
        let repaired = repair && kind == FindingKind::MissingExpiry;
        if repaired {
            let mut pipe = redis::pipe();
            // The next heartbeat sets the right one.
            pipe.cmd("PEXPIRE").arg(&key).arg(60_000);
            self.run_read_pipeline(server_shard, "fsck", &pipe).await?;
        }
        Ok(Some(CheckFinding { kind, shard: None, name, detail, repaired }))
    }
}

/// Returns the expectation for a key that belongs to no shard; `None` for other keys.
fn shared_key_kind(name: &str) -> Option<SharedKeyKind> {
    // They carry the hash tag of `COMMON_SHARD`.
    let (redis_type, must_expire) = match name.strip_prefix("{0}:")? {
        "audit" | "limits" | "meta" => ("hash", false),
        "paused" | "workers" => ("string", false),
        "limiters" => ("zset", true),
        name if name.starts_with("asked:") => ("list", true),
        "queues" => ("zset", false),
        _ => return None,
    };
    Some(SharedKeyKind { redis_type, must_expire })
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
