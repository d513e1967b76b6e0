//! Reads of one job: status, current run and envelope.

use std::time::Duration;

#[cfg(test)]
use futures_util::future::join_all;
use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{ActiveRun, JobHistory, JobId, JobState, JobView},
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn read_job_view(&self, id: JobId) -> Result<Option<JobView>, Error> {
        let shard = id.shard();
        let keys =
            [self.keys.job(&id), self.keys.response(&id), self.keys.shard_key(shard, "watch")];
        let args = [id.as_str().into()];
        let mut reader = ReplyReader::new(
            "read_job",
            self.call_script(shard, &script_sources::READ_JOB, &keys, &args).await?,
        );
        if reader.is_empty() {
            return Ok(None);
        }
        let mut view = parse_job_view(&mut reader)?;
        view.is_watched = reader.read_number()? == 1;
        // Nil if the response has vanished.
        view.response = reader.read_bytes().ok().filter(|_| view.state == JobState::Done);
        view.history.webhook_event = Some(reader.read_text()?).filter(|event| !event.is_empty());
        Ok(Some(view))
    }

    pub(super) async fn read_active_run(&self, id: JobId) -> Result<Option<ActiveRun>, Error> {
        let (keys, args) = ([self.keys.job(&id)], [id.as_str().into()]);
        let reply =
            self.call_script(id.shard(), &script_sources::READ_CURRENT_RUN, &keys, &args).await?;
        let mut reader = ReplyReader::new("read_current_run", reply);
        if reader.is_empty() {
            return Ok(None);
        }
        let attempt = reader.read_number()?.try_into().map_err(|_| reader.protocol_error())?;
        Ok(Some(ActiveRun { attempt, first_fence: reader.read_number()? }))
    }

    pub(super) async fn read_job_envelope(&self, id: JobId) -> Result<Option<bytes::Bytes>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(self.keys.request(&id));
        let replies = self.run_read_pipeline(id.shard(), "envelope", &pipe).await?;
        Ok(ReplyReader::new("envelope", Value::Array(replies)).read_bytes().ok())
    }

    #[cfg(test)]
    pub(super) async fn read_queue_heads(
        &self,
        keys: Vec<Key>,
    ) -> Result<Vec<Option<JobId>>, Error> {
        let Some(shard) = keys.first().map(Key::shard) else {
            return Ok(Vec::new());
        };
        if self.keys.is_clustered() && keys.iter().any(|key| key.shard() != shard) {
            let read_head = |key: &Key| Box::pin(self.read_queue_heads(vec![key.clone()]));
            let heads = join_all(keys.iter().map(read_head)).await;
            return heads.into_iter().map(|head| Ok(head?.pop().flatten())).collect();
        }
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("ZRANGE").arg(self.keys.job_queue(key)).arg(0).arg(0);
        }
        let mut reader = ReplyReader::new(
            "heads",
            Value::Array(self.run_read_pipeline(shard, "heads", &pipe).await?),
        );
        keys.iter()
            .map(|_| Ok(reader.read_list()?.read_text().ok().and_then(|id| JobId::parse(&id))))
            .collect()
    }
}

/// Parses a job as the scripts describe it.
pub(super) fn parse_job_view(reader: &mut ReplyReader) -> Result<JobView, Error> {
    let state = JobState::parse(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?;
    // A value that was never stored is an empty text.
    fn parse_or_default<T: std::str::FromStr + Default>(
        reader: &mut ReplyReader,
    ) -> Result<T, Error> {
        Ok(reader.read_text()?.parse().unwrap_or_default())
    }
    let attempts = parse_or_default(reader)?;
    let (reason, owner, lock) = (reader.read_text()?, reader.read_text()?, reader.read_text()?);
    let history = JobHistory {
        lock: Some(lock).filter(|lock| !lock.is_empty()).map(|lock| Key::from_store(&lock)),
        bytes: parse_or_default(reader)?,
        accepted_us: parse_or_default(reader)?,
        started_us: parse_or_default(reader)?,
        ended_us: parse_or_default(reader)?,
        crash_count: parse_or_default(reader)?,
        busy_count: parse_or_default(reader)?,
        recent_runs: reader.read_text()?.lines().map(str::to_owned).collect(),
        superseded_by: JobId::parse(&reader.read_text()?),
        webhook_event: None,
        due_in: None,
        route: None,
    };
    let position = Some(reader.read_number()?).filter(|position| *position > 0);
    // -1 if there is nothing to wait for.
    let due_in = reader.read_text()?.parse().ok().map(Duration::from_millis);
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    let is_tombstone = reader.read_number()? == 1;
    let route = Some(reader.read_text()?).filter(|route| !route.is_empty());
    let history = JobHistory { due_in, route, ..history };
    Ok(JobView {
        state,
        attempts,
        position,
        reason,
        owner,
        is_watched: false,
        response: None,
        is_tombstone,
        history,
    })
}
