//! Operations of operators on one lock: who holds it, and its forced release.

use std::time::Duration;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::JobId,
        inspection::{LockSnapshot, SnapshotHolder, SnapshotWaiter},
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

/// Most calls of one forced release, against holders that arrive all the time.
const MAX_RELEASE_CALLS: usize = 1_000;

impl RedisBackend {
    pub(super) async fn read_lock_snapshot(&self, key: Key) -> Result<LockSnapshot, Error> {
        let script = &script_sources::INSPECT_LOCK;
        let keys = [self.keys.holders(&key)];
        let reply = self.call_script(key.shard(), script, &keys, &[]).await?;
        let mut reader = ReplyReader::new(script.name, reply);
        let mut snapshot = LockSnapshot {
            waiter_count: reader.read_number()?,
            job_count: reader.read_number()?,
            ..LockSnapshot::default()
        };
        let (holder_count, waiter_count) = (reader.read_number()?, reader.read_number()?);
        for _ in 0..holder_count {
            let (member, remaining) = (reader.read_text()?, reader.read_millis()?);
            snapshot.holders.extend(SnapshotHolder::parse(&member, remaining));
        }
        for _ in 0..waiter_count {
            let (member, waited_us) = (reader.read_text()?, reader.read_number()?);
            let waited = Duration::from_micros(waited_us);
            snapshot.waiters.extend(SnapshotWaiter::parse(&member, waited));
        }
        while !reader.is_empty() {
            snapshot.jobs.extend(JobId::parse(&reader.read_text()?));
        }
        Ok(snapshot)
    }

    /// One call for each hundred holders.
    pub(super) async fn force_lock_release(&self, key: Key) -> Result<usize, Error> {
        let script = &script_sources::FORCE_RELEASE;
        let keys = [self.keys.holders(&key)];
        let mut released = 0;
        for _ in 0..MAX_RELEASE_CALLS {
            let reply = self.call_script(key.shard(), script, &keys, &[]).await?;
            let mut reader = ReplyReader::new(script.name, reply);
            let (count, has_more) = (reader.read_number()?, reader.read_number()? == 1);
            released += usize::try_from(count).unwrap_or_default();
            if count == 0 || !has_more {
                break;
            }
        }
        Ok(released)
    }
}
