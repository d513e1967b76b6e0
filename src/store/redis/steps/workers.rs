//! Steps of workers: signs of life, words to each other, the pause.

use std::time::Duration;

use super::number;
use crate::{
    clock::millis,
    error::Error,
    key::SHARDS,
    store::{
        backend::{Heartbeat, NodeId},
        wakeups::WakeupMessage,
        key_names::COMMON,
        redis::{Redis, read::Row, script},
    },
};

impl Redis {
    pub(super) async fn do_beat(&self, node: NodeId, lease: Duration) -> Result<Heartbeat, Error> {
        if self.keys.is_clustered() {
            return self.beat_apart(node, lease).await;
        }
        let mut keys = vec![self.keys.workers(), self.keys.paused()];
        keys.extend(self.watches());
        let (lease, channels) = (number(watched_until(lease)), self.keys.channel_prefix().into());
        let args = [node.as_str().into(), lease, channels];
        let mut row = Row::of("beat", self.script(COMMON, &script::BEAT, &keys, &args).await?);
        Ok(Heartbeat {
            is_paused: row.number()? == 1,
            own_shards: shards(&mut row.row()?)?,
            busy_shards: shards(&mut row.row()?)?,
            peers: nodes(&mut row.row()?)?,
            peer_expires_in: row.text()?.parse().ok().map(Duration::from_millis),
        })
    }

    pub(super) async fn do_tell(&self, node: NodeId, hint: WakeupMessage) -> Result<(), Error> {
        match (hint.encode(), hint) {
            (Some(text), WakeupMessage::JobOffer(key, _)) => {
                self.publish(key.shard(), format!("w:{node}"), text).await
            }
            _ => Ok(()),
        }
    }

    /// Tells all workers that some have come or gone.
    pub(super) async fn tell_workers(&self) -> Result<(), Error> {
        self.publish(COMMON, "e".to_owned(), "workers".to_owned()).await
    }

    /// In a cluster by the node of a shard, which knows what kind of messages it has.
    async fn publish(&self, shard: u16, channel: String, text: String) -> Result<(), Error> {
        let prefix = self.keys.channel_prefix();
        if self.keys.is_clustered() {
            let (keys, args) = ([self.keys.shard_key(shard, "watch")], [prefix, &channel, &text]);
            let args = args.map(|arg| arg.as_bytes().to_vec());
            return self.script(shard, &script::TELL, &keys, &args).await.map(drop);
        }
        let mut pipe = redis::pipe();
        pipe.cmd("PUBLISH").arg(format!("{prefix}{channel}")).arg(text);
        self.read(COMMON, "tell", &pipe).await.map(drop)
    }

    pub(super) async fn do_set_paused(&self, paused: bool) -> Result<(), Error> {
        let mut keys = vec![self.keys.paused()];
        if !self.keys.is_clustered() {
            keys.extend(self.watches());
        }
        let args = [number(paused.into()), self.keys.channel_prefix().into()];
        self.script(COMMON, &script::PAUSE, &keys, &args).await?;
        if paused && self.keys.is_clustered() { self.unwatch_apart().await } else { Ok(()) }
    }

    pub(super) async fn do_is_paused(&self) -> Result<bool, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.keys.paused());
        let answer = self.read(0, "is_paused", &pipe).await?;
        Ok(Row::of("is_paused", redis::Value::Array(answer)).number()? == 1)
    }

    fn watches(&self) -> impl Iterator<Item = String> {
        (0..SHARDS).map(|shard| self.keys.shard_key(shard, "watch"))
    }
}

/// For how many ms a lease goes; 0: the worker leaves.
pub(super) fn watched_until(lease: Duration) -> u64 {
    if lease.is_zero() { 0 } else { millis(lease) }
}

fn shards(row: &mut Row) -> Result<Vec<u16>, Error> {
    let mut shards = Vec::new();
    while !row.is_empty() {
        let shard = u16::try_from(row.number()?).ok().filter(|shard| *shard < SHARDS);
        shards.push(shard.ok_or_else(|| row.odd())?);
    }
    Ok(shards)
}

pub(super) fn nodes(row: &mut Row) -> Result<Vec<NodeId>, Error> {
    let mut nodes = Vec::new();
    while !row.is_empty() {
        nodes.push(NodeId::parse(&row.text()?).ok_or_else(|| row.odd())?);
    }
    Ok(nodes)
}
