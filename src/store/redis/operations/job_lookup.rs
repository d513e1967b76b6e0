//! Reads of jobs: status, current run, envelope and server time.

use std::time::Duration;

#[cfg(test)]
use futures_util::future::join_all;
use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{ActiveRun, JobHistory, JobId, JobState, JobView},
        redis::{RedisBackend, reply_reader::ReplyReader, scripts},
    },
};

impl RedisBackend {
    pub(super) async fn do_job_view(&self, id: JobId) -> Result<Option<JobView>, Error> {
        let shard = id.shard();
        let keys =
            [self.keys.job(&id), self.keys.response(&id), self.keys.shard_key(shard, "watch")];
        let args = [id.as_str().into()];
        let mut row = ReplyReader::new(
            "read_job",
            self.call_script(shard, &scripts::READ_JOB, &keys, &args).await?,
        );
        if row.is_empty() {
            return Ok(None);
        }
        let mut view = parse_job_view(&mut row)?;
        view.is_watched = row.read_number()? == 1;
        // Nil if the response has vanished.
        view.response = row.read_bytes().ok().filter(|_| view.state == JobState::Done);
        view.history.webhook_event = Some(row.read_text()?).filter(|end| !end.is_empty());
        Ok(Some(view))
    }

    pub(super) async fn do_active_run(&self, id: JobId) -> Result<Option<ActiveRun>, Error> {
        let (keys, args) = ([self.keys.job(&id)], [id.as_str().into()]);
        let reply = self.call_script(id.shard(), &scripts::READ_CURRENT_RUN, &keys, &args).await?;
        let mut row = ReplyReader::new("read_current_run", reply);
        if row.is_empty() {
            return Ok(None);
        }
        let attempt = row.read_number()?.try_into().map_err(|_| row.protocol_error())?;
        Ok(Some(ActiveRun { attempt, first_fence: row.read_number()? }))
    }

    pub(super) async fn do_job_envelope(&self, id: JobId) -> Result<Option<bytes::Bytes>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(self.keys.request(&id));
        let answer = self.run_read_pipeline(id.shard(), "envelope", &pipe).await?;
        Ok(ReplyReader::new("envelope", Value::Array(answer)).read_bytes().ok())
    }

    pub(super) async fn do_server_time_us(&self) -> Result<u64, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let mut row = ReplyReader::new(
            "clock",
            Value::Array(self.run_read_pipeline(0, "clock", &pipe).await?),
        );
        let mut time = row.read_list()?;
        Ok(time.read_number()?.saturating_mul(1_000_000).saturating_add(time.read_number()?))
    }

    #[cfg(test)]
    pub(super) async fn do_heads(&self, keys: Vec<Key>) -> Result<Vec<Option<JobId>>, Error> {
        let Some(shard) = keys.first().map(Key::shard) else {
            return Ok(Vec::new());
        };
        if self.keys.is_clustered() && keys.iter().any(|key| key.shard() != shard) {
            let one = |key: &Key| Box::pin(self.do_heads(vec![key.clone()]));
            let heads = join_all(keys.iter().map(one)).await;
            return heads.into_iter().map(|head| Ok(head?.pop().flatten())).collect();
        }
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("ZRANGE").arg(self.keys.job_queue(key)).arg(0).arg(0);
        }
        let mut row = ReplyReader::new(
            "heads",
            Value::Array(self.run_read_pipeline(shard, "heads", &pipe).await?),
        );
        keys.iter()
            .map(|_| Ok(row.read_list()?.read_text().ok().and_then(|id| JobId::parse(&id))))
            .collect()
    }
}

/// Parses a job as the scripts describe it.
pub(super) fn parse_job_view(row: &mut ReplyReader) -> Result<JobView, Error> {
    let state = JobState::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())?;
    // A value that was never stored is an empty text.
    fn parse_or_default<T: std::str::FromStr + Default>(row: &mut ReplyReader) -> Result<T, Error> {
        Ok(row.read_text()?.parse().unwrap_or_default())
    }
    let attempts = parse_or_default(row)?;
    let (reason, owner, lock) = (row.read_text()?, row.read_text()?, row.read_text()?);
    let past = JobHistory {
        lock: Some(lock).filter(|lock| !lock.is_empty()).map(|lock| Key::from_store(&lock)),
        bytes: parse_or_default(row)?,
        accepted_us: parse_or_default(row)?,
        started_us: parse_or_default(row)?,
        ended_us: parse_or_default(row)?,
        crash_count: parse_or_default(row)?,
        busy_count: parse_or_default(row)?,
        recent_runs: row.read_text()?.lines().map(str::to_owned).collect(),
        superseded_by: JobId::parse(&row.read_text()?),
        webhook_event: None,
        due_in: None,
    };
    let position = Some(row.read_number()?).filter(|position| *position > 0);
    // -1 if there is nothing to wait for.
    let due_in = row.read_text()?.parse().ok().map(Duration::from_millis);
    let past = JobHistory { due_in, ..past };
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    let (watched, response, tombstone) = (false, None, row.read_number()? == 1);
    Ok(JobView {
        state,
        attempts,
        position,
        reason,
        owner,
        is_watched: watched,
        response,
        is_tombstone: tombstone,
        history: past,
    })
}
