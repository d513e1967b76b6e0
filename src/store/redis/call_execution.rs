//! Execution of one call: past the circuit breaker, within the deadline, and again where that is
//! safe.

use std::sync::Arc;

use futures_util::future::ready;
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::{
    RedisBackend,
    batcher::{CallReply, RETRY_PAUSE, pause_after_refusal},
    call_fault::{CallFault, classify_outcome, classify_reply},
    connection_lanes::TrackedConnection,
    lane_breaker_and_probe::LaneBreaker,
    lock_command_encoding::LockCommand,
    lock_transport::RawLockReply,
    script_sources::{LOCK_BATCH, ScriptSource},
};
use crate::{
    error::{Error, ErrorKind},
    instruments::{StoreCallOutcome, record_store_call},
    store::backend::StoreFuture,
};

/// Progress of a call.
struct SendProgress {
    deadline: Instant,
    /// A copy was lost with its connection, and may have run.
    copy_lost: bool,
    /// Connection on which a reply is awaited.
    pending_connection: Option<TrackedConnection>,
}

impl SendProgress {
    fn new(deadline: Instant) -> Self {
        Self { deadline, copy_lost: false, pending_connection: None }
    }

    /// Returns true if the call may have run. Copies that reached no connection, or that the server
    /// refused to run, have not.
    fn may_have_executed(&self) -> bool {
        self.copy_lost || self.pending_connection.is_some()
    }
}

/// Number of times that plain commands may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResendPolicy {
    /// Sent until they are answered: they may run twice.
    UntilAnswered,
    Never,
}

impl RedisBackend {
    /// Sends a lock command, batched with others of its lane.
    pub(super) async fn call_lock_command(
        &self,
        command: LockCommand,
    ) -> Result<CallReply<RawLockReply>, Error> {
        let shard = command.key().shard();
        self.check_breaker(shard, LOCK_BATCH.name)?;
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let outcome = self.lock_batcher(&command).call(command, deadline).await;
        self.record_outcome((shard, LOCK_BATCH.name), started_at, &outcome);
        outcome
    }

    /// Like [`RedisBackend::call_lock_command`], but queues the command before it returns: it is
    /// sent even if the future is dropped. `None` if there is no runtime to send it.
    pub(super) fn submit_lock_command(
        &self,
        command: LockCommand,
    ) -> Option<StoreFuture<'static, CallReply<RawLockReply>>> {
        let shard = command.key().shard();
        if let Err(error) = self.check_breaker(shard, LOCK_BATCH.name) {
            return Some(Box::pin(ready(Err(error))));
        }
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let outcome = self.lock_batcher(&command).submit(command, deadline)?;
        let lane_breaker = Arc::clone(self.lane_breaker(shard));
        Some(Box::pin(async move {
            let outcome = outcome.await;
            record_call(LOCK_BATCH.name, started_at, &outcome);
            lane_breaker.record_outcome(&outcome);
            outcome
        }))
    }

    /// Calls a script by its hash, or by its text if the server does not know it.
    pub(super) async fn call_script(
        &self,
        shard: u16,
        script: &'static ScriptSource,
        keys: &[String],
        args: &[Vec<u8>],
    ) -> Result<Value, Error> {
        self.check_breaker(shard, script.name)?;
        let started_at = Instant::now();
        let deadline = started_at + self.deadline;
        let mut progress = SendProgress::new(deadline);
        let call = self.send_script(shard, script, keys, args, &mut progress);
        let outcome = resolve_outcome(script.name, timeout_at(deadline, call).await, &progress);
        self.record_outcome((shard, script.name), started_at, &outcome);
        outcome
    }

    async fn send_script(
        &self,
        shard: u16,
        script: &'static ScriptSource,
        keys: &[String],
        args: &[Vec<u8>],
        progress: &mut SendProgress,
    ) -> Result<Value, Error> {
        let guard_key = self.keys.slot_guard_key(shard).map(|parts| parts.concat());
        let build_command = |verb: &str, text: &str| {
            let mut command = redis::cmd(verb);
            let key_count = keys.len() + guard_key.iter().len();
            command.arg(text).arg(key_count).arg(keys).arg(&guard_key).arg(args);
            command
        };
        let by_hash = build_command("EVALSHA", script.sha1());
        loop {
            // Once a copy may have run, no later error may claim that none has.
            let was_copy_lost = progress.copy_lost;
            let with_doubt =
                |error| if was_copy_lost { in_doubt_error(script.name, error) } else { error };
            progress.pending_connection = None;
            let connection =
                self.lanes.connection(self.lanes.lane_of_shard(shard)).await.map_err(with_doubt)?;
            let connection = progress.pending_connection.insert(connection);
            let mut reply = send_command(connection, &by_hash).await;
            if let Err((CallFault::NoScript, _)) = reply {
                reply = send_command(connection, &build_command("EVAL", script.source)).await;
            }
            progress.pending_connection = None;
            match reply {
                Ok(value) => return Ok(value),
                // Ends with the deadline around this loop. Each iteration asks for a connection
                // again.
                Err((CallFault::NotExecuted, _)) => pause_after_refusal(progress.deadline).await,
                Err((CallFault::ConnectionLost, _)) if script.repeatable => {
                    progress.copy_lost = true;
                    if was_copy_lost {
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
                Err((fault, error)) => {
                    return Err(with_doubt(fault.into_error(script.name, error)));
                }
            }
        }
    }

    /// Sends plain reads, or messages, in one round trip. Their success does not close the circuit
    /// breaker: a server that answers them may still run no scripts.
    pub(super) async fn run_read_pipeline(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
    ) -> Result<Vec<Value>, Error> {
        let is_trial = self.lane_breaker(shard).is_breaker_open();
        self.check_breaker(shard, name)?;
        let outcome = self.run_pipeline(shard, name, pipeline, ResendPolicy::UntilAnswered).await;
        if !self.lane_breaker(shard).record_failure(&outcome) && is_trial {
            // The trial must show that the server runs scripts, and this call could not.
            let _ = self.probe_write(shard).await;
        }
        outcome
    }

    /// Sends a write that changes nothing, and that only a server that runs scripts answers.
    pub(super) async fn probe_write(&self, shard: u16) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        match self.keys.slot_guard_key(shard) {
            Some(guard_key) => pipe.cmd("DEL").arg(guard_key.concat()),
            None => pipe.cmd("HDEL").arg(self.keys.namespace_meta()).arg("never"),
        };
        let started_at = Instant::now();
        let outcome = self.run_pipeline(shard, "reaches", &pipe, ResendPolicy::UntilAnswered).await;
        self.record_outcome((shard, "reaches"), started_at, &outcome);
        outcome.map(drop)
    }

    /// Sends plain writes in one round trip.
    pub(super) async fn run_write_pipeline(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        resend_policy: ResendPolicy,
    ) -> Result<Vec<Value>, Error> {
        self.check_breaker(shard, name)?;
        let started_at = Instant::now();
        let outcome = self.run_pipeline(shard, name, pipeline, resend_policy).await;
        self.record_outcome((shard, name), started_at, &outcome);
        outcome
    }

    async fn run_pipeline(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        resend_policy: ResendPolicy,
    ) -> Result<Vec<Value>, Error> {
        let deadline = Instant::now() + self.deadline;
        let mut progress = SendProgress::new(deadline);
        let call = self.send_pipeline(shard, name, pipeline, resend_policy, &mut progress);
        resolve_outcome(name, timeout_at(deadline, call).await, &progress)
    }

    async fn send_pipeline(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        resend_policy: ResendPolicy,
        progress: &mut SendProgress,
    ) -> Result<Vec<Value>, Error> {
        loop {
            let connection = self.lanes.connection(self.lanes.lane_of_shard(shard)).await?;
            let connection = progress.pending_connection.insert(connection);
            let reply = pipeline.query_async(&mut connection.connection).await;
            let reply = classify_outcome(connection, reply);
            progress.pending_connection = None;
            match reply {
                Ok(values) => return Ok(values),
                // Other commands of the pipeline may have run.
                Err((fault, error)) if resend_policy == ResendPolicy::Never => {
                    return Err(fault.into_error(name, error));
                }
                Err((CallFault::NotExecuted, _)) => pause_after_refusal(progress.deadline).await,
                Err((CallFault::ConnectionLost, _)) => {
                    progress.copy_lost = true;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err((fault, error)) => return Err(fault.into_error(name, error)),
            }
        }
    }

    /// Fails while the breaker is open.
    pub(super) fn check_breaker(&self, shard: u16, name: &'static str) -> Result<(), Error> {
        self.lane_breaker(shard).admit(name)
    }

    /// Records the outcome of a call of this script.
    pub(super) fn record_outcome<T>(
        &self,
        (shard, script): (u16, &'static str),
        started_at: Instant,
        outcome: &Result<T, Error>,
    ) {
        record_call(script, started_at, outcome);
        self.lane_breaker(shard).record_outcome(outcome);
    }

    /// Returns true while the circuit breaker of a lane is open.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "read by metrics only"))]
    pub(super) fn is_any_breaker_open(&self) -> bool {
        self.lane_breakers.iter().any(|lane_breaker| lane_breaker.is_breaker_open())
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder is below the length, and the list is not empty"
    )]
    fn lane_breaker(&self, shard: u16) -> &Arc<LaneBreaker> {
        // One for all lanes, or one per lane.
        &self.lane_breakers[usize::from(shard) % self.lane_breakers.len()]
    }
}

fn record_call<T>(script: &'static str, started_at: Instant, outcome: &Result<T, Error>) {
    let outcome = match outcome.as_ref().map_err(Error::kind) {
        Ok(_) => StoreCallOutcome::Ok,
        Err(ErrorKind::Unavailable) => StoreCallOutcome::Unavailable,
        Err(ErrorKind::Timeout) => StoreCallOutcome::Timeout,
        Err(_) => StoreCallOutcome::Failed,
    };
    record_store_call(script, outcome, started_at.into_std());
}

/// Returns the outcome of a call with its deadline, which covers everything including connecting.
fn resolve_outcome<T>(
    name: &'static str,
    outcome: Result<Result<T, Error>, Elapsed>,
    progress: &SendProgress,
) -> Result<T, Error> {
    outcome.unwrap_or_else(|_| {
        if let Some(connection) = &progress.pending_connection {
            connection.record_timeout();
        }
        let in_doubt = progress.may_have_executed();
        let kind = if in_doubt { ErrorKind::Timeout } else { ErrorKind::Unavailable };
        Err(Error::new(kind, name))
    })
}

async fn send_command(
    connection: &mut TrackedConnection,
    command: &Cmd,
) -> Result<Value, (CallFault, RedisError)> {
    let reply = connection.connection.send_packed_command(command).await;
    classify_reply(connection, reply)
}

/// Error of a call that was sent before: an earlier copy may have run.
fn in_doubt_error(name: &'static str, error: Error) -> Error {
    Error::new(ErrorKind::Timeout, name).with_source(error)
}
