//! Query of one cluster node for its view of the topology, over a cached connection if possible.

use std::sync::atomic::Ordering;

use redis::{RedisError, RedisResult, Value, aio::ConnectionLike as _};

use super::{
    ClusterState, ClusterTarget, Endpoint,
    node_timeout_reply::{NODE_TIMEOUT_SETTING, is_permanently_refused, parse_node_timeout},
    topology_view::TopologyView,
};
use crate::store::redis::target::{ConnectError, RedisConnection, TimeoutAndDisconnectFlag};

/// Replies to the query, and the connection to use again.
type NodeReply = RedisResult<(Vec<Value>, RedisConnection)>;

fn is_io_failure(reply: &NodeReply) -> bool {
    reply.as_ref().is_err_and(RedisError::is_io_error)
}

/// Sends the query on a connection, and returns the replies with the connection.
async fn query_over(mut connection: RedisConnection, reads_config: bool) -> NodeReply {
    let mut pipe = redis::pipe();
    pipe.cmd("CLUSTER").arg("SLOTS");
    if reads_config {
        pipe.cmd("CONFIG").arg("GET").arg(NODE_TIMEOUT_SETTING);
    }
    let count = pipe.len();
    connection.req_packed_commands(&pipe, 0, count).await.map(|replies| (replies, connection))
}

impl ClusterTarget {
    /// Queries one node for the owners of the slots and for its `cluster-node-timeout`.
    pub(super) async fn query_node(&self, node: &Endpoint) -> Result<TopologyView, ConnectError> {
        let reads_config = self.0.is_config_readable.load(Ordering::Relaxed);
        let reply = match self.0.connections.take(node) {
            // A cached connection may be broken; its failure says nothing about the node.
            Some(connection) => {
                Some(query_over(connection, reads_config).await).filter(|r| !is_io_failure(r))
            }
            None => None,
        };
        let reply = match reply {
            Some(reply) => reply,
            None => {
                let settings = TimeoutAndDisconnectFlag {
                    connect_timeout: Some(self.0.query_timeout),
                    ..TimeoutAndDisconnectFlag::default()
                };
                query_over(self.server_at(node)?.open(&settings).await?, reads_config).await
            }
        };
        let (replies, connection) = reply.map_err(|error| ConnectError::from_redis(&error))?;
        self.0.connections.put_back(node, connection);
        self.parse_node_replies(replies, reads_config, node)
    }

    fn parse_node_replies(
        &self,
        replies: Vec<Value>,
        reads_config: bool,
        node: &Endpoint,
    ) -> Result<TopologyView, ConnectError> {
        let mut replies = replies.into_iter();
        let (slots, settings) = (replies.next().unwrap_or(Value::Nil), replies.next());
        if reads_config && settings.as_ref().is_some_and(is_permanently_refused) {
            self.0.mark_config_unreadable();
        }
        match slots {
            Value::ServerError(error)
                if error.details().is_some_and(|text| text.contains("cluster support")) =>
            {
                let sentence = "the server is not a cluster node; use redis://host:port";
                Err(ConnectError::Config(sentence.to_owned()))
            }
            Value::ServerError(error) => Err(ConnectError::from_redis(&error.into())),
            slots => {
                let view = TopologyView::parse(slots, &self.0.shard_slots, node)
                    .ok_or(ConnectError::Unavailable)?;
                Ok(TopologyView { node_timeout: settings.and_then(parse_node_timeout), ..view })
            }
        }
    }
}

impl ClusterState {
    /// Stops queries of node settings, because the user lacks the permission.
    fn mark_config_unreadable(&self) {
        if self.is_config_readable.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                "`CONFIG GET cluster-node-timeout` is refused: assuming 5 s; if it is shorter, \
                 writes that a stalled node acknowledges may be lost; allow `+config|get`"
            );
        }
    }
}
