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

    pub(super) async fn force_lock_release(&self, key: Key) -> Result<usize, Error> {
        let script = &script_sources::FORCE_RELEASE;
        let keys = [self.keys.holders(&key)];
        let reply = self.call_script(key.shard(), script, &keys, &[]).await?;
        let mut reader = ReplyReader::new(script.name, reply);
        let mut released = 0;
        while !reader.is_empty() {
            reader.read_text()?;
            released += 1;
        }
        Ok(released)
    }
}
