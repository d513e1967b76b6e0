//! Pause and resumption of all jobs of the namespace.

use futures_util::future::join_all;

use super::number_arg;
use crate::{
    error::Error,
    key::SHARD_COUNT,
    store::{
        key_names::COMMON_SHARD,
        redis::{
            RedisBackend, call_execution::ResendPolicy, reply_reader::ReplyReader, script_sources,
        },
    },
};

impl RedisBackend {
    pub(super) async fn pause_or_resume_jobs(&self, paused: bool) -> Result<(), Error> {
        let mut keys = vec![self.keys.paused()];
        if !self.keys.is_clustered() {
            keys.extend(self.shard_watch_keys());
        }
        let args = [number_arg(paused.into()), self.keys.channel_prefix().into()];
        self.call_script(COMMON_SHARD, &script_sources::PAUSE_JOBS, &keys, &args).await?;
        if paused && self.keys.is_clustered() { self.delete_shard_watches().await } else { Ok(()) }
    }

    pub(super) async fn read_jobs_paused(&self) -> Result<bool, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.keys.paused());
        let replies = self.run_read_pipeline(0, "is_paused", &pipe).await?;
        Ok(ReplyReader::new("is_paused", redis::Value::Array(replies)).read_number()? == 1)
    }

    /// Deletes all shard watches after a pause. A worker that takes one meanwhile learns of the
    /// pause and gives it up.
    async fn delete_shard_watches(&self) -> Result<(), Error> {
        let deletions = join_all((0..SHARD_COUNT).map(async |shard| {
            let mut pipe = redis::pipe();
            pipe.cmd("DEL").arg(self.keys.shard_key(shard, "watch"));
            self.run_write_pipeline(shard, "pause_jobs", &pipe, ResendPolicy::UntilAnswered)
                .await
                .map(drop)
        }));
        deletions.await.into_iter().collect()
    }
}
