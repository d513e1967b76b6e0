//! Enqueue of a job behind its lock, sent in a batch with others of its lane.

use redis::Value;
use tokio::time::Instant;

use super::claim_and_settle_jobs::parse_job_id;
use crate::{
    error::{Error, ErrorKind},
    store::{
        backend::{EnqueueCommand, EnqueueOutcome},
        redis::{RedisBackend, batcher::CallReply, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    #[expect(clippy::indexing_slicing, reason = "there is one for each lane")]
    pub(super) async fn enqueue_job(&self, call: EnqueueCommand) -> Result<EnqueueOutcome, Error> {
        let name = script_sources::ENQUEUE_JOBS.name;
        let shard = call.key.shard();
        self.check_breaker(shard, name)?;
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let has_envelope = !call.envelope.is_empty();
        let outcome =
            self.enqueue_batchers[self.lanes.lane_of_shard(shard)].call(call, deadline).await;
        self.record_outcome((shard, script_sources::ENQUEUE_JOBS.name), started_at, &outcome);
        let CallReply { first, attempts, .. } = outcome?;
        let outcome = parse_enqueue_reply(first)?;
        let is_refused = matches!(
            outcome,
            EnqueueOutcome::Full
                | EnqueueOutcome::NoWorker
                | EnqueueOutcome::FingerprintMismatch
                | EnqueueOutcome::TooManyRecords(_)
        );
        // An earlier copy may still arrive, and be stored if there is room then.
        if is_refused && has_envelope && attempts > 1 {
            return Err(Error::new(ErrorKind::Timeout, name));
        }
        Ok(outcome)
    }
}

fn parse_enqueue_reply(reply: Value) -> Result<EnqueueOutcome, Error> {
    if let Value::Int(position) = reply {
        return Ok(EnqueueOutcome::Stored { position: u64::try_from(position).unwrap_or(0) });
    }
    let mut reader = ReplyReader::new(script_sources::ENQUEUE_JOBS.name, reply);
    if let Some(error) = reader.item_error() {
        return Err(error);
    }
    match reader.read_text()?.as_str() {
        "stored" => Ok(EnqueueOutcome::Stored { position: reader.read_number()? }),
        "duplicate" => parse_job_id(&mut reader).map(EnqueueOutcome::Duplicate),
        "mismatch" => Ok(EnqueueOutcome::FingerprintMismatch),
        "full" => Ok(EnqueueOutcome::Full),
        "too_many_records" => Ok(EnqueueOutcome::TooManyRecords(reader.read_millis()?)),
        "no_worker" => Ok(EnqueueOutcome::NoWorker),
        "merged" => parse_job_id(&mut reader).map(EnqueueOutcome::Merged),
        _ => Err(reader.protocol_error()),
    }
}
