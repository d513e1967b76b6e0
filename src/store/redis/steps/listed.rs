//! Steps about jobs wherever they are: list, pending, redrive, purge, tally.

use super::number;
use crate::{
    error::Error,
    store::{
        backend::{JobId, JobState, JobView, JobListPage, EndedFilter, PendingCursor, ShardStats},
        redis::{Redis, read::Row, script, steps::jobs::view},
    },
};

/// Most jobs of a page.
const PAGE: usize = 100;

impl Redis {
    pub(super) async fn do_list(
        &self,
        shard: u16,
        which: EndedFilter,
        from: u64,
        most: usize,
    ) -> Result<JobListPage, Error> {
        let index = match which {
            EndedFilter::Dead => "dead",
            EndedFilter::Done => "done",
        };
        let keys = [self.keys.shard_key(shard, index), self.keys.shard_key(shard, "watch")];
        let most = number(most.min(PAGE) as u64);
        let args = [number(from), most, self.keys.shard_key(shard, "j:").into_bytes()];
        let mut row = Row::of("list", self.script(shard, &script::LIST, &keys, &args).await?);
        let next = row.text()?.parse().ok();
        Ok(JobListPage { jobs: jobs(&mut row)?, next_mark: next })
    }

    pub(super) async fn do_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> Result<JobListPage<PendingCursor>, Error> {
        let keys = ["due", "late", "watch"].map(|kind| self.keys.shard_key(shard, kind));
        let index = if from.in_queues { "due" } else { "late" };
        let args = [
            index.into(),
            number(from.scan_cursor),
            format!("{:016x}", from.after_hash).into_bytes(),
            number(from.after_seq),
            number(most.clamp(1, PAGE) as u64),
        ];
        let reply = self.script(shard, &script::PENDING, &keys, &args).await?;
        let mut row = Row::of("pending", reply);
        let next = mark(&mut row.row()?)?;
        Ok(JobListPage { jobs: jobs(&mut row)?, next_mark: next })
    }

    pub(super) async fn do_redrive(
        &self,
        id: JobId,
        ended_us: u64,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number(ended_us)];
        let keys = [self.keys.job(&id)];
        let reply = self.script(id.shard(), &script::REDRIVE, &keys, &args).await?;
        Ok(JobState::parse(&Row::of("redrive", reply).text()?))
    }

    pub(super) async fn do_purge(&self, id: JobId, ended_us: u64) -> Result<bool, Error> {
        let shard = id.shard();
        let mut keys = self.keys.job_keys(&id).to_vec();
        keys.extend(["done", "dead", "f"].map(|kind| self.keys.shard_key(shard, kind)));
        let args = [id.as_str().into(), number(ended_us)];
        let reply = self.script(shard, &script::PURGE, &keys, &args).await?;
        Ok(Row::of("purge", reply).number()? == 1)
    }

    pub(super) async fn do_tally(&self, shard: u16) -> Result<ShardStats, Error> {
        let keys = ["f", "late", "done", "dead"].map(|kind| self.keys.shard_key(shard, kind));
        let mut row = Row::of("tally", self.script(shard, &script::TALLY, &keys, &[]).await?);
        Ok(ShardStats {
            pending: row.number()?,
            bytes: row.number()?,
            delayed: row.number()?,
            done: row.number()?,
            dead: row.number()?,
            trimmed_done: row.number()?,
            trimmed_dead: row.number()?,
            expired: row.number()?,
            cancelled: row.number()?,
        })
    }
}

/// The rest of a page.
fn jobs(row: &mut Row) -> Result<Vec<(JobId, JobView)>, Error> {
    let mut jobs = Vec::new();
    while !row.is_empty() {
        let mut job = row.row()?;
        let id = JobId::parse(&job.text()?).ok_or_else(|| job.odd())?;
        let mut facts = job.row()?;
        let mut view = view(&mut facts)?;
        view.is_watched = facts.number()? == 1;
        jobs.push((id, view));
    }
    Ok(jobs)
}

/// `None`: there is nothing more.
fn mark(row: &mut Row) -> Result<Option<PendingCursor>, Error> {
    if row.is_empty() {
        return Ok(None);
    }
    let in_line = row.text()? == "due";
    let scan = row.text()?.parse().map_err(|_| row.odd())?;
    let hash = u64::from_str_radix(&row.text()?, 16).map_err(|_| row.odd())?;
    let seq = row.text()?.parse().map_err(|_| row.odd())?;
    Ok(Some(PendingCursor { in_queues: in_line, scan_cursor: scan, after_hash: hash, after_seq: seq }))
}
