//! Heartbeat of a worker on a single server, as one call of `heartbeat_and_shard_assignment.lua`.

use std::time::Duration;

use super::number_arg;
use crate::{
    durations::ceil_millis,
    error::Error,
    key::SHARD_COUNT,
    store::{
        backend::{HeartbeatReply, NodeId},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

impl RedisBackend {
    pub(super) async fn send_heartbeat(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<HeartbeatReply, Error> {
        if self.keys.is_clustered() {
            return self.send_cluster_heartbeat(node, lease).await;
        }
        let mut keys = vec![self.keys.workers(), self.keys.paused()];
        keys.extend(self.shard_watch_keys());
        let args = [
            node.as_str().into(),
            number_arg(lease_millis(lease)),
            self.keys.channel_prefix().into(),
        ];
        let mut reader = ReplyReader::new(
            "heartbeat",
            self.call_script(
                COMMON_SHARD,
                &script_sources::HEARTBEAT_AND_SHARD_ASSIGNMENT,
                &keys,
                &args,
            )
            .await?,
        );
        Ok(HeartbeatReply {
            is_paused: reader.read_number()? == 1,
            own_shards: parse_shards(&mut reader.read_list()?)?,
            busy_shards: parse_shards(&mut reader.read_list()?)?,
            peers: parse_nodes(&mut reader.read_list()?)?,
            peer_expires_in: reader.read_text()?.parse().ok().map(Duration::from_millis),
        })
    }

    /// Returns the keys of the watches of all shards.
    pub(super) fn shard_watch_keys(&self) -> impl Iterator<Item = String> {
        (0..SHARD_COUNT).map(|shard| self.keys.shard_key(shard, "watch"))
    }
}

/// Returns a lease in ms; 0 means that the worker leaves.
pub(super) fn lease_millis(lease: Duration) -> u64 {
    if lease.is_zero() { 0 } else { ceil_millis(lease) }
}

fn parse_shards(reader: &mut ReplyReader) -> Result<Vec<u16>, Error> {
    let mut shards = Vec::new();
    while !reader.is_empty() {
        let shard = u16::try_from(reader.read_number()?).ok().filter(|shard| *shard < SHARD_COUNT);
        shards.push(shard.ok_or_else(|| reader.protocol_error())?);
    }
    Ok(shards)
}

pub(super) fn parse_nodes(reader: &mut ReplyReader) -> Result<Vec<NodeId>, Error> {
    let mut nodes = Vec::new();
    while !reader.is_empty() {
        nodes.push(NodeId::parse(&reader.read_text()?).ok_or_else(|| reader.protocol_error())?);
    }
    Ok(nodes)
}
