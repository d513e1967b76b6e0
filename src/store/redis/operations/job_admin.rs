//! Administration of jobs: lists, cancellation, redrive, purge and counts.

use std::time::Duration;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::Error,
    store::{
        backend::{
            EndedJobFilter, JobId, JobListPage, JobState, JobView, PendingCursor, ShardStats,
        },
        redis::{
            RedisBackend, operations::job_lookup::parse_job_view, reply_reader::ReplyReader,
            script_sources,
        },
    },
};

/// Most jobs of a page.
const MAX_PAGE_LEN: usize = 100;

impl RedisBackend {
    pub(super) async fn list_ended_jobs(
        &self,
        shard: u16,
        filter: EndedJobFilter,
        after: u64,
        max_jobs: usize,
    ) -> Result<JobListPage, Error> {
        let index = match filter {
            EndedJobFilter::Dead => "dead",
            EndedJobFilter::Done => "done",
        };
        let keys = [self.keys.shard_key(shard, index), self.keys.shard_key(shard, "watch")];
        let page_len = number_arg(max_jobs.min(MAX_PAGE_LEN) as u64);
        let args = [number_arg(after), page_len, self.keys.shard_key(shard, "j:").into_bytes()];
        let mut reader = ReplyReader::new(
            "list_ended_jobs",
            self.call_script(shard, &script_sources::LIST_ENDED_JOBS, &keys, &args).await?,
        );
        let next = reader.read_text()?.parse().ok();
        Ok(JobListPage { jobs: parse_jobs(&mut reader)?, next_mark: next })
    }

    pub(super) async fn list_pending_jobs(
        &self,
        shard: u16,
        cursor: PendingCursor,
        max_jobs: usize,
    ) -> Result<JobListPage<PendingCursor>, Error> {
        let keys = ["due", "late", "watch"].map(|kind| self.keys.shard_key(shard, kind));
        let index = if cursor.in_queues { "due" } else { "late" };
        let args = [
            index.into(),
            number_arg(cursor.scan_cursor),
            format!("{:016x}", cursor.after_hash).into_bytes(),
            number_arg(cursor.after_seq),
            number_arg(max_jobs.clamp(1, MAX_PAGE_LEN) as u64),
        ];
        let reply =
            self.call_script(shard, &script_sources::LIST_PENDING_JOBS, &keys, &args).await?;
        let mut reader = ReplyReader::new("list_pending_jobs", reply);
        let next = parse_pending_cursor(&mut reader.read_list()?)?;
        Ok(JobListPage { jobs: parse_jobs(&mut reader)?, next_mark: next })
    }

    pub(super) async fn cancel_queued_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number_arg(ceil_millis(retention)), number_arg(began_us)];
        let keys = [self.keys.job(&id)];
        let reply = self.call_script(id.shard(), &script_sources::CANCEL_JOB, &keys, &args).await?;
        Ok(JobState::parse(&ReplyReader::new("cancel_job", reply).read_text()?))
    }

    pub(super) async fn end_waiting_job_delay(
        &self,
        id: JobId,
        began_us: u64,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number_arg(began_us)];
        let keys = [self.keys.job(&id)];
        let reply =
            self.call_script(id.shard(), &script_sources::END_JOB_DELAY, &keys, &args).await?;
        Ok(JobState::parse(&ReplyReader::new("end_job_delay", reply).read_text()?))
    }

    pub(super) async fn redrive_ended_job(
        &self,
        id: JobId,
        ended_us: u64,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number_arg(ended_us)];
        let keys = [self.keys.job(&id)];
        let reply =
            self.call_script(id.shard(), &script_sources::REDRIVE_JOB, &keys, &args).await?;
        Ok(JobState::parse(&ReplyReader::new("redrive_job", reply).read_text()?))
    }

    pub(super) async fn purge_ended_job(&self, id: JobId, ended_us: u64) -> Result<bool, Error> {
        let shard = id.shard();
        let mut keys = self.keys.job_keys(&id).to_vec();
        keys.extend(["done", "dead", "f"].map(|kind| self.keys.shard_key(shard, kind)));
        let args = [id.as_str().into(), number_arg(ended_us)];
        let reply =
            self.call_script(shard, &script_sources::PURGE_JOB_TO_TOMBSTONE, &keys, &args).await?;
        Ok(ReplyReader::new("purge_job_to_tombstone", reply).read_number()? == 1)
    }

    pub(super) async fn read_shard_stats(&self, shard: u16) -> Result<ShardStats, Error> {
        let keys = ["f", "late", "done", "dead"].map(|kind| self.keys.shard_key(shard, kind));
        let mut reader = ReplyReader::new(
            "shard_stats",
            self.call_script(shard, &script_sources::SHARD_STATS, &keys, &[]).await?,
        );
        Ok(ShardStats {
            pending: reader.read_number()?,
            bytes: reader.read_number()?,
            delayed: reader.read_number()?,
            done: reader.read_number()?,
            dead: reader.read_number()?,
            trimmed_done: reader.read_number()?,
            trimmed_dead: reader.read_number()?,
            expired: reader.read_number()?,
            cancelled: reader.read_number()?,
        })
    }
}

/// Parses the jobs of a page.
fn parse_jobs(reader: &mut ReplyReader) -> Result<Vec<(JobId, JobView)>, Error> {
    let mut jobs = Vec::new();
    while !reader.is_empty() {
        let mut job = reader.read_list()?;
        let id = JobId::parse(&job.read_text()?).ok_or_else(|| job.protocol_error())?;
        let mut fields = job.read_list()?;
        let mut view = parse_job_view(&mut fields)?;
        view.is_watched = fields.read_number()? == 1;
        jobs.push((id, view));
    }
    Ok(jobs)
}

/// Parses the cursor of the next page; `None` after the last.
fn parse_pending_cursor(reader: &mut ReplyReader) -> Result<Option<PendingCursor>, Error> {
    if reader.is_empty() {
        return Ok(None);
    }
    let in_queues = reader.read_text()? == "due";
    let scan_cursor = reader.read_text()?.parse().map_err(|_| reader.protocol_error())?;
    let after_hash =
        u64::from_str_radix(&reader.read_text()?, 16).map_err(|_| reader.protocol_error())?;
    let after_seq = reader.read_text()?.parse().map_err(|_| reader.protocol_error())?;
    Ok(Some(PendingCursor { in_queues, scan_cursor, after_hash, after_seq }))
}
