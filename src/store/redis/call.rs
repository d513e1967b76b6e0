//! One call: past the breaker, within the deadline, once more where that can do no harm.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, ErrorKind as RedisErrorKind, RedisError, ServerErrorKind, Value};

use tokio::time::Instant;

use super::{Redis, connect::Socket, script::Script};
use crate::error::{Error, ErrorKind};

/// Pause before another socket is tried, where the last one did not help.
const PAUSE: Duration = Duration::from_millis(20);

/// What an error of the server or of the socket means for the call that met it.
enum Fault {
    /// The server does not know the script; it has not run.
    NoScript,
    /// The server would not run it: no master, or still loading. The socket is of no more use.
    NotRun,
    /// The connection broke: it may have run.
    Broken,
    /// No answer within the deadline: it may have run, or may yet.
    Late,
    /// The server ran it and did not like it.
    Refused,
}

impl Redis {
    /// Calls a script by its hash; sends its text once if the server does not know it.
    pub(super) async fn script(
        &self,
        shard: u16,
        script: &'static Script,
        keys: &[String],
        args: &[Vec<u8>],
    ) -> Result<Value, Error> {
        self.script_counted(shard, script, keys, args).await.map(|(value, _)| value)
    }

    /// As [`Redis::script`], with how often it was sent: more than once, and an earlier one may have run.
    pub(super) async fn script_counted(
        &self,
        shard: u16,
        script: &'static Script,
        keys: &[String],
        args: &[Vec<u8>],
    ) -> Result<(Value, u32), Error> {
        let command = |verb: &str, text: &str| {
            let mut command = redis::cmd(verb);
            command.arg(text).arg(keys.len()).arg(keys).arg(args);
            command
        };
        let by_hash = command("EVALSHA", script.sha());
        let until = Instant::now() + self.deadline;
        let reached = AtomicBool::new(false);
        self.bounded(script.name, until, &reached, async {
            let mut sent = 1;
            loop {
                // Once it may have run, no later error can say that it has not.
                let doubtful = |error| {
                    if sent > 1 { lost(script.name, error) } else { error }
                };
                let socket = self.lanes.socket(shard).await.map_err(doubtful)?;
                reached.store(true, Ordering::Relaxed);
                let mut answer = send(&socket, &by_hash, until).await;
                if let Err((Fault::NoScript, _)) = answer {
                    answer = send(&socket, &command("EVAL", script.code), until).await;
                }
                match answer {
                    Ok(value) => return Ok((value, sent)),
                    // The deadline around this loop ends it. A new socket is made before each turn.
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
        })
        .await
    }

    /// Plain reads, in one round trip.
    pub(super) async fn read(
        &self,
        shard: u16,
        name: &'static str,
        pipeline: &redis::Pipeline,
    ) -> Result<Vec<Value>, Error> {
        let until = Instant::now() + self.deadline;
        let reached = AtomicBool::new(false);
        self.bounded(name, until, &reached, async {
            loop {
                let socket = self.lanes.socket(shard).await?;
                reached.store(true, Ordering::Relaxed);
                let mut connection = socket.connection.clone();
                match answered(&socket, until, pipeline.query_async(&mut connection)).await {
                    Ok(values) => return Ok(values),
                    Err((Fault::NotRun | Fault::Broken, _)) => tokio::time::sleep(PAUSE).await,
                    Err((fault, error)) => return Err(fault.explain(name, error)),
                }
            }
        })
        .await
    }

    /// Deadline and breaker around everything a call does, connecting included.
    async fn bounded<T>(
        &self,
        name: &'static str,
        until: Instant,
        reached: &AtomicBool,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.breaker.is_open() {
            self.probe();
            return Err(Error::new(ErrorKind::Unavailable, name));
        }
        let outcome = match tokio::time::timeout_at(until, call).await {
            Ok(outcome) => outcome,
            // What has not reached a socket has not run.
            Err(_) if !reached.load(Ordering::Relaxed) => {
                Err(Error::new(ErrorKind::Unavailable, name))
            }
            Err(_) => Err(Error::new(ErrorKind::Timeout, name)),
        };
        match &outcome {
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                tracing::debug!(error = %e, "store call failed");
                if self.breaker.failed() {
                    self.probe();
                }
            }
            // A configuration fault is no outage: it is told to every caller, at the same price.
            _ => self.breaker.succeeded(),
        }
        outcome
    }

    /// Looks whether a lane could work again: connect and write, as a lane does. A server that only
    /// answers pings (a replica, one that is loading) is still away.
    fn probe(&self) {
        let (lanes, breaker) = (Arc::clone(&self.lanes), Arc::clone(&self.breaker));
        self.breaker.probe(move || {
            let (lanes, breaker) = (Arc::clone(&lanes), Arc::clone(&breaker));
            async move {
                let answers = lanes.could_work().await;
                if answers {
                    breaker.close();
                }
                answers
            }
        });
    }
}

async fn send(
    socket: &Socket,
    command: &Cmd,
    until: Instant,
) -> Result<Value, (Fault, RedisError)> {
    let mut connection = socket.connection.clone();
    answered(socket, until, command.query_async(&mut connection)).await
}

/// The deadline is here too, so that a socket learns which calls got no answer. (A call whose caller has
/// gone away tells nothing about the socket.)
async fn answered<T>(
    socket: &Socket,
    until: Instant,
    call: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, (Fault, RedisError)> {
    match tokio::time::timeout_at(until, call).await {
        Ok(answer) => {
            socket.answered();
            answer.map_err(|error| (Fault::of(&error, socket), error))
        }
        Err(_) => {
            socket.timed_out();
            Err((Fault::Late, RedisError::from((RedisErrorKind::Io, "no answer in time"))))
        }
    }
}

/// An error of a call that had been sent before: that one may have run.
fn lost(name: &'static str, error: Error) -> Error {
    Error::new(ErrorKind::Timeout, name).with(error)
}

impl Fault {
    fn of(error: &RedisError, socket: &Socket) -> Self {
        match error.kind() {
            RedisErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,
            RedisErrorKind::Server(
                ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => {
                socket.condemn();
                Self::NotRun
            }
            // Codes the library has no name for (WRONGTYPE, OOM, BUSY) come as extensions.
            RedisErrorKind::Server(_)
            | RedisErrorKind::Extension
            | RedisErrorKind::UnexpectedReturnType => Self::Refused,
            _ if error.is_timeout() => Self::Late,
            _ => {
                socket.condemn();
                Self::Broken
            }
        }
    }

    fn explain(self, name: &'static str, error: RedisError) -> Error {
        let kind = match self {
            Self::NotRun => ErrorKind::Unavailable,
            Self::Broken | Self::Late => ErrorKind::Timeout,
            Self::NoScript | Self::Refused => ErrorKind::Protocol,
        };
        if kind == ErrorKind::Protocol {
            tracing::error!(%error, script = name, "the store refused a script");
        }
        Error::new(kind, name).with(error)
    }
}
