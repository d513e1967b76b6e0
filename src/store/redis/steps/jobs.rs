//! Steps of deferred requests.

use std::time::Duration;

#[cfg(test)]
use futures_util::future::join_all;
use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{JobId, JobState, JobView, JobHistory, ActiveRun},
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        let shard = id.shard();
        let keys = [self.keys.job(&id), self.keys.response(&id), self.keys.shard_key(shard, "watch")];
        let args = [id.as_str().into()];
        let mut row = Row::of("job", self.script(shard, &script::JOB, &keys, &args).await?);
        if row.is_empty() {
            return Ok(None);
        }
        let mut view = view(&mut row)?;
        view.is_watched = row.number()? == 1;
        // Nil where the response has vanished.
        view.response = row.bytes().ok().filter(|_| view.state == JobState::Done);
        view.history.webhook_event = Some(row.text()?).filter(|end| !end.is_empty());
        Ok(Some(view))
    }

    pub(super) async fn do_running(&self, id: JobId) -> Result<Option<ActiveRun>, Error> {
        let (keys, args) = ([self.keys.job(&id)], [id.as_str().into()]);
        let reply = self.script(id.shard(), &script::RUNNING, &keys, &args).await?;
        let mut row = Row::of("running", reply);
        if row.is_empty() {
            return Ok(None);
        }
        let attempt = row.number()?.try_into().map_err(|_| row.odd())?;
        Ok(Some(ActiveRun { attempt, first_fence: row.number()? }))
    }

    pub(super) async fn do_envelope(&self, id: JobId) -> Result<Option<bytes::Bytes>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(self.keys.request(&id));
        let answer = self.read(id.shard(), "envelope", &pipe).await?;
        Ok(Row::of("envelope", Value::Array(answer)).bytes().ok())
    }

    pub(super) async fn do_clock(&self) -> Result<u64, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let mut row = Row::of("clock", Value::Array(self.read(0, "clock", &pipe).await?));
        let mut time = row.row()?;
        Ok(time.number()?.saturating_mul(1_000_000).saturating_add(time.number()?))
    }

    #[cfg(test)]
    pub(super) async fn do_heads(&self, keys: Vec<Key>) -> Result<Vec<Option<JobId>>, Error> {
        let Some(shard) = keys.first().map(Key::shard) else {
            return Ok(Vec::new());
        };
        if self.keys.are_apart() && keys.iter().any(|key| key.shard() != shard) {
            let one = |key: &Key| Box::pin(self.do_heads(vec![key.clone()]));
            let heads = join_all(keys.iter().map(one)).await;
            return heads.into_iter().map(|head| Ok(head?.pop().flatten())).collect();
        }
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("ZRANGE").arg(self.keys.jobs(key)).arg(0).arg(0);
        }
        let mut row = Row::of("heads", Value::Array(self.read(shard, "heads", &pipe).await?));
        keys.iter().map(|_| Ok(row.row()?.text().ok().and_then(|id| JobId::parse(&id)))).collect()
    }
}

/// What `view.lua` says.
pub(super) fn view(row: &mut Row) -> Result<JobView, Error> {
    let state = JobState::parse(&row.text()?).ok_or_else(|| row.odd())?;
    // A fact that was never written down is an empty text.
    fn count<T: std::str::FromStr + Default>(row: &mut Row) -> Result<T, Error> {
        Ok(row.text()?.parse().unwrap_or_default())
    }
    let attempts = count(row)?;
    let (reason, owner, lock) = (row.text()?, row.text()?, row.text()?);
    let past = JobHistory {
        lock: Some(lock).filter(|lock| !lock.is_empty()).map(|lock| Key::from_store(&lock)),
        bytes: count(row)?,
        accepted_us: count(row)?,
        started_us: count(row)?,
        ended_us: count(row)?,
        crash_count: count(row)?,
        busy_count: count(row)?,
        recent_runs: row.text()?.lines().map(str::to_owned).collect(),
        superseded_by: JobId::parse(&row.text()?),
        webhook_event: None,
        due_in: None,
    };
    let position = Some(row.number()?).filter(|position| *position > 0);
    // -1: nothing to wait for.
    let due_in = row.text()?.parse().ok().map(Duration::from_millis);
    let past = JobHistory { due_in, ..past };
    let reason = Some(reason).filter(|reason| !reason.is_empty());
    let (watched, response, tombstone) = (false, None, row.number()? == 1);
    Ok(JobView { state, attempts, position, reason, owner, is_watched: watched, response, is_tombstone: tombstone, history: past })
}
