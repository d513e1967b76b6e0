//! Operations on runs of jobs: claim, settlement, and the undo of a claim.

use std::time::Duration;

use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{
            ClaimCommand, ClaimOutcome, ClaimedRun, JobId, LockToken, SettleCommand, SettleOutcome,
        },
        redis::{
            RedisBackend, claim_settle_transport::ClaimSettleCommand, reply_reader::ReplyReader,
            script_sources::CLAIM_SETTLE_BATCH,
        },
    },
};

impl RedisBackend {
    pub(super) async fn claim_job(&self, call: ClaimCommand) -> Result<ClaimOutcome, Error> {
        let mut reader = batch_item_reader(
            self.send_claim_or_settlement(ClaimSettleCommand::Claim(call)).await?,
        )?;
        match reader.read_text()?.as_str() {
            "claimed" => Ok(ClaimOutcome::Claimed(parse_claimed_run(&mut reader)?)),
            "busy" => Ok(ClaimOutcome::Busy(reader.read_millis()?)),
            "not_due" => Ok(ClaimOutcome::NotDue(reader.read_millis()?)),
            "not_first" => Ok(ClaimOutcome::NotFirst(parse_job_id(&mut reader)?)),
            "empty" => Ok(ClaimOutcome::QueueEmpty),
            "ended" => Ok(ClaimOutcome::Ended(parse_job_id(&mut reader)?)),
            _ => Err(reader.protocol_error()),
        }
    }

    pub(super) async fn settle_run(&self, call: SettleCommand) -> Result<SettleOutcome, Error> {
        self.send_settlement(ClaimSettleCommand::Settle(call)).await
    }

    pub(super) async fn undo_claim(
        &self,
        key: Key,
        token: LockToken,
        id: Option<JobId>,
    ) -> Result<bool, Error> {
        let outcome =
            self.send_settlement(ClaimSettleCommand::UndoClaim { key, id, token }).await?;
        Ok(outcome != SettleOutcome::RunLost)
    }

    async fn send_settlement(&self, command: ClaimSettleCommand) -> Result<SettleOutcome, Error> {
        let mut reader = batch_item_reader(self.send_claim_or_settlement(command).await?)?;
        match reader.read_text()?.as_str() {
            "ok" => Ok(SettleOutcome::Settled(None)),
            "claimed" => Ok(SettleOutcome::Settled(Some(parse_claimed_run(&mut reader)?))),
            "lost" => Ok(SettleOutcome::RunLost),
            _ => Err(reader.protocol_error()),
        }
    }
}

/// Returns the reply to one command of a batch, or its error, which affects no other command.
fn batch_item_reader(reply: Value) -> Result<ReplyReader, Error> {
    let reader = ReplyReader::new(CLAIM_SETTLE_BATCH.name, reply);
    reader.item_error().map_or(Ok(reader), Err)
}

pub(super) fn parse_job_id(reader: &mut ReplyReader) -> Result<JobId, Error> {
    JobId::parse(&reader.read_text()?).ok_or_else(|| reader.protocol_error())
}

fn parse_claimed_run(reader: &mut ReplyReader) -> Result<ClaimedRun, Error> {
    let run = ClaimedRun {
        id: parse_job_id(reader)?,
        fence: reader.read_number()?,
        attempt: u32::try_from(reader.read_number()?).unwrap_or(u32::MAX),
        envelope: reader.read_bytes()?,
        accepted_us: reader.read_number()?,
        has_next: reader.read_number()? > 0,
        was_not_offered: !reader.is_empty() && reader.read_number()? > 0,
        crashed_run_age: None,
    };
    let crashed_run_us = if reader.is_empty() { 0 } else { reader.read_number()? };
    let crashed_run_age = (crashed_run_us > 0).then(|| Duration::from_micros(crashed_run_us));
    Ok(ClaimedRun { crashed_run_age, ..run })
}
