//! Steps of a lock and its line.

use std::time::Duration;

use redis::Value;

use super::number;
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{Acquire, Acquired, GaveBack, JobId, Mode, Others, Renewal, Step, Still, Token},
        redis::{Redis, ask::Ask, read::Row, script, wire::Said},
    },
};

impl Redis {
    pub(super) async fn do_acquire(&self, call: Acquire) -> Result<Acquired, Error> {
        let looks = call.record.is_some();
        let answer = self.ask(Ask::Acquire(call)).await?;
        acquired(answer.first, looks, answer.sent)
    }

    pub(super) async fn do_acquire_all(
        &self,
        calls: Vec<Acquire>,
    ) -> Result<Option<Vec<Acquired>>, Error> {
        let Some(Acquire { key, mode, lease, .. }) = calls.first() else { return Ok(None) };
        let shard = key.shard();
        if self.keys.are_apart() && calls.iter().any(|call| call.key.shard() != shard) {
            return Ok(None);
        }
        let keys = Vec::from_iter(calls.iter().map(|call| self.keys.holders(&call.key)));
        let terms = [mode.letter().into(), number(millis(*lease)), number(mode.limit())];
        let tokens = calls.iter().map(|call| call.me.as_str().into());
        let args = Vec::from_iter(terms.into_iter().chain(tokens));
        let reply = self.script(shard, &script::SEVERAL, &keys, &args).await?;
        let mut rows = Row::of(script::SEVERAL.name, reply);
        if rows.is_empty() {
            return Ok(None);
        }
        let each = calls.iter().map(|_| held_in(&mut rows.row()?));
        each.collect::<Result<_, _>>().map(Some)
    }

    pub(super) async fn do_still(&self, key: Key, me: Token) -> Result<Option<Still>, Error> {
        let answer = self.ask(Ask::Still { key, me }).await?;
        if matches!(&answer.first, Said::Words(words) if words == "lost") {
            return Ok(None);
        }
        match acquired(answer.first, false, answer.sent)? {
            Acquired::Held { fence, others, now, .. } => Ok(Some(Still { fence, others, now })),
            Acquired::Busy { .. } | Acquired::Known => {
                Err(Error::new(ErrorKind::Protocol, script::CALLS.name))
            }
        }
    }

    pub(super) async fn do_release(
        &self,
        key: Key,
        me: Token,
        mode: Mode,
    ) -> Result<GaveBack, Error> {
        let answer = self.ask(Ask::Release { key, me, mode }).await?;
        gave_back(answer.first, answer.sent)
    }

    pub(super) fn do_send_release(
        &self,
        key: Key,
        me: Token,
        mode: Mode,
    ) -> Option<Step<'static, GaveBack>> {
        let answer = self.tell(Ask::Release { key, me, mode })?;
        Some(Box::pin(async move {
            let answer = answer.await?;
            gave_back(answer.first, answer.sent)
        }))
    }

    pub(super) async fn do_pass(
        &self,
        me: Token,
        mode: Mode,
        next: Acquire,
    ) -> Result<(GaveBack, Acquired), Error> {
        let looks = next.record.is_some();
        let answer = self.ask(Ask::Pass { me, mode, next }).await?;
        let gave_back = gave_back(answer.first, answer.sent)?;
        let second = answer.second.unwrap_or(Said::Value(Value::Nil));
        Ok((gave_back, acquired(second, looks, answer.sent)?))
    }

    pub(super) async fn do_downgrade(
        &self,
        key: Key,
        me: Token,
        lease: Duration,
    ) -> Result<bool, Error> {
        let answer = self.ask(Ask::Downgrade { key, me, lease }).await?;
        let mut row = row(answer.first, answer.sent)?;
        match row.text()?.as_str() {
            "ok" => Ok(true),
            "lost" => Ok(false),
            _ => Err(row.odd()),
        }
    }

    pub(super) async fn do_renew(&self, items: Vec<Renewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for Renewal { key, me, mode, lease, job } in &items {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard(key.shard(), "due"));
            // A key that is not touched: it only has to carry the shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number(millis(*lease));
            let tag = mode.tag().into();
            args.extend([me.as_str().into(), lease, key.as_str().into(), job.into(), tag]);
        }
        let reply = self.script(shard, &script::RENEW, &keys, &args).await?;
        let mut row = Row::of("renew", reply);
        items.iter().map(|_| Ok(row.number()? == 1)).collect()
    }
}

impl Redis {
    pub(super) async fn do_raise_fence(
        &self,
        key: Key,
        me: Token,
        fence: u64,
    ) -> Result<bool, Error> {
        let shard = key.shard();
        let keys = [self.keys.holders(&key), self.keys.shard(shard, "f")];
        let args = [format!("h{}", me.as_str()).into_bytes(), number(fence)];
        let reply = self.script(shard, &script::RAISE, &keys, &args).await?;
        Ok(Row::of(script::RAISE.name, reply).number()? == 1)
    }
}

/// The reply to one step of several; an error if that step failed, which the others did not notice. One that was sent before
/// may have run then, whatever this copy of it has met.
fn row(reply: Said, sent: u32) -> Result<Row, Error> {
    let reply = match reply {
        Said::Words(words) => Value::BulkString(words.into()),
        Said::Value(value) => value,
    };
    let row = Row::of(script::CALLS.name, reply);
    match row.refusal() {
        Some(error) if sent > 1 => {
            Err(Error::new(ErrorKind::Timeout, script::CALLS.name).with(error))
        }
        Some(error) => Err(error),
        None => Ok(row),
    }
}

fn acquired(reply: Said, looks: bool, sent: u32) -> Result<Acquired, Error> {
    if let Said::Words(words) = &reply
        && let Some(acquired) = in_words(words)
    {
        return Ok(acquired);
    }
    let mut row = row(reply, sent)?;
    match row.text()?.as_str() {
        "held" => granted(&mut row),
        "busy" => Ok(Acquired::Busy {
            left: row.millis()?,
            line: row.number()?,
            seq: row.number()?,
            joined: row.number()? == 1,
        }),
        // Only to those who asked: the engines rely on it.
        "known" if looks => Ok(Acquired::Known),
        _ => Err(row.odd()),
    }
}

/// What follows `held`.
fn granted(row: &mut Row) -> Result<Acquired, Error> {
    Ok(Acquired::Held {
        fence: row.number()?,
        line: row.number()?,
        others: Others { first: row.number()?, job: row.number()? },
        now: row.number()?,
    })
}

/// One of several, of which all are held.
fn held_in(row: &mut Row) -> Result<Acquired, Error> {
    match row.text()?.as_str() {
        "held" => granted(row),
        _ => Err(row.odd()),
    }
}

/// Parses an answer of `usual.lua`: a grant of a lock without waiters.
fn in_words(text: &[u8]) -> Option<Acquired> {
    let (fence, now) = std::str::from_utf8(text).ok()?.strip_prefix("held ")?.split_once(' ')?;
    let (fence, now) = (fence.parse().ok()?, now.parse().ok()?);
    Some(Acquired::Held { fence, line: 0, others: Others::place(0), now })
}

fn gave_back(reply: Said, sent: u32) -> Result<GaveBack, Error> {
    if matches!(&reply, Said::Words(words) if words == "released") {
        return Ok(GaveBack::Released);
    }
    let mut row = row(reply, sent)?;
    match row.text()?.as_str() {
        "none" if sent > 1 => Ok(GaveBack::NothingOnRetry),
        "released" => Ok(GaveBack::Released),
        "left" => Ok(GaveBack::Left),
        "lost" => Ok(GaveBack::Lost),
        "none" => Ok(GaveBack::Nothing),
        _ => Err(row.odd()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Said {
        let words = ["error", "OOM command not allowed when used memory > 'maxmemory'."];
        Said::Value(Value::Array(words.map(|word| Value::BulkString(word.into())).into()))
    }

    /// An earlier copy may have taken the lock, and has to be undone.
    #[test]
    fn a_copy_for_which_there_is_no_room_leaves_the_first_in_doubt() {
        for (sent, kind) in [(1, ErrorKind::Unavailable), (2, ErrorKind::Timeout)] {
            let error = acquired(refused(), false, sent).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {sent} times");
            let error = gave_back(refused(), sent).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {sent} times");
        }
    }
}
