//! `ConnectionTarget`: a server, a Sentinel group, a cluster or a pool, and how it is connected to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::stream::BoxStream;
use redis::{AsyncConnectionConfig, ConnectionAddr, Msg, PushInfo, PushKind, aio::SendError};

#[cfg(feature = "bb8-redis")]
use super::pool_target::ApplicationPool;
use super::{
    cluster::{ClusterTarget, Endpoint},
    connect_error::ConnectError,
    redis_connection::RedisConnection,
    redis_tls_settings::RedisTlsSettings,
    sentinel_target::SentinelTarget,
    single_server::SingleServer,
    store_url::{HostPort, ServerAddresses, StoreUrl},
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
        address: &StoreUrl,
        trust: &RedisTlsSettings,
        within: Duration,
    ) -> Result<Self, Error> {
        trust.validate(address.tls)?;
        let target = match address.servers.clone() {
            ServerAddresses::Single(node) => SingleServer::new(
                super::redis_tls_settings::connection_addr(&node, address.tls),
                address,
                trust,
            )
            .map(Self::Single),
            ServerAddresses::UnixSocket(path) => {
                SingleServer::new(ConnectionAddr::Unix(path), address, trust).map(Self::Single)
            }
            ServerAddresses::Sentinels { nodes, master } => {
                SentinelTarget::new(&nodes, master, address, trust, within).map(Self::Sentinel)
            }
            ServerAddresses::Cluster(_) if address.database.is_some_and(|number| number > 0) => {
                Err(ConnectError::Config("a cluster has database 0 only".to_owned()))
            }
            ServerAddresses::Cluster(nodes) => {
                let (address, trust) = (address.clone(), trust.clone());
                let seeds = nodes.into_iter().map(|HostPort { host, port }| (host, port)).collect();
                let make = move |(host, port): &Endpoint| {
                    let node = HostPort { host: host.clone(), port: *port };
                    SingleServer::new(
                        super::redis_tls_settings::connection_addr(&node, address.tls),
                        &address,
                        &trust,
                    )
                };
                Ok(Self::Cluster(ClusterTarget::new(seeds, Box::new(make), within)))
            }
        };
        target.map_err(ConnectError::into_error)
    }

    #[cfg(feature = "bb8-redis")]
    pub(in super::super) fn from_pool(pool: ApplicationPool, messages: Option<Self>) -> Self {
        Self::Pool(super::pool_target::PoolTarget { pool, message_target: messages.map(Arc::new) })
    }

    /// Returns true if shards may be on different servers.
    pub(in super::super) fn is_clustered(&self) -> bool {
        matches!(self, Self::Cluster(_))
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
        settings: &ConnectionSettings,
    ) -> Result<OpenedConnection, ConnectError> {
        let somewhere = |connection| OpenedConnection { connection, endpoint: None };
        match self {
            Self::Single(one) => one.open(settings).await.map(somewhere),
            Self::Sentinel(sentinels) => sentinels.open(settings).await,
            Self::Cluster(cluster) => cluster.open(shard, settings).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.open(settings).await.map(somewhere),
        }
    }

    /// Subscribes to the channels on a separate connection. The caller applies a timeout.
    ///
    /// In a cluster, each cluster node has its own subscription (`subscriber::subscription`).
    pub(in super::super) async fn subscribe(
        &self,
        channels: &[String],
    ) -> Result<MessageStream, ConnectError> {
        match self {
            Self::Single(one) => one.subscribe(channels).await,
            Self::Sentinel(sentinels) => sentinels.subscribe(channels).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.subscribe(channels).await,
            Self::Cluster(_) => Err(ConnectError::Unavailable),
        }
    }
}

/// Settings of a new connection, the same for every target.
#[derive(Default)]
pub(in super::super) struct ConnectionSettings {
    /// Timeout of the network connection; `None` for no timeout.
    pub(in super::super) connect_timeout: Option<Duration>,
    /// Set when the server or the network ends the connection, or when its driver ends with its
    /// runtime.
    pub(in super::super) disconnected: Arc<AtomicBool>,
}

/// Guard owned by the driver of a connection; marks the connection as disconnected when dropped.
///
/// A driver that is dropped reads and writes no more. A call that is not sent yet must use another
/// connection, because a call that fails on this one counts as in doubt.
pub(super) struct DriverGuard(Arc<AtomicBool>);

impl DriverGuard {
    fn mark_disconnected(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.mark_disconnected();
    }
}

impl ConnectionSettings {
    /// Sets no response timeout: every call has its own deadline.
    pub(super) fn to_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(self.connect_timeout)
            .set_response_timeout(None)
            .set_push_sender(self.disconnect_handler())
    }

    /// Returns a handler of disconnect pushes. Only the driver task owns it, so it is dropped with
    /// the driver.
    fn disconnect_handler(
        &self,
    ) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let driver = self.driver_guard();
        move |push| {
            if push.kind == PushKind::Disconnection {
                driver.mark_disconnected();
            }
            Ok(())
        }
    }

    pub(super) fn driver_guard(&self) -> DriverGuard {
        DriverGuard(Arc::clone(&self.disconnected))
    }
}
