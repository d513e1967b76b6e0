//! Steps of runs: claim, settle, and the undo of a claim.

use bytes::Bytes;
use redis::Value;

use crate::{
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{Claim, Claimed, JobId, Run, Settle, SettledRun, Token},
        redis::{Redis, read::Row, runs::RunAsk, script::RUNS},
    },
};

impl Redis {
    pub(super) async fn do_claim(&self, call: Claim) -> Result<Claimed, Error> {
        let reply = self.ask_run(RunAsk::Claim(call)).await?;
        let mut row = match reply {
            Value::BulkString(text) => {
                return begun(&text.into()).map(Claimed::Claimed).ok_or_else(odd);
            }
            list => row(list)?,
        };
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
        let reply = self.ask_run(ask).await?;
        let mut row = match reply {
            Value::BulkString(text) if text == b"+" => return Ok(SettledRun::Stands(None)),
            Value::BulkString(text) => {
                let run = begun(&text.into()).ok_or_else(odd)?;
                return Ok(SettledRun::Stands(Some(run)));
            }
            list => row(list)?,
        };
        match row.text()?.as_str() {
            "ok" => Ok(SettledRun::Stands(None)),
            "claimed" => Ok(SettledRun::Stands(Some(run(&mut row)?))),
            "lost" => Ok(SettledRun::Lost),
            _ => Err(row.odd()),
        }
    }
}

/// A run that `runs_usual.lua` tells of.
fn begun(whole: &Bytes) -> Option<Run> {
    // The envelope, which comes last, may have blanks in it.
    let mut parts = whole.strip_prefix(b"c")?.splitn(6, |&byte| byte == b' ');
    let mut next = || parts.next();
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let id = JobId::parse(text(next()?)?)?;
    let (fence, attempt, accepted_us) = (text(next()?)?, text(next()?)?, text(next()?)?);
    Some(Run {
        id,
        fence: fence.parse().ok()?,
        attempt: attempt.parse().unwrap_or(u32::MAX),
        accepted_us: accepted_us.parse().ok()?,
        more: next()? == b"1",
        envelope: whole.slice_ref(next()?),
    })
}

fn odd() -> Error {
    Error::new(ErrorKind::Protocol, RUNS.name)
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
