//! Operations of workers: heartbeats, wake-ups to each other, and the pause of jobs.

use std::time::Duration;

use super::number_arg;
use crate::{
    clock::ceil_millis,
    error::Error,
    key::SHARD_COUNT,
    store::{
        backend::{Heartbeat, NodeId},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, scripts},
        wakeups::WakeupMessage,
    },
};

impl RedisBackend {
    pub(super) async fn do_heartbeat(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<Heartbeat, Error> {
        if self.keys.is_clustered() {
            return self.heartbeat_per_shard(node, lease).await;
        }
        let mut keys = vec![self.keys.workers(), self.keys.paused()];
        keys.extend(self.watch_keys());
        let (lease, channels) =
            (number_arg(lease_millis(lease)), self.keys.channel_prefix().into());
        let args = [node.as_str().into(), lease, channels];
        let mut row = ReplyReader::new(
            "heartbeat",
            self.call_script(COMMON_SHARD, &scripts::HEARTBEAT, &keys, &args).await?,
        );
        Ok(Heartbeat {
            is_paused: row.read_number()? == 1,
            own_shards: parse_shards(&mut row.read_list()?)?,
            busy_shards: parse_shards(&mut row.read_list()?)?,
            peers: parse_nodes(&mut row.read_list()?)?,
            peer_expires_in: row.read_text()?.parse().ok().map(Duration::from_millis),
        })
    }

    pub(super) async fn do_send_wakeup(
        &self,
        node: NodeId,
        hint: WakeupMessage,
    ) -> Result<(), Error> {
        match (hint.encode(), hint) {
            (Some(text), WakeupMessage::JobOffer(key, _)) => {
                self.publish(key.shard(), format!("w:{node}"), text).await
            }
            _ => Ok(()),
        }
    }

    /// Notifies all workers that some have joined or left.
    pub(super) async fn notify_workers(&self) -> Result<(), Error> {
        self.publish(COMMON_SHARD, "e".to_owned(), "workers".to_owned()).await
    }

    /// Publishes a message. In a cluster a script of the shard's cluster node does it, since the
    /// kind of message depends on the server.
    async fn publish(&self, shard: u16, channel: String, text: String) -> Result<(), Error> {
        let prefix = self.keys.channel_prefix();
        if self.keys.is_clustered() {
            let (keys, args) = ([self.keys.shard_key(shard, "watch")], [prefix, &channel, &text]);
            let args = args.map(|arg| arg.as_bytes().to_vec());
            return self.call_script(shard, &scripts::PUBLISH, &keys, &args).await.map(drop);
        }
        let mut pipe = redis::pipe();
        pipe.cmd("PUBLISH").arg(format!("{prefix}{channel}")).arg(text);
        self.run_read_pipeline(COMMON_SHARD, "publish", &pipe).await.map(drop)
    }

    pub(super) async fn do_set_jobs_paused(&self, paused: bool) -> Result<(), Error> {
        let mut keys = vec![self.keys.paused()];
        if !self.keys.is_clustered() {
            keys.extend(self.watch_keys());
        }
        let args = [number_arg(paused.into()), self.keys.channel_prefix().into()];
        self.call_script(COMMON_SHARD, &scripts::PAUSE_JOBS, &keys, &args).await?;
        if paused && self.keys.is_clustered() { self.delete_shard_watches().await } else { Ok(()) }
    }

    pub(super) async fn do_are_jobs_paused(&self) -> Result<bool, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.keys.paused());
        let answer = self.run_read_pipeline(0, "is_paused", &pipe).await?;
        Ok(ReplyReader::new("is_paused", redis::Value::Array(answer)).read_number()? == 1)
    }

    fn watch_keys(&self) -> impl Iterator<Item = String> {
        (0..SHARD_COUNT).map(|shard| self.keys.shard_key(shard, "watch"))
    }
}

/// Returns a lease in ms; 0 means that the worker leaves.
pub(super) fn lease_millis(lease: Duration) -> u64 {
    if lease.is_zero() { 0 } else { ceil_millis(lease) }
}

fn parse_shards(row: &mut ReplyReader) -> Result<Vec<u16>, Error> {
    let mut shards = Vec::new();
    while !row.is_empty() {
        let shard = u16::try_from(row.read_number()?).ok().filter(|shard| *shard < SHARD_COUNT);
        shards.push(shard.ok_or_else(|| row.protocol_error())?);
    }
    Ok(shards)
}

pub(super) fn parse_nodes(row: &mut ReplyReader) -> Result<Vec<NodeId>, Error> {
    let mut nodes = Vec::new();
    while !row.is_empty() {
        nodes.push(NodeId::parse(&row.read_text()?).ok_or_else(|| row.protocol_error())?);
    }
    Ok(nodes)
}
