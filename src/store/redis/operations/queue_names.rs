//! Names of the task queues and the number of workers, for operators.

use std::time::Duration;

use super::number_arg;
use crate::{
    error::Error,
    key::Key,
    store::{
        inspection::{MAX_LISTED_QUEUES, MAX_REGISTERED_QUEUES},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn add_queue_name(&self, name: Key) -> Result<(), Error> {
        let args = [name.as_str().into(), number_arg(MAX_REGISTERED_QUEUES)];
        let keys = [self.keys.queue_names()];
        self.call_script(COMMON_SHARD, &script_sources::REGISTER_QUEUE, &keys, &args)
            .await
            .map(drop)
    }

    pub(super) async fn read_queue_names(&self) -> Result<Vec<Key>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("ZREVRANGE").arg(self.keys.queue_names()).arg(0).arg(MAX_LISTED_QUEUES - 1);
        let replies = self.run_read_pipeline(COMMON_SHARD, "list_queues", &pipe).await?;
        let mut reader =
            ReplyReader::new("list_queues", redis::Value::Array(replies)).read_list()?;
        let mut names = Vec::new();
        while !reader.is_empty() {
            names.push(Key::from_store(&reader.read_text()?));
        }
        Ok(names)
    }

    /// Counts the workers whose leases have not ended by the server's clock.
    pub(super) async fn count_registered_workers(&self) -> Result<u64, Error> {
        let workers = self.read_registered_workers().await?;
        Ok(workers.iter().filter(|(_, lease_left)| !lease_left.is_zero()).count() as u64)
    }

    pub(super) async fn read_registered_workers(&self) -> Result<Vec<(String, Duration)>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(self.keys.workers()).cmd("TIME");
        let replies = self.run_read_pipeline(COMMON_SHARD, "list_workers", &pipe).await?;
        let mut reader = ReplyReader::new("list_workers", redis::Value::Array(replies));
        let registry = reader.read_optional_text()?.unwrap_or_default();
        let mut time = reader.read_list()?;
        let now_ms = time.read_number()? * 1_000 + time.read_number()? / 1_000;
        let workers = registry.split(' ').filter_map(|worker| {
            let (deadline, node) = worker.split_once(':')?;
            let left_ms = deadline.parse::<u64>().ok()?.saturating_sub(now_ms);
            Some((node.to_owned(), Duration::from_millis(left_ms)))
        });
        Ok(workers.collect())
    }
}
