//! Steps of a lock and its line.

use std::time::Duration;

use redis::Value;

use super::number;
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{AcquireCommand, AcquireReply, ReleaseOutcome, JobId, LockMode, Contenders, LeaseRenewal, StoreFuture, GrantRefresh, LockToken},
        redis::{Redis, ask::Ask, read::Row, script, wire::Said},
    },
};

impl Redis {
    pub(super) async fn do_acquire(&self, call: AcquireCommand) -> Result<AcquireReply, Error> {
        let looks = call.record_name.is_some();
        let answer = self.ask(Ask::Acquire(call)).await?;
        acquired(answer.first, looks, answer.sent)
    }

    pub(super) async fn do_acquire_all(
        &self,
        calls: Vec<AcquireCommand>,
    ) -> Result<Option<Vec<AcquireReply>>, Error> {
        let Some(AcquireCommand { key, mode, lease, .. }) = calls.first() else { return Ok(None) };
        let shard = key.shard();
        if self.keys.is_clustered() && calls.iter().any(|call| call.key.shard() != shard) {
            return Ok(None);
        }
        let keys = Vec::from_iter(calls.iter().map(|call| self.keys.holders(&call.key)));
        let terms = [mode.wire_letter().into(), number(millis(*lease)), number(mode.max_permits())];
        let tokens = calls.iter().map(|call| call.token.as_str().into());
        let args = Vec::from_iter(terms.into_iter().chain(tokens));
        let reply = self.script(shard, &script::SEVERAL, &keys, &args).await?;
        let mut rows = Row::of(script::SEVERAL.name, reply);
        if rows.is_empty() {
            return Ok(None);
        }
        let each = calls.iter().map(|_| held_in(&mut rows.row()?));
        each.collect::<Result<_, _>>().map(Some)
    }

    pub(super) async fn do_still(&self, key: Key, me: LockToken) -> Result<Option<GrantRefresh>, Error> {
        let answer = self.ask(Ask::Still { key, me }).await?;
        if matches!(&answer.first, Said::Words(words) if words == "lost") {
            return Ok(None);
        }
        match acquired(answer.first, false, answer.sent)? {
            AcquireReply::Granted { fence, contenders: others, server_us: now, .. } => Ok(Some(GrantRefresh { fence, contenders: others, server_us: now })),
            AcquireReply::Busy { .. } | AcquireReply::AlreadyAccepted => {
                Err(Error::new(ErrorKind::Protocol, script::CALLS.name))
            }
        }
    }

    pub(super) async fn do_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Result<ReleaseOutcome, Error> {
        let answer = self.ask(Ask::Release { key, me, mode }).await?;
        gave_back(answer.first, answer.sent)
    }

    pub(super) fn do_send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        let answer = self.tell(Ask::Release { key, me, mode })?;
        Some(Box::pin(async move {
            let answer = answer.await?;
            gave_back(answer.first, answer.sent)
        }))
    }

    pub(super) async fn do_pass(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> Result<(ReleaseOutcome, AcquireReply), Error> {
        let looks = next.record_name.is_some();
        let answer = self.ask(Ask::Pass { me, mode, next }).await?;
        let gave_back = gave_back(answer.first, answer.sent)?;
        let second = answer.second.unwrap_or(Said::Value(Value::Nil));
        Ok((gave_back, acquired(second, looks, answer.sent)?))
    }

    pub(super) async fn do_downgrade(
        &self,
        key: Key,
        me: LockToken,
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

    pub(super) async fn do_renew(&self, items: Vec<LeaseRenewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for LeaseRenewal { key, token: me, mode, lease, job } in &items {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard_key(key.shard(), "due"));
            // A key that is not touched: it only has to carry the shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number(millis(*lease));
            let tag = mode.member_tag().into();
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
        me: LockToken,
        fence: u64,
    ) -> Result<bool, Error> {
        let shard = key.shard();
        let keys = [self.keys.holders(&key), self.keys.shard_key(shard, "f")];
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

fn acquired(reply: Said, looks: bool, sent: u32) -> Result<AcquireReply, Error> {
    if let Said::Words(words) = &reply
        && let Some(acquired) = in_words(words)
    {
        return Ok(acquired);
    }
    let mut row = row(reply, sent)?;
    match row.text()?.as_str() {
        "held" => granted(&mut row),
        "busy" => Ok(AcquireReply::Busy {
            lease_remaining: row.millis()?,
            queue_length: row.number()?,
            seq: row.number()?,
            has_joined: row.number()? == 1,
        }),
        // Only to those who asked: the engines rely on it.
        "known" if looks => Ok(AcquireReply::AlreadyAccepted),
        _ => Err(row.odd()),
    }
}

/// What follows `held`.
fn granted(row: &mut Row) -> Result<AcquireReply, Error> {
    Ok(AcquireReply::Granted {
        fence: row.number()?,
        queue_length: row.number()?,
        contenders: Contenders { first: row.number()?, job: row.number()? },
        server_us: row.number()?,
    })
}

/// One of several, of which all are held.
fn held_in(row: &mut Row) -> Result<AcquireReply, Error> {
    match row.text()?.as_str() {
        "held" => granted(row),
        _ => Err(row.odd()),
    }
}

/// Parses an answer of `usual.lua`: a grant of a lock without waiters.
fn in_words(text: &[u8]) -> Option<AcquireReply> {
    let (fence, now) = std::str::from_utf8(text).ok()?.strip_prefix("held ")?.split_once(' ')?;
    let (fence, now) = (fence.parse().ok()?, now.parse().ok()?);
    Some(AcquireReply::Granted { fence, queue_length: 0, contenders: Contenders::from_waiter(0), server_us: now })
}

fn gave_back(reply: Said, sent: u32) -> Result<ReleaseOutcome, Error> {
    if matches!(&reply, Said::Words(words) if words == "released") {
        return Ok(ReleaseOutcome::Released);
    }
    let mut row = row(reply, sent)?;
    match row.text()?.as_str() {
        "none" if sent > 1 => Ok(ReleaseOutcome::NotFoundOnRetry),
        "released" => Ok(ReleaseOutcome::Released),
        "left" => Ok(ReleaseOutcome::Withdrawn),
        "lost" => Ok(ReleaseOutcome::AlreadyExpired),
        "none" => Ok(ReleaseOutcome::NotFound),
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
