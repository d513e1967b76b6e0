//! Operations on direct runs: begin, renewal, end with or without a response, and dead letter.

use std::time::Duration;

use bytes::Bytes;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::Error,
    store::{
        backend::{BeginDirectOutcome, DirectRunCommand, JobId},
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn begin_direct_run(
        &self,
        call: DirectRunCommand,
    ) -> Result<BeginDirectOutcome, Error> {
        let holder_member = format!("h{}{}", call.mode.member_tag(), call.token.as_str()).into();
        let mut reader = self.call_direct_script("begin", call, holder_member).await?;
        match reader.read_text()?.as_str() {
            "" => Ok(BeginDirectOutcome::Started),
            "lost" => Ok(BeginDirectOutcome::LockLost),
            text if text.starts_with("too_many_records ") => {
                let remaining_ms = text
                    .trim_start_matches("too_many_records ")
                    .parse()
                    .map_err(|_| reader.protocol_error())?;
                Ok(BeginDirectOutcome::TooManyRecords(Duration::from_millis(remaining_ms)))
            }
            text => JobId::parse(text)
                .map(BeginDirectOutcome::RecordTaken)
                .ok_or_else(|| reader.protocol_error()),
        }
    }

    /// Updates a direct run; false if it no longer runs.
    pub(super) async fn update_direct_run(
        &self,
        verb: &'static str,
        call: DirectRunCommand,
        payload: Bytes,
    ) -> Result<bool, Error> {
        let mut reader = self.call_direct_script(verb, call, payload).await?;
        Ok(!reader.read_text()?.is_empty())
    }

    async fn call_direct_script(
        &self,
        verb: &str,
        call: DirectRunCommand,
        payload: Bytes,
    ) -> Result<ReplyReader, Error> {
        let DirectRunCommand {
            key,
            record_name,
            id,
            owner,
            retention,
            lease,
            retry_after_crash,
            limits,
            fingerprint,
            ..
        } = call;
        let keys = [
            self.keys.holders(&key),
            self.keys.job(&id),
            self.keys.response(&id),
            self.keys.idempotency_record(&key, &record_name),
        ];
        let args = [
            verb.into(),
            id.as_str().into(),
            number_arg(ceil_millis(retention)),
            owner.into_bytes(),
            payload.into(),
            fingerprint.unwrap_or_else(|| "-".to_owned()).into_bytes(),
            number_arg(ceil_millis(lease)),
            number_arg(u64::from(retry_after_crash)),
            number_arg(limits.ended_bytes),
            number_arg(limits.owner_records),
        ];
        let reply = self
            .call_script(key.shard(), &script_sources::IDEMPOTENT_RUN_RECORD, &keys, &args)
            .await?;
        Ok(ReplyReader::new(script_sources::IDEMPOTENT_RUN_RECORD.name, reply))
    }
}
