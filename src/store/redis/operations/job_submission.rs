//! Operations on waiting jobs (enqueue, cancel, poll of due locks), and on direct runs.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use tokio::time::Instant;

use super::number_arg;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{
            BeginDirectOutcome, DirectRunCommand, DueLocks, EnqueueCommand, EnqueueOutcome, JobId,
            JobState,
        },
        redis::{RedisBackend, batcher::CallReply, reply_reader::ReplyReader, scripts},
    },
};

impl RedisBackend {
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    pub(super) async fn do_enqueue(&self, call: EnqueueCommand) -> Result<EnqueueOutcome, Error> {
        let name = scripts::ENQUEUE_BATCH.name;
        let shard = call.key.shard();
        self.check_breaker(shard, name)?;
        let until = Instant::now() + self.deadline;
        let stores = !call.envelope.is_empty();
        let outcome =
            self.enqueue_batchers[self.lanes.lane_of_shard(shard)].call(call, until).await;
        self.record_outcome(shard, &outcome);
        let CallReply { first, attempts: sent, .. } = outcome?;
        let stored = parse_enqueue_reply(first)?;
        let refused = matches!(
            stored,
            EnqueueOutcome::Full
                | EnqueueOutcome::NoWorker
                | EnqueueOutcome::FingerprintMismatch
                | EnqueueOutcome::TooManyRecords(_)
        );
        // An earlier copy may still arrive, and be stored if there is room then.
        if refused && stores && sent > 1 {
            return Err(Error::new(ErrorKind::Timeout, name));
        }
        Ok(stored)
    }

    pub(super) async fn do_cancel_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> Result<Option<JobState>, Error> {
        let args = [id.as_str().into(), number_arg(ceil_millis(retention)), number_arg(began_us)];
        let keys = [self.keys.job(&id)];
        let reply = self.call_script(id.shard(), &scripts::CANCEL_JOB, &keys, &args).await?;
        Ok(JobState::parse(&ReplyReader::new("cancel_job", reply).read_text()?))
    }

    pub(super) async fn do_begin_direct(
        &self,
        call: DirectRunCommand,
    ) -> Result<BeginDirectOutcome, Error> {
        let holds = format!("h{}{}", call.mode.member_tag(), call.token.as_str()).into();
        let mut row = self.call_direct_script("begin", call, holds).await?;
        match row.read_text()?.as_str() {
            "" => Ok(BeginDirectOutcome::Started),
            "lost" => Ok(BeginDirectOutcome::LockLost),
            known if known.starts_with("keys ") => {
                let left =
                    known.trim_start_matches("keys ").parse().map_err(|_| row.protocol_error())?;
                Ok(BeginDirectOutcome::TooManyRecords(Duration::from_millis(left)))
            }
            known => JobId::parse(known)
                .map(BeginDirectOutcome::RecordTaken)
                .ok_or_else(|| row.protocol_error()),
        }
    }

    /// Updates a direct run; false if it no longer runs.
    pub(super) async fn do_update_direct(
        &self,
        verb: &'static str,
        call: DirectRunCommand,
        what: Bytes,
    ) -> Result<bool, Error> {
        let mut row = self.call_direct_script(verb, call, what).await?;
        Ok(!row.read_text()?.is_empty())
    }

    async fn call_direct_script(
        &self,
        verb: &str,
        call: DirectRunCommand,
        what: Bytes,
    ) -> Result<ReplyReader, Error> {
        let DirectRunCommand {
            key,
            record_name: record,
            id,
            owner,
            retention: life,
            lease,
            retry_after_crash: again,
            limits: caps,
            fingerprint: print,
            ..
        } = call;
        let keys = [
            self.keys.holders(&key),
            self.keys.job(&id),
            self.keys.response(&id),
            self.keys.idempotency_record(&key, &record),
        ];
        let args = [
            verb.into(),
            id.as_str().into(),
            number_arg(ceil_millis(life)),
            owner.into_bytes(),
            what.into(),
            print.unwrap_or_else(|| "-".to_owned()).into_bytes(),
            number_arg(ceil_millis(lease)),
            number_arg(u64::from(again)),
            number_arg(caps.ended_bytes),
            number_arg(caps.owner_records),
        ];
        let reply = self.call_script(key.shard(), &scripts::DIRECT_RUN, &keys, &args).await?;
        Ok(ReplyReader::new(scripts::DIRECT_RUN.name, reply))
    }

    pub(super) async fn do_poll_due(
        &self,
        shards: Vec<u16>,
        most: usize,
    ) -> Result<Vec<DueLocks>, Error> {
        let Some(&lane) = shards.first() else {
            return Ok(Vec::new());
        };
        if self.keys.is_clustered() {
            return self.due_per_shard(&shards, most).await;
        }
        let keys: Vec<_> = shards.iter().map(|&shard| self.keys.shard_key(shard, "due")).collect();
        let args = [number_arg(most as u64), number_arg(shards.len() as u64)];
        let reply = self.call_script(lane, &scripts::POLL_DUE, &keys, &args).await?;
        let mut rows = ReplyReader::new("poll_due", reply);
        shards.iter().map(|_| parse_due_locks(rows.read_list()?)).collect()
    }
}

fn parse_enqueue_reply(reply: Value) -> Result<EnqueueOutcome, Error> {
    if let Value::Int(position) = reply {
        return Ok(EnqueueOutcome::Stored { position: u64::try_from(position).unwrap_or(0) });
    }
    let mut row = ReplyReader::new(scripts::ENQUEUE_BATCH.name, reply);
    if let Some(error) = row.item_error() {
        return Err(error);
    }
    match row.read_text()?.as_str() {
        "stored" => Ok(EnqueueOutcome::Stored { position: row.read_number()? }),
        "known" => parse_job_id(&mut row).map(EnqueueOutcome::Duplicate),
        "mismatch" => Ok(EnqueueOutcome::FingerprintMismatch),
        "full" => Ok(EnqueueOutcome::Full),
        "keys" => Ok(EnqueueOutcome::TooManyRecords(row.read_millis()?)),
        "unmanned" => Ok(EnqueueOutcome::NoWorker),
        "merged" => parse_job_id(&mut row).map(EnqueueOutcome::Merged),
        _ => Err(row.protocol_error()),
    }
}

pub(super) fn parse_due_locks(mut row: ReplyReader) -> Result<DueLocks, Error> {
    // -1 if no lock becomes due.
    let next = row.read_text()?.parse().ok().map(Duration::from_micros);
    let mut names = Vec::new();
    while !row.is_empty() {
        let name = Key::from_store(&row.read_text()?);
        names.push((name, JobId::parse(&row.read_text()?)));
    }
    Ok(DueLocks { locks: names, next_due_in: next })
}

fn parse_job_id(row: &mut ReplyReader) -> Result<JobId, Error> {
    JobId::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())
}
