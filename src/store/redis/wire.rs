//! Flights of `calls.lua` on one lane.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{
    KeyNames, Lanes,
    ask::{self, Ask},
    combine::{self, Flights},
    connect::Socket,
    fault::{Fault, answer_of},
    script::CALLS,
};
use crate::error::{Error, ErrorKind};

/// Where a lane's calls go.
pub(super) struct Wire {
    pub(super) lanes: Arc<Lanes>,
    pub(super) lane: usize,
    pub(super) keys: KeyNames,
}

/// What the server says to one step.
#[derive(Debug)]
pub(super) enum Said {
    /// A text: what is usual, and then part of that for all steps.
    Words(Bytes),
    Value(Value),
}

impl From<Value> for Said {
    fn from(value: Value) -> Self {
        match value {
            Value::BulkString(text) => Self::Words(text.into()),
            value => Self::Value(value),
        }
    }
}

impl Flights for Wire {
    type Step = Ask;
    type Reply = Said;
    type Path = Socket;
    type Load = Cmd;

    const ENOUGH: usize = combine::BATCH / 2;

    fn weight(step: &Ask) -> usize {
        step.steps()
    }

    fn replies(step: &Ask) -> usize {
        step.steps()
    }

    async fn path(&self) -> Result<Socket, Error> {
        self.lanes.socket(self.lane).await
    }

    fn load<'a>(&self, steps: impl Iterator<Item = &'a Ask> + Clone, by_text: bool) -> Cmd {
        ask::command(&self.keys, steps, by_text)
    }

    async fn send(&self, path: &mut Socket, load: &Cmd) -> Result<Vec<Said>, combine::Fault> {
        let answer = path.connection.send_packed_command(load).await;
        match answer_of(path, answer) {
            Ok(Value::Array(replies)) => Ok(replies.into_iter().map(Said::from).collect()),
            // All of them were usual.
            Ok(Value::BulkString(text)) => Ok(each(&Bytes::from(text))),
            Ok(_) => Err(combine::Fault::Failed(Error::new(ErrorKind::Protocol, CALLS.name))),
            Err((Fault::NoScript, _)) => Err(combine::Fault::NoScript),
            Err((Fault::NotRun, _)) => Err(combine::Fault::NotRun),
            Err((Fault::Broken, _)) => Err(combine::Fault::Broken),
            Err((fault, error)) => Err(combine::Fault::Failed(fault.explain(CALLS.name, error))),
        }
    }

    fn late(&self, path: &Socket) {
        path.timed_out();
    }
}

fn each(text: &Bytes) -> Vec<Said> {
    let steps = 1 + text.iter().filter(|b| **b == b',').count();
    let mut said = Vec::with_capacity(steps);
    if steps == 1 {
        said.push(Said::Words(text.clone()));
        return said;
    }
    said.extend(text.split(|b| *b == b',').map(|words| Said::Words(text.slice_ref(words))));
    said
}
