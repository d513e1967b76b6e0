//! Steps of workers: signs of life, words to each other, the pause.

use std::time::Duration;

use super::number;
use crate::{
    clock::millis,
    error::Error,
    key::SHARDS,
    store::{
        backend::{Beat, Node},
        hints::Hint,
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_beat(&self, node: Node, lease: Duration) -> Result<Beat, Error> {
        let mut keys = vec![self.keys.workers(), self.keys.paused()];
        keys.extend(self.watches());
        let lease = if lease.is_zero() { 0 } else { millis(lease) };
        let args = [node.as_str().into(), number(lease), self.keys.channels().into()];
        let mut row = Row::of("beat", self.script(0, &script::BEAT, &keys, &args).await?);
        Ok(Beat {
            paused: row.number()? == 1,
            mine: shards(&mut row.row()?)?,
            busy: shards(&mut row.row()?)?,
            others: nodes(&mut row.row()?)?,
            lapse: row.text()?.parse().ok().map(Duration::from_millis),
        })
    }

    pub(super) async fn do_tell(&self, node: Node, hint: Hint) -> Result<(), Error> {
        let Some(text) = hint.text() else {
            return Ok(());
        };
        let mut pipe = redis::pipe();
        pipe.cmd("PUBLISH").arg(self.keys.wake(&node)).arg(text);
        self.read(0, "tell", &pipe).await.map(drop)
    }

    pub(super) async fn do_set_paused(&self, paused: bool) -> Result<(), Error> {
        let mut keys = vec![self.keys.paused()];
        keys.extend(self.watches());
        let args = [number(paused.into()), self.keys.channels().into()];
        self.script(0, &script::PAUSE, &keys, &args).await.map(drop)
    }

    pub(super) async fn do_is_paused(&self) -> Result<bool, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.keys.paused());
        let answer = self.read(0, "is_paused", &pipe).await?;
        Ok(Row::of("is_paused", redis::Value::Array(answer)).number()? == 1)
    }

    fn watches(&self) -> impl Iterator<Item = String> {
        (0..SHARDS).map(|shard| self.keys.shard(shard, "watch"))
    }
}

fn shards(row: &mut Row) -> Result<Vec<u16>, Error> {
    let mut shards = Vec::new();
    while !row.is_empty() {
        let shard = u16::try_from(row.number()?).ok().filter(|shard| *shard < SHARDS);
        shards.push(shard.ok_or_else(|| row.odd())?);
    }
    Ok(shards)
}

fn nodes(row: &mut Row) -> Result<Vec<Node>, Error> {
    let mut nodes = Vec::new();
    while !row.is_empty() {
        nodes.push(Node::parse(&row.text()?).ok_or_else(|| row.odd())?);
    }
    Ok(nodes)
}
