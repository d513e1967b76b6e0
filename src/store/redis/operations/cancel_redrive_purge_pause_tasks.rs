//! Administration of a queue: cancel, redrive, purge, pause and resume.

use std::time::Duration;

use redis::Value;

use super::{ScriptArgs, inspect_tasks::parse_task_state, number_arg};
use crate::{
    durations::saturating_micros,
    error::Error,
    key::Key,
    store::{
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
        tasks::{PurgeCursor, PurgePage, TaskId, TaskState},
    },
};

impl RedisBackend {
    /// Cancels a waiting task or makes it due. Returns the state in which it was found.
    pub(super) async fn edit_waiting_task(
        &self,
        queue: Key,
        verb: &'static str,
        id: TaskId,
    ) -> Result<Option<TaskState>, Error> {
        let mut reader = self.call_admin_script(&queue, verb, [id.as_str().into()].into()).await?;
        Ok(parse_task_state(&reader.read_text()?))
    }

    pub(super) async fn redrive_letters(
        &self,
        queue: Key,
        max_letters: usize,
        first_delay: Duration,
        spacing: Duration,
    ) -> Result<usize, Error> {
        let args = [
            number_arg(max_letters as u64),
            number_arg(saturating_micros(first_delay)),
            number_arg(saturating_micros(spacing)),
        ];
        self.edit_and_count(queue, "redrives", args.into()).await
    }

    pub(super) async fn purge_letters(&self, queue: Key) -> Result<usize, Error> {
        let args = [number_arg(crate::store::MAX_TASKS_PER_STEP as u64)];
        self.edit_and_count(queue, "purge", args.into()).await
    }

    pub(super) async fn purge_waiting_tasks(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        max_tasks: usize,
    ) -> Result<PurgePage, Error> {
        let mut args = vec![number_arg(max_tasks as u64)];
        if let Some(PurgeCursor { last_push, from_us, until_us }) = cursor {
            args.extend([last_push, from_us, until_us].map(number_arg));
        }
        let mut reader = self.call_admin_script(&queue, "purge_waiting", args).await?;
        let purged = usize::try_from(reader.read_number()?).unwrap_or(usize::MAX);
        if reader.is_empty() {
            return Ok(PurgePage { purged, next: None });
        }
        let (last_push, from_us, until_us) =
            (reader.read_number()?, reader.read_number()?, reader.read_number()?);
        Ok(PurgePage { purged, next: Some(PurgeCursor { last_push, from_us, until_us }) })
    }

    pub(super) async fn pause_or_resume_tasks(&self, queue: Key, pause: bool) -> Result<(), Error> {
        let verb = if pause { "pause" } else { "resume" };
        self.call_admin_script(&queue, verb, ScriptArgs::new()).await.map(drop)
    }

    /// Redrives or purges one dead letter. Returns true if it was there.
    pub(super) async fn edit_one(
        &self,
        queue: Key,
        verb: &'static str,
        id: TaskId,
    ) -> Result<bool, Error> {
        let mut reader = self.call_admin_script(&queue, verb, [id.as_str().into()].into()).await?;
        Ok(reader.read_number()? == 1)
    }

    async fn edit_and_count(
        &self,
        queue: Key,
        verb: &'static str,
        args: ScriptArgs,
    ) -> Result<usize, Error> {
        let moved = self.call_admin_script(&queue, verb, args).await?.read_number()?;
        Ok(usize::try_from(moved).unwrap_or(usize::MAX))
    }

    async fn call_admin_script(
        &self,
        queue: &Key,
        verb: &str,
        args: ScriptArgs,
    ) -> Result<ReplyReader, Error> {
        let mut script_args = vec![verb.into()];
        script_args.extend(args);
        let keys = self.keys.queue_keys(queue);
        let reply: Value = self
            .call_script(
                queue.shard(),
                &script_sources::TASKS_CANCEL_REDRIVE_PURGE_PAUSE,
                &keys,
                &script_args,
            )
            .await?;
        Ok(ReplyReader::new("tasks_cancel_redrive_purge_pause", reply))
    }
}
