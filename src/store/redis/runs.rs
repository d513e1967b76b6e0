//! Flights of `runs.lua` on one lane: claims and settlements of this process that go together.
//!
//! The undo of a claim goes the same way, so it never overtakes what it undoes (see [`combine`]).

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, RedisWrite as _, Value};

use super::{
    KeyNames, Lanes,
    ask::{joined, number, texts},
    combine::{self, BATCH, Flights},
    connect::Socket,
    fault::{Fault, answer_of},
    script::RUNS,
};
use crate::{
    clock::millis,
    error::{Error, ErrorKind},
    key::Key,
    store::backend::{ClaimCommand, JobId, NextClaim, SettleCommand, LockToken, Settlement},
};

/// Bytes and arguments that a step takes besides a response, about.
const SIZE: (usize, usize) = (320, 11);

/// Bytes of a response that weigh as much as another step: a flight is a megabyte at most, or one response.
const HEAVY: usize = 32 * 1024;

/// What is asked about a run.
pub(super) enum RunAsk {
    Claim(ClaimCommand),
    Settle(SettleCommand),
    /// The claim under this token had nobody to run it; which job it was may not be known.
    Undo {
        key: Key,
        id: Option<JobId>,
        me: LockToken,
    },
}

impl RunAsk {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Claim(ClaimCommand { key, .. })
            | Self::Settle(SettleCommand { key, .. })
            | Self::Undo { key, .. } => key,
        }
    }

    /// A run is over, and nothing of its line goes on.
    pub(super) fn makes_room(&self) -> bool {
        matches!(self, Self::Settle(SettleCommand { next_claim: None, .. }))
    }

    fn response(&self) -> Option<&Bytes> {
        match self {
            Self::Settle(SettleCommand { settlement: Settlement::Done { response, .. }, .. }) => Some(response),
            Self::Settle(SettleCommand { settlement: Settlement::WebhookSettled { response, .. }, .. }) => {
                response.as_ref().map(|(response, _)| response)
            }
            _ => None,
        }
    }

    fn size(&self) -> usize {
        self.response().map_or(0, Bytes::len)
    }

    fn write_args(&self, out: &mut Cmd) {
        let mut digits = itoa::Buffer::new();
        match self {
            Self::Claim(ClaimCommand { id, token: me, lease, retention, .. }) => {
                texts(out, ["c", id.as_str(), me.as_str()]);
                [lease, retention].into_iter().for_each(|time| number(out, millis(*time)));
            }
            Self::Settle(SettleCommand { id, token: me, settlement: verdict, next_claim: next, .. }) => {
                let words;
                let (verb, time, reason) = match verdict {
                    Settlement::Done { status, retention, .. } => {
                        ("done", retention, digits.format(*status))
                    }
                    Settlement::Dead { reason, retention } => ("dead", retention, *reason),
                    Settlement::Retry { delay, reason } => ("retry", delay, *reason),
                    Settlement::Postpone { delay, reason } => ("back", delay, *reason),
                    Settlement::ReturnToQueue { delay, reason } => ("hand", delay, *reason),
                    Settlement::WebhookSettled { ended_us, response, reason, retention } => {
                        let status = response.as_ref().map_or(0, |(_, status)| *status);
                        words = format!("{ended_us} {status} {reason}");
                        ("told", retention, &*words)
                    }
                };
                texts(out, ["s", id.as_str(), me.as_str(), verb]);
                number(out, millis(*time));
                texts(out, [reason]);
                out.write_arg(self.response().map_or(&[], |response| response));
                next_run(next.as_ref(), out);
            }
            Self::Undo { id, me, .. } => {
                texts(out, ["s", id.as_ref().map_or("-", JobId::as_str), me.as_str(), "undo"]);
                number(out, 1);
                texts(out, ["not started", ""]);
                next_run(None, out);
            }
        }
    }
}

fn next_run(next: Option<&NextClaim>, out: &mut Cmd) {
    match next {
        Some(NextClaim { token: me, lease, retention }) => {
            texts(out, [me.as_str()]);
            [lease, retention].into_iter().for_each(|time| number(out, millis(*time)));
        }
        None => texts(out, ["", "0", "0"]),
    }
}

/// Where a lane's claims and settlements go.
pub(super) struct Runs {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

impl Flights for Runs {
    type Step = RunAsk;
    type Reply = Value;
    type Path = Socket;
    type Load = Cmd;

    /// While the server is at one flight the runs of the one before end here: half of what a worker has room for by
    /// default goes then, or the server and the worker would wait for each other in turn.
    const ENOUGH: usize = 8;

    fn weight(step: &RunAsk) -> usize {
        (1 + step.size() / HEAVY).min(BATCH)
    }

    fn replies(_: &RunAsk) -> usize {
        1
    }

    async fn path(&self) -> Result<Socket, Error> {
        self.lanes.socket(self.lane).await
    }

    fn load<'a>(&self, steps: impl Iterator<Item = &'a RunAsk> + Clone, by_text: bool) -> Cmd {
        command(&self.keys, steps, by_text)
    }

    async fn send(&self, path: &mut Socket, load: &Cmd) -> Result<Vec<Value>, combine::Fault> {
        let answer = path.connection.send_packed_command(load).await;
        match answer_of(path, answer) {
            Ok(Value::Array(replies)) => Ok(replies),
            Ok(_) => Err(combine::Fault::Failed(Error::new(ErrorKind::Protocol, RUNS.name))),
            Err((Fault::NoScript, _)) => Err(combine::Fault::NoScript),
            Err((Fault::NotRun, _)) => Err(combine::Fault::NotRun),
            Err((Fault::Broken, _)) => Err(combine::Fault::Broken),
            Err((fault, error)) => Err(combine::Fault::Failed(fault.explain(RUNS.name, error))),
        }
    }

    fn late(&self, path: &Socket) {
        path.timed_out();
    }
}

/// The call of these steps, in this order. One server takes steps of any shards in one call; in a cluster they
/// are of one.
fn command<'a>(keys: &KeyNames, steps: impl Iterator<Item = &'a RunAsk> + Clone, by_text: bool) -> Cmd {
    let sized = steps.clone().fold((0, 0), |(n, bytes), step| (n + 1, bytes + step.size()));
    let (count, bytes): (usize, usize) = sized;
    let script = if by_text { ["EVAL", RUNS.code] } else { ["EVALSHA", RUNS.sha()] };
    let room = script[1].len() + 64 + SIZE.0 * count + bytes;
    let mut out = Cmd::with_capacity(3 + SIZE.1 * count, room);
    texts(&mut out, script);
    let never = steps.clone().next().and_then(|step| keys.slot_guard_key(step.key().shard()));
    number(&mut out, (count + never.iter().len()) as u64);
    steps.clone().for_each(|step| joined(&mut out, &keys.holders_parts(step.key())));
    never.iter().for_each(|parts| joined(&mut out, parts));
    steps.for_each(|step| step.write_args(&mut out));
    out
}
