//! Steps of runs: claim, settle, and the undo of a claim.

use redis::Value;

use crate::{
    error::Error,
    key::Key,
    store::{
        backend::{Claim, Claimed, JobId, Run, Settle, SettledRun, Token},
        redis::{Redis, read::Row, runs::RunAsk, script::RUNS},
    },
};

impl Redis {
    pub(super) async fn do_claim(&self, call: Claim) -> Result<Claimed, Error> {
        let mut row = row(self.ask_run(RunAsk::Claim(call)).await?)?;
        match row.text()?.as_str() {
            "claimed" => Ok(Claimed::Claimed(run(&mut row)?)),
            "busy" => Ok(Claimed::Busy(row.millis()?)),
            "later" => Ok(Claimed::Later(row.millis()?)),
            "moved" => Ok(Claimed::Moved(id(&mut row)?)),
            "empty" => Ok(Claimed::Empty),
            "dead" => Ok(Claimed::Dead(id(&mut row)?)),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_settle(&self, call: Settle) -> Result<SettledRun, Error> {
        self.settled(RunAsk::Settle(call)).await
    }

    pub(super) async fn do_unclaim(
        &self,
        key: Key,
        me: Token,
        id: Option<JobId>,
    ) -> Result<bool, Error> {
        let settled = self.settled(RunAsk::Undo { key, id, me }).await?;
        Ok(settled != SettledRun::Lost)
    }

    async fn settled(&self, ask: RunAsk) -> Result<SettledRun, Error> {
        let mut row = row(self.ask_run(ask).await?)?;
        match row.text()?.as_str() {
            "ok" => Ok(SettledRun::Stands(None)),
            "claimed" => Ok(SettledRun::Stands(Some(run(&mut row)?))),
            "lost" => Ok(SettledRun::Lost),
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

fn run(row: &mut Row) -> Result<Run, Error> {
    Ok(Run {
        id: id(row)?,
        fence: row.number()?,
        attempt: u32::try_from(row.number()?).unwrap_or(u32::MAX),
        envelope: row.bytes()?,
        accepted_us: row.number()?,
        more: row.number()? > 0,
    })
}
