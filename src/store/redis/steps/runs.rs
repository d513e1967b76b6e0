//! Steps of runs: claim, settle, and the undo of a claim.

use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{ClaimCommand, ClaimOutcome, JobId, ClaimedRun, SettleCommand, SettleOutcome, LockToken},
        redis::{Redis, read::Row, runs::RunAsk, script::RUNS},
    },
};

impl Redis {
    pub(super) async fn do_claim(&self, call: ClaimCommand) -> Result<ClaimOutcome, Error> {
        let mut row = row(self.ask_run(RunAsk::Claim(call)).await?)?;
        match row.text()?.as_str() {
            "claimed" => Ok(ClaimOutcome::Claimed(run(&mut row)?)),
            "busy" => Ok(ClaimOutcome::Busy(row.millis()?)),
            "later" => Ok(ClaimOutcome::NotDue(row.millis()?)),
            "moved" => Ok(ClaimOutcome::NotFirst(id(&mut row)?)),
            "empty" => Ok(ClaimOutcome::QueueEmpty),
            "dead" => Ok(ClaimOutcome::Ended(id(&mut row)?)),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_settle(&self, call: SettleCommand) -> Result<SettleOutcome, Error> {
        self.settled(RunAsk::Settle(call)).await
    }

    pub(super) async fn do_unclaim(
        &self,
        key: Key,
        me: LockToken,
        id: Option<JobId>,
    ) -> Result<bool, Error> {
        let settled = self.settled(RunAsk::Undo { key, id, me }).await?;
        Ok(settled != SettleOutcome::RunLost)
    }

    async fn settled(&self, ask: RunAsk) -> Result<SettleOutcome, Error> {
        let mut row = row(self.ask_run(ask).await?)?;
        match row.text()?.as_str() {
            "ok" => Ok(SettleOutcome::Settled(None)),
            "claimed" => Ok(SettleOutcome::Settled(Some(run(&mut row)?))),
            "lost" => Ok(SettleOutcome::RunLost),
            _ => Err(row.odd()),
        }
    }
}

/// The reply to one step of several; an error if that step failed, which the others did not notice.
fn row(reply: Value) -> Result<Row, Error> {
    let row = Row::of(RUNS.name, reply);
    row.refusal().map_or(Ok(row), Err)
}

fn id(row: &mut Row) -> Result<JobId, Error> {
    JobId::parse(&row.text()?).ok_or_else(|| row.odd())
}

fn run(row: &mut Row) -> Result<ClaimedRun, Error> {
    Ok(ClaimedRun {
        id: id(row)?,
        fence: row.number()?,
        attempt: u32::try_from(row.number()?).unwrap_or(u32::MAX),
        envelope: row.bytes()?,
        accepted_us: row.number()?,
        has_next: row.number()? > 0,
    })
}
