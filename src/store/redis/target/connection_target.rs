//! `ConnectionTarget`: a server, a Sentinel group, a cluster or a pool, and how it is connected to.

#[cfg(feature = "bb8-redis")]
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use redis::{ConnectionAddr, Msg};

#[cfg(feature = "bb8-redis")]
use super::pool_target::ApplicationPool;
use super::{
    cluster::{ClusterTarget, Endpoint},
    connect_error::ConnectError,
    dedicated_or_pooled_connection::RedisConnection,
    redis_tls_settings::RedisTlsSettings,
    sentinel_target::SentinelTarget,
    single_server::SingleServer,
    store_url::{HostPort, ServerAddresses, StoreUrl},
    timeout_and_disconnect_flag::TimeoutAndDisconnectFlag,
};
use crate::error::Error;

/// Configured deployment.
#[derive(Clone)]
pub(in super::super) enum ConnectionTarget {
    Single(SingleServer),
    Sentinel(SentinelTarget),
    #[cfg(feature = "bb8-redis")]
    Pool(super::pool_target::PoolTarget),
    Cluster(ClusterTarget),
}

/// New connection, and the address of its server if that can change.
pub(in super::super) struct OpenedConnection {
    pub(in super::super) connection: RedisConnection,
    pub(in super::super) endpoint: Option<Endpoint>,
}

/// Messages of the subscribed channels, until the connection breaks.
pub(in super::super) type MessageStream = BoxStream<'static, Msg>;

impl ConnectionTarget {
    /// Validates the settings; opens no connection.
    pub(in super::super) fn new(
        url: &StoreUrl,
        tls_settings: &RedisTlsSettings,
        call_timeout: Duration,
    ) -> Result<Self, Error> {
        tls_settings.validate(url.tls)?;
        let target = match url.servers.clone() {
            ServerAddresses::Single(node) => SingleServer::new(
                super::redis_tls_settings::connection_addr(&node, url.tls),
                url,
                tls_settings,
            )
            .map(Self::Single),
            ServerAddresses::UnixSocket(path) => {
                SingleServer::new(ConnectionAddr::Unix(path), url, tls_settings).map(Self::Single)
            }
            ServerAddresses::Sentinels { nodes, master } => {
                SentinelTarget::new(&nodes, master, url, tls_settings, call_timeout)
                    .map(Self::Sentinel)
            }
            ServerAddresses::Cluster(_) if url.database.is_some_and(|number| number > 0) => {
                Err(ConnectError::Config("a cluster has database 0 only".to_owned()))
            }
            ServerAddresses::Cluster(nodes) => Ok(Self::Cluster(cluster_target(
                nodes,
                url.clone(),
                tls_settings.clone(),
                call_timeout,
            ))),
        };
        target.map_err(ConnectError::into_error)
    }

    #[cfg(feature = "bb8-redis")]
    pub(in super::super) fn from_pool(pool: ApplicationPool, message_target: Option<Self>) -> Self {
        Self::Pool(super::pool_target::PoolTarget {
            pool,
            message_target: message_target.map(Arc::new),
        })
    }

    /// Returns what is connected to, for error messages: the server's address, without the login.
    pub(in super::super) fn address(&self) -> String {
        match self {
            Self::Single(server) => server.address().to_string(),
            Self::Sentinel(_) => "the sentinels or their master".to_owned(),
            Self::Cluster(_) => "the cluster".to_owned(),
            #[cfg(feature = "bb8-redis")]
            Self::Pool(_) => "the application's pool".to_owned(),
        }
    }

    /// Returns true if shards may be on different servers.
    pub(in super::super) fn is_clustered(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns false for a pool without a source of messages.
    pub(in super::super) fn receives_messages(&self) -> bool {
        match self {
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.message_target.is_some(),
            _ => true,
        }
    }

    /// Returns the cluster node that owns a shard; `None` unless the target is a cluster.
    pub(in super::super) async fn owner_of_shard(
        &self,
        shard: u16,
    ) -> Result<Option<Endpoint>, ConnectError> {
        match self {
            Self::Cluster(cluster) => cluster.owner(shard).await.map(Some),
            _ => Ok(None),
        }
    }

    /// Returns all cluster nodes that own shards; empty unless the target is a cluster.
    pub(in super::super) fn owner_endpoints(&self) -> Vec<Endpoint> {
        match self {
            Self::Cluster(cluster) => cluster.owner_endpoints(),
            _ => Vec::new(),
        }
    }

    /// Returns how long a connection may be silent and still be used; `None` means any time.
    pub(in super::super) fn max_silence(&self) -> Option<Duration> {
        match self {
            Self::Sentinel(sentinels) => sentinels.max_silence(),
            Self::Cluster(cluster) => Some(cluster.max_silence()),
            Self::Single(_) => None,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(_) => None,
        }
    }

    /// Requests a topology refresh, because a shard was not where the map has it. Does nothing
    /// unless the target is a cluster.
    pub(in super::super) fn request_refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.request_refresh();
        }
    }

    /// Opens a connection to the server that owns a shard. The caller applies a timeout.
    pub(in super::super) async fn open(
        &self,
        shard: u16,
        settings: &TimeoutAndDisconnectFlag,
    ) -> Result<OpenedConnection, ConnectError> {
        let without_endpoint = |connection| OpenedConnection { connection, endpoint: None };
        match self {
            Self::Single(server) => server.open(settings).await.map(without_endpoint),
            Self::Sentinel(sentinels) => sentinels.open(settings).await,
            Self::Cluster(cluster) => cluster.open(shard, settings).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.open(settings).await.map(without_endpoint),
        }
    }

    /// Subscribes to the channels on a separate connection. The caller applies a timeout.
    ///
    /// In a cluster, each cluster node has its own subscription (`subscriber::node_subscription`).
    pub(in super::super) async fn subscribe(
        &self,
        channels: &[String],
    ) -> Result<MessageStream, ConnectError> {
        match self {
            Self::Single(server) => server.subscribe(channels).await,
            Self::Sentinel(sentinels) => sentinels.subscribe(channels).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.subscribe(channels).await,
            Self::Cluster(_) => Err(ConnectError::Unavailable),
        }
    }
}

fn cluster_target(
    nodes: Vec<HostPort>,
    url: StoreUrl,
    tls_settings: RedisTlsSettings,
    call_timeout: Duration,
) -> ClusterTarget {
    let seeds = nodes.into_iter().map(|HostPort { host, port }| (host, port)).collect();
    let node_factory = move |(host, port): &Endpoint| {
        let node = HostPort { host: host.clone(), port: *port };
        SingleServer::new(
            super::redis_tls_settings::connection_addr(&node, url.tls),
            &url,
            &tls_settings,
        )
    };
    ClusterTarget::new(seeds, Box::new(node_factory), call_timeout)
}
