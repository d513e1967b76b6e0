//! Operations on a lock and its wait queue.

use std::time::Duration;

use redis::Value;

use super::number_arg;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, Contenders, GrantRefresh, JobId, LeaseRenewal, LockMode,
            LockToken, ReleaseOutcome, StoreFuture,
        },
        redis::{
            RedisBackend, lock_command_encoding::LockCommand, lock_transport::RawReply,
            reply_reader::ReplyReader, scripts,
        },
    },
};

impl RedisBackend {
    pub(super) async fn do_acquire(&self, call: AcquireCommand) -> Result<AcquireReply, Error> {
        let looks = call.record_name.is_some();
        let answer = self.call_lock_command(LockCommand::Acquire(call)).await?;
        parse_acquire_reply(answer.first, looks, answer.attempts)
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
        let terms = [
            mode.wire_letter().into(),
            number_arg(ceil_millis(*lease)),
            number_arg(mode.max_permits()),
        ];
        let tokens = calls.iter().map(|call| call.token.as_str().into());
        let args = Vec::from_iter(terms.into_iter().chain(tokens));
        let reply = self.call_script(shard, &scripts::ACQUIRE_ALL, &keys, &args).await?;
        let mut rows = ReplyReader::new(scripts::ACQUIRE_ALL.name, reply);
        if rows.is_empty() {
            return Ok(None);
        }
        let each = calls.iter().map(|_| parse_held(&mut rows.read_list()?));
        each.collect::<Result<_, _>>().map(Some)
    }

    pub(super) async fn do_refresh_grant(
        &self,
        key: Key,
        me: LockToken,
    ) -> Result<Option<GrantRefresh>, Error> {
        let answer = self.call_lock_command(LockCommand::RefreshGrant { key, token: me }).await?;
        if matches!(&answer.first, RawReply::Text(words) if words == "lost") {
            return Ok(None);
        }
        match parse_acquire_reply(answer.first, false, answer.attempts)? {
            AcquireReply::Granted { fence, contenders: others, server_us: now, .. } => {
                Ok(Some(GrantRefresh { fence, contenders: others, server_us: now }))
            }
            AcquireReply::Busy { .. } | AcquireReply::AlreadyAccepted => {
                Err(Error::new(ErrorKind::Protocol, scripts::LOCK_BATCH.name))
            }
        }
    }

    pub(super) async fn do_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Result<ReleaseOutcome, Error> {
        let answer = self.call_lock_command(LockCommand::Release { key, token: me, mode }).await?;
        parse_release_outcome(answer.first, answer.attempts)
    }

    pub(super) fn do_send_release(
        &self,
        key: Key,
        me: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        let answer = self.submit_lock_command(LockCommand::Release { key, token: me, mode })?;
        Some(Box::pin(async move {
            let answer = answer.await?;
            parse_release_outcome(answer.first, answer.attempts)
        }))
    }

    pub(super) async fn do_release_and_reacquire(
        &self,
        me: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> Result<(ReleaseOutcome, AcquireReply), Error> {
        let looks = next.record_name.is_some();
        let answer = self
            .call_lock_command(LockCommand::ReleaseAndReacquire { token: me, mode, next })
            .await?;
        let gave_back = parse_release_outcome(answer.first, answer.attempts)?;
        let second = answer.second.unwrap_or(RawReply::Value(Value::Nil));
        Ok((gave_back, parse_acquire_reply(second, looks, answer.attempts)?))
    }

    pub(super) async fn do_downgrade(
        &self,
        key: Key,
        me: LockToken,
        lease: Duration,
    ) -> Result<bool, Error> {
        let answer =
            self.call_lock_command(LockCommand::Downgrade { key, token: me, lease }).await?;
        let mut row = checked_reply(answer.first, answer.attempts)?;
        match row.read_text()?.as_str() {
            "ok" => Ok(true),
            "lost" => Ok(false),
            _ => Err(row.protocol_error()),
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
            // Placeholder that is not accessed: it only has to be of the same shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number_arg(ceil_millis(*lease));
            let tag = mode.member_tag().into();
            args.extend([me.as_str().into(), lease, key.as_str().into(), job.into(), tag]);
        }
        let reply = self.call_script(shard, &scripts::RENEW, &keys, &args).await?;
        let mut row = ReplyReader::new("renew", reply);
        items.iter().map(|_| Ok(row.read_number()? == 1)).collect()
    }
}

impl RedisBackend {
    pub(super) async fn do_advance_fence(
        &self,
        key: Key,
        me: LockToken,
        fence: u64,
    ) -> Result<bool, Error> {
        let shard = key.shard();
        let keys = [self.keys.holders(&key), self.keys.shard_key(shard, "f")];
        let args = [format!("h{}", me.as_str()).into_bytes(), number_arg(fence)];
        let reply = self.call_script(shard, &scripts::ADVANCE_FENCE, &keys, &args).await?;
        Ok(ReplyReader::new(scripts::ADVANCE_FENCE.name, reply).read_number()? == 1)
    }
}

/// Returns the reply to one command of a batch, or its error, which affects no other command. If
/// the command was sent more than once, an earlier copy may have run, so the error is a timeout.
fn checked_reply(reply: RawReply, sent: u32) -> Result<ReplyReader, Error> {
    let reply = match reply {
        RawReply::Text(words) => Value::BulkString(words.into()),
        RawReply::Value(value) => value,
    };
    let row = ReplyReader::new(scripts::LOCK_BATCH.name, reply);
    match row.item_error() {
        Some(error) if sent > 1 => {
            Err(Error::new(ErrorKind::Timeout, scripts::LOCK_BATCH.name).with_source(error))
        }
        Some(error) => Err(error),
        None => Ok(row),
    }
}

fn parse_acquire_reply(reply: RawReply, looks: bool, sent: u32) -> Result<AcquireReply, Error> {
    if let RawReply::Text(words) = &reply
        && let Some(acquired) = parse_fast_grant(words)
    {
        return Ok(acquired);
    }
    let mut row = checked_reply(reply, sent)?;
    match row.read_text()?.as_str() {
        "held" => parse_grant(&mut row),
        "busy" => Ok(AcquireReply::Busy {
            lease_remaining: row.read_millis()?,
            queue_length: row.read_number()?,
            seq: row.read_number()?,
            has_joined: row.read_number()? == 1,
        }),
        // Only for calls with a record: the engines rely on it.
        "known" if looks => Ok(AcquireReply::AlreadyAccepted),
        _ => Err(row.protocol_error()),
    }
}

/// Parses the rest of a reply `held`.
fn parse_grant(row: &mut ReplyReader) -> Result<AcquireReply, Error> {
    Ok(AcquireReply::Granted {
        fence: row.read_number()?,
        queue_length: row.read_number()?,
        contenders: Contenders { first: row.read_number()?, job: row.read_number()? },
        server_us: row.read_number()?,
    })
}

/// Parses the grant of one lock of a set, all of which were granted.
fn parse_held(row: &mut ReplyReader) -> Result<AcquireReply, Error> {
    match row.read_text()?.as_str() {
        "held" => parse_grant(row),
        _ => Err(row.protocol_error()),
    }
}

/// Parses a reply of the fast path: a grant of a lock without waiters.
fn parse_fast_grant(text: &[u8]) -> Option<AcquireReply> {
    let (fence, now) = std::str::from_utf8(text).ok()?.strip_prefix("held ")?.split_once(' ')?;
    let (fence, now) = (fence.parse().ok()?, now.parse().ok()?);
    Some(AcquireReply::Granted {
        fence,
        queue_length: 0,
        contenders: Contenders::from_waiter(0),
        server_us: now,
    })
}

fn parse_release_outcome(reply: RawReply, sent: u32) -> Result<ReleaseOutcome, Error> {
    if matches!(&reply, RawReply::Text(words) if words == "released") {
        return Ok(ReleaseOutcome::Released);
    }
    let mut row = checked_reply(reply, sent)?;
    match row.read_text()?.as_str() {
        "none" if sent > 1 => Ok(ReleaseOutcome::NotFoundOnRetry),
        "released" => Ok(ReleaseOutcome::Released),
        "left" => Ok(ReleaseOutcome::Withdrawn),
        "lost" => Ok(ReleaseOutcome::AlreadyExpired),
        "none" => Ok(ReleaseOutcome::NotFound),
        _ => Err(row.protocol_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oom_reply() -> RawReply {
        let words = ["error", "OOM command not allowed when used memory > 'maxmemory'."];
        RawReply::Value(Value::Array(words.map(|word| Value::BulkString(word.into())).into()))
    }

    /// An earlier copy may have taken the lock, and has to be undone.
    #[test]
    fn oom_of_resent_call_reports_timeout() {
        for (sent, kind) in [(1, ErrorKind::Unavailable), (2, ErrorKind::Timeout)] {
            let error = parse_acquire_reply(oom_reply(), false, sent).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {sent} times");
            let error = parse_release_outcome(oom_reply(), sent).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {sent} times");
        }
    }
}
