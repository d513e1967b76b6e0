//! Operations on runs: claim, settle, and the undo of a claim.

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
            scripts::RUN_BATCH,
        },
    },
};

impl RedisBackend {
    pub(super) async fn do_claim(&self, call: ClaimCommand) -> Result<ClaimOutcome, Error> {
        let mut row = checked_reply(self.send_run_command(ClaimSettleCommand::Claim(call)).await?)?;
        match row.read_text()?.as_str() {
            "claimed" => Ok(ClaimOutcome::Claimed(parse_claimed_run(&mut row)?)),
            "busy" => Ok(ClaimOutcome::Busy(row.read_millis()?)),
            "later" => Ok(ClaimOutcome::NotDue(row.read_millis()?)),
            "moved" => Ok(ClaimOutcome::NotFirst(parse_job_id(&mut row)?)),
            "empty" => Ok(ClaimOutcome::QueueEmpty),
            "dead" => Ok(ClaimOutcome::Ended(parse_job_id(&mut row)?)),
            _ => Err(row.protocol_error()),
        }
    }

    pub(super) async fn do_settle(&self, call: SettleCommand) -> Result<SettleOutcome, Error> {
        self.send_settlement(ClaimSettleCommand::Settle(call)).await
    }

    pub(super) async fn do_unclaim(
        &self,
        key: Key,
        me: LockToken,
        id: Option<JobId>,
    ) -> Result<bool, Error> {
        let settled =
            self.send_settlement(ClaimSettleCommand::UndoClaim { key, id, token: me }).await?;
        Ok(settled != SettleOutcome::RunLost)
    }

    async fn send_settlement(&self, ask: ClaimSettleCommand) -> Result<SettleOutcome, Error> {
        let mut row = checked_reply(self.send_run_command(ask).await?)?;
        match row.read_text()?.as_str() {
            "ok" => Ok(SettleOutcome::Settled(None)),
            "claimed" => Ok(SettleOutcome::Settled(Some(parse_claimed_run(&mut row)?))),
            "lost" => Ok(SettleOutcome::RunLost),
            _ => Err(row.protocol_error()),
        }
    }
}

/// Returns the reply to one command of a batch, or its error, which affects no other command.
fn checked_reply(reply: Value) -> Result<ReplyReader, Error> {
    let row = ReplyReader::new(RUN_BATCH.name, reply);
    row.item_error().map_or(Ok(row), Err)
}

fn parse_job_id(row: &mut ReplyReader) -> Result<JobId, Error> {
    JobId::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())
}

fn parse_claimed_run(row: &mut ReplyReader) -> Result<ClaimedRun, Error> {
    Ok(ClaimedRun {
        id: parse_job_id(row)?,
        fence: row.read_number()?,
        attempt: u32::try_from(row.read_number()?).unwrap_or(u32::MAX),
        envelope: row.read_bytes()?,
        accepted_us: row.read_number()?,
        has_next: row.read_number()? > 0,
    })
}
