//! Steps of deferred requests.

use std::time::Duration;

use redis::Value;

use super::number;
use crate::{
    clock::millis,
    error::Error,
    key::Key,
    store::{
        backend::{
            Claim, Claimed, Enqueue, Enqueued, JobId, JobPolicy, JobState, JobView, Past, Run,
            Settle, SettledRun, Verdict,
        },
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_enqueue(&self, call: Enqueue) -> Result<Enqueued, Error> {
        let Enqueue { key, id, envelope, policy, record, caps, owner, .. } = call;
        let JobPolicy { again, max_attempts, .. } = policy;
        let (record, print, life) =
            record.unwrap_or_else(|| ("-".into(), String::new(), Duration::ZERO));
        let more = [self.keys.job(&id), self.keys.request(&id), self.keys.record(&key, &record)];
        let own = [
            id.as_str().into(),
            envelope.into(),
            number(u64::from(again)),
            number(max_attempts.into()),
            print.into_bytes(),
            number(millis(life)),
            number(caps.resource_jobs),
            number(caps.resource_bytes),
            number(caps.shard_jobs),
            number(caps.shard_bytes),
            owner.into_bytes(),
        ];
        let mut row = self.line_script(&script::ENQUEUE, &key, more, own.into()).await?;
        match row.text()?.as_str() {
            "stored" => Ok(Enqueued::Stored { position: row.number()? }),
            "known" => JobId::parse(&row.text()?).map(Enqueued::Known).ok_or_else(|| row.odd()),
            "mismatch" => Ok(Enqueued::Mismatch),
            "full" => Ok(Enqueued::Full),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_claim(&self, call: Claim) -> Result<Claimed, Error> {
        let Claim { key, id, me, lease, retention } = call;
        let shard = key.shard();
        let more = [
            self.keys.job(&id),
            self.keys.request(&id),
            self.keys.shard(shard, "lease"),
            self.keys.shard(shard, "dead"),
        ];
        let own = [
            id.as_str().into(),
            me.as_str().into(),
            number(millis(lease)),
            number(millis(retention)),
        ];
        let mut row = self.line_script(&script::CLAIM, &key, more, own.into()).await?;
        let (word, claimed) = (row.text()?, id);
        let id = |row: &mut Row| JobId::parse(&row.text()?).ok_or_else(|| row.odd());
        match word.as_str() {
            "claimed" => Ok(Claimed::Claimed(Run {
                id: claimed,
                fence: row.number()?,
                attempt: u32::try_from(row.number()?).unwrap_or(u32::MAX),
                envelope: row.bytes()?,
                accepted_us: row.number()?,
            })),
            "busy" => Ok(Claimed::Busy(row.millis()?)),
            "later" => Ok(Claimed::Later(row.millis()?)),
            "moved" => Ok(Claimed::Moved(id(&mut row)?)),
            "empty" => Ok(Claimed::Empty),
            "dead" => Ok(Claimed::Dead(id(&mut row)?)),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_settle(&self, call: Settle) -> Result<SettledRun, Error> {
        let Settle { key, id, me, verdict, .. } = call;
        let none = bytes::Bytes::new();
        let (verb, time, reason, response) = match verdict {
            Verdict::Done { response, retention } => ("done", retention, "", response),
            Verdict::Dead { reason, retention } => ("dead", retention, reason, none),
            Verdict::Retry { delay, reason } => ("retry", delay, reason, none),
            Verdict::Back { delay, reason } => ("back", delay, reason, none),
        };
        let index = if verb == "dead" { "dead" } else { "done" };
        let more = [
            self.keys.job(&id),
            self.keys.request(&id),
            self.keys.shard(key.shard(), "lease"),
            self.keys.shard(key.shard(), index),
            self.keys.response(&id),
        ];
        let own = [
            id.as_str().into(),
            me.as_str().into(),
            verb.into(),
            number(millis(time)),
            reason.into(),
            response.into(),
        ];
        let mut row = self.line_script(&script::SETTLE, &key, more, own.into()).await?;
        match row.text()?.as_str() {
            "ok" => Ok(SettledRun::Stands(None)),
            "lost" => Ok(SettledRun::Lost),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_cancel(
        &self,
        id: JobId,
        retention: Duration,
    ) -> Result<Option<JobState>, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGET").arg(self.keys.job(&id)).arg("lock");
        let facts = self.read(id.shard(), "cancel", &pipe).await?;
        let mut row = Row::of("cancel", Value::Array(facts));
        let Ok(name) = row.text() else {
            return Ok(None);
        };
        let key = Key::from_store(&name);
        let index = self.keys.shard(id.shard(), "done");
        let more = [self.keys.job(&id), self.keys.request(&id), index];
        let args = vec![id.as_str().into(), number(millis(retention))];
        let mut row = self.line_script(&script::CANCEL, &key, more, args).await?;
        Ok(JobState::parse(&row.text()?))
    }

    pub(super) async fn do_job(&self, id: JobId) -> Result<Option<JobView>, Error> {
        let mut pipe = redis::pipe();
        let fields = ["state", "attempts", "reason", "owner", "lock"];
        pipe.cmd("HMGET").arg(self.keys.job(&id)).arg(&fields);
        pipe.cmd("GET").arg(self.keys.response(&id));
        pipe.cmd("EXISTS").arg(self.keys.shard(id.shard(), "watch"));
        let mut row = Row::of("job", Value::Array(self.read(id.shard(), "job", &pipe).await?));
        let mut facts = row.row()?;
        let mut fact = || facts.text().unwrap_or_default();
        let (state, attempts, reason, owner, lock) = (fact(), fact(), fact(), fact(), fact());
        let Some(state) = JobState::parse(&state) else {
            return Ok(None);
        };
        let response = row.bytes().ok();
        let watched = row.number()? == 1;
        let position = if state.is_pending() {
            let mut pipe = redis::pipe();
            pipe.cmd("ZRANK").arg(self.keys.jobs(&Key::from_store(&lock))).arg(id.as_str());
            let rank = self.read(id.shard(), "job", &pipe).await?;
            Row::of("job", Value::Array(rank)).number().ok().map(|rank| rank + 1)
        } else {
            None
        };
        let attempts = attempts.parse().unwrap_or(0);
        let reason = Some(reason).filter(|r| !r.is_empty());
        let past = Past::default();
        Ok(Some(JobView { state, attempts, position, reason, owner, watched, response, past }))
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

    pub(super) async fn do_heads(&self, keys: Vec<Key>) -> Result<Vec<Option<JobId>>, Error> {
        let Some(shard) = keys.first().map(Key::shard) else {
            return Ok(Vec::new());
        };
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("ZRANGE").arg(self.keys.jobs(key)).arg(0).arg(0);
        }
        let mut row = Row::of("heads", Value::Array(self.read(shard, "heads", &pipe).await?));
        keys.iter().map(|_| Ok(row.row()?.text().ok().and_then(|id| JobId::parse(&id)))).collect()
    }
}
