//! Names of the task queues and the number of workers, for operators.

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
    #[cfg_attr(
        not(any(feature = "console", feature = "metrics")),
        allow(dead_code, reason = "read by the console and by metrics only")
    )]
    pub(super) async fn count_registered_workers(&self) -> Result<u64, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(self.keys.workers()).cmd("TIME");
        let replies = self.run_read_pipeline(COMMON_SHARD, "count_workers", &pipe).await?;
        let mut reader = ReplyReader::new("count_workers", redis::Value::Array(replies));
        let registry = reader.read_optional_text()?.unwrap_or_default();
        let now_ms = reader.read_list()?.read_number()? * 1_000;
        let deadlines = registry.split(' ').filter_map(|worker| worker.split(':').next());
        let deadlines = deadlines.filter_map(|deadline| deadline.parse::<u64>().ok());
        Ok(deadlines.filter(|deadline| *deadline > now_ms).count() as u64)
    }
}
