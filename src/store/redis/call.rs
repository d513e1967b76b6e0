//! One call: past the breaker, within the deadline, once more where that can do no harm.

use std::sync::Arc;

use futures_util::future::ready;
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::{
    Redis,
    ask::Ask,
    combine::{Answer, PAUSE},
    connect::Socket,
    fault::{Fault, answer_of, judged},
    health::Health,
    script::{CALLS, Script},
    wire::Said,
};
use crate::{
    error::{Error, ErrorKind},
    store::backend::StoreFuture,
};

/// How far a call has come.
#[derive(Default)]
struct Progress {
    /// A copy of it was lost with its connection, and may have run.
    lost: bool,
    /// The socket it waits on for an answer.
    socket: Option<Socket>,
}

impl Progress {
    /// What has reached no socket, and what the server would not run, has not run.
    fn may_have_run(&self) -> bool {
        self.lost || self.socket.is_some()
    }
}

/// How often plain commands may be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// Until they are answered: they may run twice.
    Any,
    One,
}

impl Redis {
    /// Sends a step of `calls.lua`, with others that go the same way.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Answer<Said>, Error> {
        let shard = ask.key().shard();
        self.pass(shard, CALLS.name)?;
        let until = Instant::now() + self.deadline;
        let outcome = self.combiner(&ask).call(ask, until).await;
        self.note(shard, &outcome);
        outcome
    }

    /// As [`Redis::ask`], but the step stands in its lane's queue when this returns, and is sent whatever
    /// becomes of the future. `None` if there is no runtime that would send it.
    pub(super) fn tell(&self, ask: Ask) -> Option<StoreFuture<'static, Answer<Said>>> {
        let shard = ask.key().shard();
        if let Err(error) = self.pass(shard, CALLS.name) {
            return Some(Box::pin(ready(Err(error))));
        }
        let until = Instant::now() + self.deadline;
        let outcome = self.combiner(&ask).put(ask, until)?;
        let health = Arc::clone(self.health(shard));
        Some(Box::pin(async move {
            let outcome = outcome.await;
            health.note(&outcome);
            outcome
        }))
    }

    /// Calls a script by its hash; sends its text once if the server does not know it.
    pub(super) async fn script(
        &self,
        shard: u16,
        script: &'static Script,
        keys: &[String],
        args: &[Vec<u8>],
    ) -> Result<Value, Error> {
        self.pass(shard, script.name)?;
        let (until, mut progress) = (Instant::now() + self.deadline, Progress::default());
        let call = self.send_script(shard, script, keys, args, &mut progress);
        let outcome = ended(script.name, timeout_at(until, call).await, &progress);
        self.note(shard, &outcome);
        outcome
    }

    async fn send_script(
        &self,
        shard: u16,
        script: &'static Script,
        keys: &[String],
        args: &[Vec<u8>],
        progress: &mut Progress,
    ) -> Result<Value, Error> {
        let command = |verb: &str, text: &str| {
            let mut command = redis::cmd(verb);
            let never = self.keys.slot_guard_key(shard).map(|parts| parts.concat());
            command.arg(text).arg(keys.len() + never.iter().len()).arg(keys).arg(never).arg(args);
            command
        };
        let by_hash = command("EVALSHA", script.sha());
        loop {
            // Once it may have run, no later error can say that it has not.
            let before = progress.lost;
            let doubtful = |error| if before { lost(script.name, error) } else { error };
            progress.socket = None;
            let socket = self.lanes.socket(self.lanes.of(shard)).await.map_err(doubtful)?;
            let socket = progress.socket.insert(socket);
            let mut answer = send(socket, &by_hash).await;
            if let Err((Fault::NoScript, _)) = answer {
                answer = send(socket, &command("EVAL", script.code)).await;
            }
            progress.socket = None;
            match answer {
                Ok(value) => return Ok(value),
                // The deadline around this ends it. A new socket is made before each turn.
                Err((Fault::NotRun, _)) => tokio::time::sleep(PAUSE).await,
                Err((Fault::Broken, _)) if script.repeatable => {
                    progress.lost = true;
                    if before {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err((fault, error)) => return Err(doubtful(fault.explain(script.name, error))),
            }
        }
    }

    /// Plain reads, and messages, in one round trip. A server that answers them may still run no script: that is not
    /// said of it by them.
    pub(super) async fn read(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
    ) -> Result<Vec<Value>, Error> {
        let trial = self.health(shard).is_open();
        self.pass(shard, name)?;
        let outcome = self.in_time(shard, name, pipeline, Copies::Any).await;
        if !self.health(shard).note_failure(&outcome) && trial {
            // It was let through in place of one that would show it.
            let _ = self.touch(shard).await;
        }
        outcome
    }

    /// A write that changes nothing, which is answered where scripts are run.
    pub(super) async fn touch(&self, shard: u16) -> Result<(), Error> {
        let mut pipe = redis::pipe();
        match self.keys.slot_guard_key(shard) {
            Some(never) => pipe.cmd("DEL").arg(never.concat()),
            None => pipe.cmd("HDEL").arg(self.keys.namespace_meta()).arg("never"),
        };
        let outcome = self.in_time(shard, "reaches", &pipe, Copies::Any).await;
        self.note(shard, &outcome);
        outcome.map(drop)
    }

    /// Plain writes, in one round trip.
    pub(super) async fn write(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        copies: Copies,
    ) -> Result<Vec<Value>, Error> {
        self.pass(shard, name)?;
        let outcome = self.in_time(shard, name, pipeline, copies).await;
        self.note(shard, &outcome);
        outcome
    }

    async fn in_time(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        copies: Copies,
    ) -> Result<Vec<Value>, Error> {
        let (until, mut progress) = (Instant::now() + self.deadline, Progress::default());
        let call = self.send_pipeline(shard, name, pipeline, copies, &mut progress);
        ended(name, timeout_at(until, call).await, &progress)
    }

    async fn send_pipeline(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        copies: Copies,
        progress: &mut Progress,
    ) -> Result<Vec<Value>, Error> {
        loop {
            let socket = self.lanes.socket(self.lanes.of(shard)).await?;
            let socket = progress.socket.insert(socket);
            let answer = pipeline.query_async(&mut socket.connection).await;
            let answer = judged(socket, answer);
            progress.socket = None;
            match answer {
                Ok(values) => return Ok(values),
                // Of several commands others may have run.
                Err((fault, error)) if copies == Copies::One => {
                    return Err(fault.explain(name, error));
                }
                Err((Fault::NotRun, _)) => tokio::time::sleep(PAUSE).await,
                Err((Fault::Broken, _)) => {
                    progress.lost = true;
                    tokio::time::sleep(PAUSE).await;
                }
                Err((fault, error)) => return Err(fault.explain(name, error)),
            }
        }
    }

    /// While the breaker is open nothing is sent.
    pub(super) fn pass(&self, shard: u16, name: &'static str) -> Result<(), Error> {
        self.health(shard).pass(name)
    }

    pub(super) fn note<T>(&self, shard: u16, outcome: &Result<T, Error>) {
        self.health(shard).note(outcome);
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder is below that number, and there is at least one"
    )]
    fn health(&self, shard: u16) -> &Arc<Health> {
        // One for all, or as many as lanes.
        &self.health[usize::from(shard) % self.health.len()]
    }
}

/// The outcome of a call with its deadline, which is around everything it does, connecting included.
fn ended<T>(
    name: &'static str,
    outcome: Result<Result<T, Error>, Elapsed>,
    progress: &Progress,
) -> Result<T, Error> {
    outcome.unwrap_or_else(|_| {
        if let Some(socket) = &progress.socket {
            socket.timed_out();
        }
        let in_doubt = progress.may_have_run();
        let kind = if in_doubt { ErrorKind::Timeout } else { ErrorKind::Unavailable };
        Err(Error::new(kind, name))
    })
}

async fn send(socket: &mut Socket, command: &Cmd) -> Result<Value, (Fault, RedisError)> {
    let answer = socket.connection.send_packed_command(command).await;
    answer_of(socket, answer)
}

/// An error of a call that had been sent before: that one may have run.
fn lost(name: &'static str, error: Error) -> Error {
    Error::new(ErrorKind::Timeout, name).with(error)
}
