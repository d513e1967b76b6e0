//! Queries of single cluster nodes, over cached connections: while one node is unavailable, the
//! others are queried repeatedly.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use parking_lot::Mutex;
use redis::{RedisError, RedisResult, Value, aio::ConnectionLike as _};
use tokio::time::Instant;

use super::{
    ClusterTarget, Endpoint,
    node_timeout::{NODE_TIMEOUT_SETTING, is_permanently_refused, parse_node_timeout},
    topology_view::TopologyView,
};
use crate::store::redis::target::ConnectError;
use crate::store::redis::target::ConnectionSettings;
use crate::store::redis::target::RedisConnection;

/// Maximum idle time of a cached connection: a middlebox may have dropped it after that.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(10);

/// Cache of one connection for each node. A connection is taken out while in use, so that a
/// cancelled query leaves none that may be dead.
#[derive(Default)]
pub(super) struct ConnectionCache(Mutex<HashMap<Endpoint, (Instant, RedisConnection)>>);

impl ConnectionCache {
    pub(super) fn take(&self, node: &Endpoint) -> Option<RedisConnection> {
        let kept = self.0.lock().remove(node);
        kept.filter(|(since, _)| since.elapsed() < MAX_IDLE).map(|(_, connection)| connection)
    }

    pub(super) fn put_back(&self, node: &Endpoint, connection: RedisConnection) {
        self.0.lock().insert(node.clone(), (Instant::now(), connection));
    }

    /// Closes connections that have been idle for `MAX_IDLE`.
    pub(super) fn close_idle(&self) {
        self.0.lock().retain(|_, (since, _)| since.elapsed() < MAX_IDLE);
    }

    /// Closes connections to all other nodes.
    pub(super) fn retain_nodes(&self, nodes: &[Endpoint]) {
        self.0.lock().retain(|node, _| nodes.contains(node));
    }
}

type NodeReply = RedisResult<(Vec<Value>, RedisConnection)>;

fn is_io_failure(asked: &NodeReply) -> bool {
    asked.as_ref().is_err_and(RedisError::is_io_error)
}

/// Sends the query on a connection, and returns the replies with the connection.
async fn query_over(mut connection: RedisConnection, tells: bool) -> NodeReply {
    let mut pipe = redis::pipe();
    pipe.cmd("CLUSTER").arg("SLOTS");
    if tells {
        pipe.cmd("CONFIG").arg("GET").arg(NODE_TIMEOUT_SETTING);
    }
    let count = pipe.len();
    connection.req_packed_commands(&pipe, 0, count).await.map(|replies| (replies, connection))
}

impl ClusterTarget {
    pub(super) async fn query_node(&self, node: &Endpoint) -> Result<TopologyView, ConnectError> {
        let tells = self.0.is_config_readable.load(Ordering::Relaxed);
        let asked = match self.0.connections.take(node) {
            // A cached connection may be broken; its failure says nothing about the node.
            Some(kept) => Some(query_over(kept, tells).await).filter(|asked| !is_io_failure(asked)),
            None => None,
        };
        let asked = match asked {
            Some(asked) => asked,
            None => {
                let settings = ConnectionSettings {
                    connect_timeout: Some(self.0.query_timeout),
                    ..ConnectionSettings::default()
                };
                query_over(self.server_at(node)?.open(&settings).await?, tells).await
            }
        };
        let (replies, connection) = asked.map_err(|error| ConnectError::from_redis(&error))?;
        self.0.connections.put_back(node, connection);
        self.parse_node_replies(replies, tells, node)
    }

    fn parse_node_replies(
        &self,
        replies: Vec<Value>,
        tells: bool,
        node: &Endpoint,
    ) -> Result<TopologyView, ConnectError> {
        let mut replies = replies.into_iter();
        let (slots, settings) = (replies.next().unwrap_or(Value::Nil), replies.next());
        if tells && settings.as_ref().is_some_and(is_permanently_refused) {
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
