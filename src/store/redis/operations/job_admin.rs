//! Operations on jobs in any state: lists, redrive, purge and counts.

use super::number_arg;
use crate::{
    error::Error,
    store::{
        backend::{EndedFilter, JobId, JobListPage, JobState, JobView, PendingCursor, ShardStats},
        redis::{
            RedisBackend, operations::job_lookup::parse_job_view, reply_reader::ReplyReader,
            scripts,
        },
    },
};

/// Most jobs of a page.
const MAX_PAGE_LEN: usize = 100;

impl RedisBackend {
    pub(super) async fn do_list_ended(
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
        let most = number_arg(most.min(MAX_PAGE_LEN) as u64);
        let args = [number_arg(from), most, self.keys.shard_key(shard, "j:").into_bytes()];
        let mut row = ReplyReader::new(
            "list_ended_jobs",
            self.call_script(shard, &scripts::LIST_ENDED_JOBS, &keys, &args).await?,
        );
        let next = row.read_text()?.parse().ok();
        Ok(JobListPage { jobs: parse_jobs(&mut row)?, next_mark: next })
    }

    pub(super) async fn do_list_pending(
        &self,
        shard: u16,
        from: PendingCursor,
        most: usize,
    ) -> Result<JobListPage<PendingCursor>, Error> {
        let keys = ["due", "late", "watch"].map(|kind| self.keys.shard_key(shard, kind));
        let index = if from.in_queues { "due" } else { "late" };
        let args = [
            index.into(),
            number_arg(from.scan_cursor),
            format!("{:016x}", from.after_hash).into_bytes(),
            number_arg(from.after_seq),
            number_arg(most.clamp(1, MAX_PAGE_LEN) as u64),
        ];
        let reply = self.call_script(shard, &scripts::LIST_PENDING_JOBS, &keys, &args).await?;
        let mut row = ReplyReader::new("list_pending_jobs", reply);
        let next = parse_pending_cursor(&mut row.read_list()?)?;
        Ok(JobListPage { jobs: parse_jobs(&mut row)?, next_mark: next })
    }

    pub(super) async fn do_redrive_job(
        &self,
        id: JobId,
        ended_us: u64,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number_arg(ended_us)];
        let keys = [self.keys.job(&id)];
        let reply = self.call_script(id.shard(), &scripts::REDRIVE_JOB, &keys, &args).await?;
        Ok(JobState::parse(&ReplyReader::new("redrive_job", reply).read_text()?))
    }

    pub(super) async fn do_purge_job(&self, id: JobId, ended_us: u64) -> Result<bool, Error> {
        let shard = id.shard();
        let mut keys = self.keys.job_keys(&id).to_vec();
        keys.extend(["done", "dead", "f"].map(|kind| self.keys.shard_key(shard, kind)));
        let args = [id.as_str().into(), number_arg(ended_us)];
        let reply = self.call_script(shard, &scripts::PURGE_JOB, &keys, &args).await?;
        Ok(ReplyReader::new("purge_job", reply).read_number()? == 1)
    }

    pub(super) async fn do_shard_stats(&self, shard: u16) -> Result<ShardStats, Error> {
        let keys = ["f", "late", "done", "dead"].map(|kind| self.keys.shard_key(shard, kind));
        let mut row = ReplyReader::new(
            "shard_stats",
            self.call_script(shard, &scripts::SHARD_STATS, &keys, &[]).await?,
        );
        Ok(ShardStats {
            pending: row.read_number()?,
            bytes: row.read_number()?,
            delayed: row.read_number()?,
            done: row.read_number()?,
            dead: row.read_number()?,
            trimmed_done: row.read_number()?,
            trimmed_dead: row.read_number()?,
            expired: row.read_number()?,
            cancelled: row.read_number()?,
        })
    }
}

/// Parses the rest of a page.
fn parse_jobs(row: &mut ReplyReader) -> Result<Vec<(JobId, JobView)>, Error> {
    let mut jobs = Vec::new();
    while !row.is_empty() {
        let mut job = row.read_list()?;
        let id = JobId::parse(&job.read_text()?).ok_or_else(|| job.protocol_error())?;
        let mut facts = job.read_list()?;
        let mut view = parse_job_view(&mut facts)?;
        view.is_watched = facts.read_number()? == 1;
        jobs.push((id, view));
    }
    Ok(jobs)
}

/// Parses the cursor of the next page; `None` after the last.
fn parse_pending_cursor(row: &mut ReplyReader) -> Result<Option<PendingCursor>, Error> {
    if row.is_empty() {
        return Ok(None);
    }
    let in_line = row.read_text()? == "due";
    let scan = row.read_text()?.parse().map_err(|_| row.protocol_error())?;
    let hash = u64::from_str_radix(&row.read_text()?, 16).map_err(|_| row.protocol_error())?;
    let seq = row.read_text()?.parse().map_err(|_| row.protocol_error())?;
    Ok(Some(PendingCursor {
        in_queues: in_line,
        scan_cursor: scan,
        after_hash: hash,
        after_seq: seq,
    }))
}
