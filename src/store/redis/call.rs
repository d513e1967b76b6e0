//! One call: past the breaker, within the deadline, once more where that can do no harm.

use std::sync::Arc;

use futures_util::future::ready;
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, error::Elapsed, timeout_at};

use super::{
    Redis,
    ask::Ask,
    breaker::Breaker,
    combine::{Answer, PAUSE},
    connect::{Lanes, Socket},
    fault::{Fault, answer_of, judged},
    script::{CALLS, Script},
};
use crate::{
    error::{Error, ErrorKind},
    store::backend::Step,
};

/// How far a call has come.
#[derive(Default)]
struct Progress {
    /// It was sent, and may have run.
    reached: bool,
    /// The socket it waits on for an answer.
    socket: Option<Socket>,
}

impl Progress {
    /// A socket the call is sent on now.
    fn on(&mut self, socket: Socket) -> &mut Socket {
        self.reached = true;
        self.socket.insert(socket)
    }
}

impl Redis {
    /// Sends a step of `calls.lua`, with others that go the same way.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Answer<Value>, Error> {
        self.pass(CALLS.name)?;
        let until = Instant::now() + self.deadline;
        let outcome = self.combiner(&ask).call(ask, until).await;
        self.note(&outcome);
        outcome
    }

    /// As [`Redis::ask`], but the step stands in its lane's queue when this returns, and is sent whatever
    /// becomes of the future. `None` if there is no runtime that would send it.
    pub(super) fn tell(&self, ask: Ask) -> Option<Step<'static, Answer<Value>>> {
        if let Err(error) = self.pass(CALLS.name) {
            return Some(Box::pin(ready(Err(error))));
        }
        let until = Instant::now() + self.deadline;
        let outcome = self.combiner(&ask).put(ask, until)?;
        let (breaker, lanes) = (Arc::clone(&self.breaker), Arc::clone(&self.lanes));
        Some(Box::pin(async move {
            let outcome = outcome.await;
            note(&breaker, &lanes, &outcome);
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
        self.pass(script.name)?;
        let (until, mut progress) = (Instant::now() + self.deadline, Progress::default());
        let call = self.send_script(shard, script, keys, args, &mut progress);
        let outcome = timeout_at(until, call).await;
        self.ended(script.name, outcome, &progress)
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
            let never = self.keys.never(shard).map(|parts| parts.concat());
            command.arg(text).arg(keys.len() + never.iter().len()).arg(keys).arg(never).arg(args);
            command
        };
        let by_hash = command("EVALSHA", script.sha());
        let mut sent = 1;
        loop {
            // Once it may have run, no later error can say that it has not.
            let doubtful = |error| if sent > 1 { lost(script.name, error) } else { error };
            progress.socket = None;
            let socket = self.lanes.socket(self.lanes.of(shard)).await.map_err(doubtful)?;
            let socket = progress.on(socket);
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
                    if sent > 1 {
                        tokio::time::sleep(PAUSE).await;
                    }
                    sent += 1;
                }
                Err((fault, error)) => return Err(doubtful(fault.explain(script.name, error))),
            }
        }
    }

    /// Plain reads, in one round trip.
    pub(super) async fn read(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
    ) -> Result<Vec<Value>, Error> {
        self.pass(name)?;
        let (until, mut progress) = (Instant::now() + self.deadline, Progress::default());
        let call = self.send_reads(shard, name, pipeline, &mut progress);
        let outcome = timeout_at(until, call).await;
        self.ended(name, outcome, &progress)
    }

    async fn send_reads(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
        progress: &mut Progress,
    ) -> Result<Vec<Value>, Error> {
        loop {
            let socket = progress.on(self.lanes.socket(self.lanes.of(shard)).await?);
            let answer = pipeline.query_async(&mut socket.connection).await;
            let answer = judged(socket, answer);
            progress.socket = None;
            match answer {
                Ok(values) => return Ok(values),
                Err((Fault::NotRun | Fault::Broken, _)) => tokio::time::sleep(PAUSE).await,
                Err((fault, error)) => return Err(fault.explain(name, error)),
            }
        }
    }

    /// While the breaker is open nothing is sent.
    pub(super) fn pass(&self, name: &'static str) -> Result<(), Error> {
        if self.breaker.is_open() {
            self.probe();
            return Err(Error::new(ErrorKind::Unavailable, name));
        }
        Ok(())
    }

    /// The outcome of a call with its deadline, which is around everything it does, connecting included.
    fn ended<T>(
        &self,
        name: &'static str,
        outcome: Result<Result<T, Error>, Elapsed>,
        progress: &Progress,
    ) -> Result<T, Error> {
        let outcome = outcome.unwrap_or_else(|_| {
            if let Some(socket) = &progress.socket {
                socket.timed_out();
            }
            // What has not reached a socket has not run.
            let kind = if progress.reached { ErrorKind::Timeout } else { ErrorKind::Unavailable };
            Err(Error::new(kind, name))
        });
        self.note(&outcome);
        outcome
    }

    pub(super) fn note<T>(&self, outcome: &Result<T, Error>) {
        note(&self.breaker, &self.lanes, outcome);
    }

    fn probe(&self) {
        probe(&self.breaker, &self.lanes);
    }
}

/// Tells the breaker how a call went.
fn note<T>(breaker: &Arc<Breaker>, lanes: &Arc<Lanes>, outcome: &Result<T, Error>) {
    match outcome {
        Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
            tracing::debug!(error = %e, "store call failed");
            if breaker.failed() {
                probe(breaker, lanes);
            }
        }
        // A configuration fault is no outage: it is told to every caller, at the same price.
        _ => breaker.succeeded(),
    }
}

/// Looks whether a lane could work again: connect and write, as a lane does. A server that only
/// answers pings (a replica, one that is loading) is still away.
fn probe(breaker: &Arc<Breaker>, lanes: &Arc<Lanes>) {
    let (lanes, closed) = (Arc::clone(lanes), Arc::clone(breaker));
    breaker.probe(move || {
        let (lanes, breaker) = (Arc::clone(&lanes), Arc::clone(&closed));
        async move {
            let answers = lanes.could_work().await;
            if answers {
                breaker.close();
            }
            answers
        }
    });
}

async fn send(socket: &mut Socket, command: &Cmd) -> Result<Value, (Fault, RedisError)> {
    let answer = socket.connection.send_packed_command(command).await;
    answer_of(socket, answer)
}

/// An error of a call that had been sent before: that one may have run.
fn lost(name: &'static str, error: Error) -> Error {
    Error::new(ErrorKind::Timeout, name).with(error)
}
