//! Operations on a lock and its wait queue.

use std::time::Duration;

use redis::Value;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        backend::{
            AcquireCommand, AcquireReply, Contenders, GrantRefresh, JobId, LeaseRenewal, LockMode,
            LockToken, ReleaseOutcome, StoreFuture,
        },
        redis::{
            RedisBackend, lock_command_encoding::LockCommand, lock_transport::RawLockReply,
            reply_reader::ReplyReader, script_sources,
        },
    },
};

impl RedisBackend {
    pub(super) async fn acquire_lock(&self, call: AcquireCommand) -> Result<AcquireReply, Error> {
        let has_record = call.record_name.is_some();
        let reply = self.call_lock_command(LockCommand::Acquire(call)).await?;
        parse_acquire_reply(reply.first, has_record, reply.attempts)
    }

    pub(super) async fn acquire_lock_set(
        &self,
        calls: Vec<AcquireCommand>,
    ) -> Result<Option<Vec<AcquireReply>>, Error> {
        let Some(AcquireCommand { key, mode, lease, .. }) = calls.first() else { return Ok(None) };
        let shard = key.shard();
        if self.keys.is_clustered() && calls.iter().any(|call| call.key.shard() != shard) {
            return Ok(None);
        }
        let keys = Vec::from_iter(calls.iter().map(|call| self.keys.holders(&call.key)));
        let options = [
            mode.wire_letter().into(),
            number_arg(ceil_millis(*lease)),
            number_arg(mode.max_permits()),
        ];
        let tokens = calls.iter().map(|call| call.token.as_str().into());
        let args = Vec::from_iter(options.into_iter().chain(tokens));
        let reply = self.call_script(shard, &script_sources::ACQUIRE_ALL, &keys, &args).await?;
        let mut reader = ReplyReader::new(script_sources::ACQUIRE_ALL.name, reply);
        if reader.is_empty() {
            return Ok(None);
        }
        let grants = calls.iter().map(|_| parse_lock_set_grant(&mut reader.read_list()?));
        grants.collect::<Result<_, _>>().map(Some)
    }

    pub(super) async fn refresh_lock_grant(
        &self,
        key: Key,
        token: LockToken,
    ) -> Result<Option<GrantRefresh>, Error> {
        let reply = self.call_lock_command(LockCommand::RefreshGrant { key, token }).await?;
        if matches!(&reply.first, RawLockReply::Text(text) if text == "lost") {
            return Ok(None);
        }
        match parse_acquire_reply(reply.first, false, reply.attempts)? {
            AcquireReply::Granted { fence, contenders, server_us, .. } => {
                Ok(Some(GrantRefresh { fence, contenders, server_us }))
            }
            AcquireReply::Busy { .. } | AcquireReply::AlreadyAccepted => {
                Err(Error::new(ErrorKind::Protocol, script_sources::LOCK_BATCH.name))
            }
        }
    }

    pub(super) async fn release_lock(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Result<ReleaseOutcome, Error> {
        let reply = self.call_lock_command(LockCommand::Release { key, token, mode }).await?;
        parse_release_outcome(reply.first, reply.attempts)
    }

    pub(super) fn submit_release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        let reply = self.submit_lock_command(LockCommand::Release { key, token, mode })?;
        Some(Box::pin(async move {
            let reply = reply.await?;
            parse_release_outcome(reply.first, reply.attempts)
        }))
    }

    pub(super) async fn release_and_reacquire_lock(
        &self,
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> Result<(ReleaseOutcome, AcquireReply), Error> {
        let has_record = next.record_name.is_some();
        let reply =
            self.call_lock_command(LockCommand::ReleaseAndReacquire { token, mode, next }).await?;
        let release_outcome = parse_release_outcome(reply.first, reply.attempts)?;
        let second = reply.second.unwrap_or(RawLockReply::Value(Value::Nil));
        Ok((release_outcome, parse_acquire_reply(second, has_record, reply.attempts)?))
    }

    pub(super) async fn downgrade_lock(
        &self,
        key: Key,
        token: LockToken,
        lease: Duration,
    ) -> Result<bool, Error> {
        let reply = self.call_lock_command(LockCommand::Downgrade { key, token, lease }).await?;
        let mut reader = batch_item_reader(reply.first, reply.attempts)?;
        match reader.read_text()?.as_str() {
            "ok" => Ok(true),
            "lost" => Ok(false),
            _ => Err(reader.protocol_error()),
        }
    }

    pub(super) async fn renew_leases(&self, items: Vec<LeaseRenewal>) -> Result<Vec<bool>, Error> {
        let Some(shard) = items.first().map(|item| item.key.shard()) else {
            return Ok(Vec::new());
        };
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for LeaseRenewal { key, token, mode, lease, job } in &items {
            keys.push(self.keys.holders(key));
            keys.push(self.keys.shard_key(key.shard(), "due"));
            // Placeholder that is not accessed: it only has to be of the same shard.
            keys.push(job.as_ref().map_or_else(|| self.keys.holders(key), |id| self.keys.job(id)));
            let job = job.as_ref().map_or("", JobId::as_str);
            let lease = number_arg(ceil_millis(*lease));
            let tag = mode.member_tag().into();
            args.extend([token.as_str().into(), lease, key.as_str().into(), job.into(), tag]);
        }
        let reply = self.call_script(shard, &script_sources::RENEW, &keys, &args).await?;
        let mut reader = ReplyReader::new("renew", reply);
        items.iter().map(|_| Ok(reader.read_number()? == 1)).collect()
    }

    pub(super) async fn advance_lock_fence(
        &self,
        key: Key,
        token: LockToken,
        fence: u64,
    ) -> Result<bool, Error> {
        let shard = key.shard();
        let keys = [self.keys.holders(&key), self.keys.shard_key(shard, "f")];
        let args = [format!("h{}", token.as_str()).into_bytes(), number_arg(fence)];
        let reply = self.call_script(shard, &script_sources::ADVANCE_FENCE, &keys, &args).await?;
        Ok(ReplyReader::new(script_sources::ADVANCE_FENCE.name, reply).read_number()? == 1)
    }
}

/// Returns the reply to one command of a batch, or its error, which affects no other command. If
/// the command was sent more than once, an earlier copy may have run, so the error is a timeout.
fn batch_item_reader(reply: RawLockReply, attempts: u32) -> Result<ReplyReader, Error> {
    let reply = match reply {
        RawLockReply::Text(text) => Value::BulkString(text.into()),
        RawLockReply::Value(value) => value,
    };
    let reader = ReplyReader::new(script_sources::LOCK_BATCH.name, reply);
    match reader.item_error() {
        Some(error) if attempts > 1 => {
            Err(Error::new(ErrorKind::Timeout, script_sources::LOCK_BATCH.name).with_source(error))
        }
        Some(error) => Err(error),
        None => Ok(reader),
    }
}

fn parse_acquire_reply(
    reply: RawLockReply,
    has_record: bool,
    attempts: u32,
) -> Result<AcquireReply, Error> {
    if let RawLockReply::Text(text) = &reply
        && let Some(grant) = parse_fast_grant(text)
    {
        return Ok(grant);
    }
    let mut reader = batch_item_reader(reply, attempts)?;
    match reader.read_text()?.as_str() {
        "held" => parse_grant(&mut reader),
        "busy" => Ok(AcquireReply::Busy {
            lease_remaining: reader.read_millis()?,
            queue_length: reader.read_number()?,
            seq: reader.read_number()?,
            has_joined: reader.read_number()? == 1,
        }),
        // Only for calls with a record: the engines rely on it.
        "duplicate" if has_record => Ok(AcquireReply::AlreadyAccepted),
        _ => Err(reader.protocol_error()),
    }
}

/// Parses the rest of a reply `held`.
fn parse_grant(reader: &mut ReplyReader) -> Result<AcquireReply, Error> {
    Ok(AcquireReply::Granted {
        fence: reader.read_number()?,
        queue_length: reader.read_number()?,
        contenders: Contenders { first: reader.read_number()?, job: reader.read_number()? },
        server_us: reader.read_number()?,
    })
}

/// Parses the grant of one lock of a set, all of which were granted.
fn parse_lock_set_grant(reader: &mut ReplyReader) -> Result<AcquireReply, Error> {
    match reader.read_text()?.as_str() {
        "held" => parse_grant(reader),
        _ => Err(reader.protocol_error()),
    }
}

/// Parses a reply of the fast path: a grant of a lock without waiters.
fn parse_fast_grant(text: &[u8]) -> Option<AcquireReply> {
    let (fence, server_us) =
        std::str::from_utf8(text).ok()?.strip_prefix("held ")?.split_once(' ')?;
    let (fence, server_us) = (fence.parse().ok()?, server_us.parse().ok()?);
    Some(AcquireReply::Granted {
        fence,
        queue_length: 0,
        contenders: Contenders::from_waiter(0),
        server_us,
    })
}

fn parse_release_outcome(reply: RawLockReply, attempts: u32) -> Result<ReleaseOutcome, Error> {
    if matches!(&reply, RawLockReply::Text(text) if text == "released") {
        return Ok(ReleaseOutcome::Released);
    }
    let mut reader = batch_item_reader(reply, attempts)?;
    match reader.read_text()?.as_str() {
        "none" if attempts > 1 => Ok(ReleaseOutcome::NotFoundOnRetry),
        "released" => Ok(ReleaseOutcome::Released),
        "withdrawn" => Ok(ReleaseOutcome::Withdrawn),
        "lost" => Ok(ReleaseOutcome::AlreadyExpired),
        "none" => Ok(ReleaseOutcome::NotFound),
        _ => Err(reader.protocol_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oom_reply() -> RawLockReply {
        let parts = ["error", "OOM command not allowed when used memory > 'maxmemory'."];
        RawLockReply::Value(Value::Array(parts.map(|part| Value::BulkString(part.into())).into()))
    }

    /// An earlier copy may have taken the lock, and has to be undone.
    #[test]
    fn oom_of_resent_call_reports_timeout() {
        for (attempts, kind) in [(1, ErrorKind::Unavailable), (2, ErrorKind::Timeout)] {
            let error =
                parse_acquire_reply(oom_reply(), false, attempts).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {attempts} times");
            let error = parse_release_outcome(oom_reply(), attempts).expect_err("it is refused");
            assert_eq!(error.kind(), kind, "sent {attempts} times");
        }
    }
}
