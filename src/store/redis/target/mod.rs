//! Where the servers are, and how one gets to them.
//!
//! A [`ConnectionTarget`] is what the application has configured; [`ConnectionTarget::open`] makes one [`RedisConnection`] to
//! it, [`ConnectionTarget::subscribe`] one stream of messages. Everybody else sees connections alone, so what a
//! topology asks for stays here.

mod cluster;
mod connect_error;
#[cfg(feature = "bb8-redis")]
mod pool_target;
mod redis_connection;
mod redis_tls_settings;
mod sentinel_target;
mod single_server;
mod store_url;

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
pub(super) use self::pool_target::ApplicationPool;
pub(super) use self::{
    cluster::{ClusterTarget, Endpoint},
    connect_error::{ConnectError, missing_permission},
    redis_connection::RedisConnection,
    redis_tls_settings::RedisTlsSettings,
    sentinel_target::SentinelTarget,
    store_url::{LoginCredentials, SENTINEL_PORT, ServerAddresses, StoreUrl},
};
use self::{single_server::SingleServer, store_url::HostPort};
use crate::error::Error;

/// What the application has configured.
#[derive(Clone)]
pub(super) enum ConnectionTarget {
    Single(SingleServer),
    Sentinel(SentinelTarget),
    #[cfg(feature = "bb8-redis")]
    Pool(pool_target::PoolTarget),
    Cluster(ClusterTarget),
}

/// A new connection, and where it goes if that is not always the same place.
pub(super) struct OpenedConnection {
    pub(super) connection: RedisConnection,
    pub(super) endpoint: Option<Endpoint>,
}

/// Messages of the channels that were asked for, until the connection breaks.
pub(super) type MessageStream = BoxStream<'static, Msg>;

impl ConnectionTarget {
    /// Asks nobody yet.
    pub(super) fn new(
        address: &StoreUrl,
        trust: &RedisTlsSettings,
        within: Duration,
    ) -> Result<Self, Error> {
        trust.validate(address.tls)?;
        let target = match address.servers.clone() {
            ServerAddresses::Single(node) => SingleServer::new(
                redis_tls_settings::connection_addr(&node, address.tls),
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
                Err(ConnectError::Config("a cluster has no database but 0".to_owned()))
            }
            ServerAddresses::Cluster(nodes) => {
                let (address, trust) = (address.clone(), trust.clone());
                let seeds = nodes.into_iter().map(|HostPort { host, port }| (host, port)).collect();
                let make = move |(host, port): &Endpoint| {
                    let node = HostPort { host: host.clone(), port: *port };
                    SingleServer::new(
                        redis_tls_settings::connection_addr(&node, address.tls),
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
    pub(super) fn from_pool(pool: ApplicationPool, messages: Option<Self>) -> Self {
        Self::Pool(pool_target::PoolTarget { pool, message_target: messages.map(Arc::new) })
    }

    /// Whether different shards may be on different servers.
    pub(super) fn is_clustered(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Where this shard is, if there is more than one place.
    pub(super) async fn owner_of_shard(
        &self,
        shard: u16,
    ) -> Result<Option<Endpoint>, ConnectError> {
        match self {
            Self::Cluster(cluster) => cluster.owner(shard).await.map(Some),
            _ => Ok(None),
        }
    }

    /// All such places.
    pub(super) fn owner_endpoints(&self) -> Vec<Endpoint> {
        match self {
            Self::Cluster(cluster) => cluster.owner_endpoints(),
            _ => Vec::new(),
        }
    }

    /// How long a connection may have been silent, and still be used; however long, if `None`.
    pub(super) fn max_silence(&self) -> Option<Duration> {
        match self {
            Self::Sentinel(sentinels) => sentinels.max_silence(),
            Self::Cluster(cluster) => Some(cluster.max_silence()),
            Self::Single(_) => None,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(_) => None,
        }
    }

    /// Something was not where it should be.
    pub(super) fn request_refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.request_refresh();
        }
    }

    /// A connection of its own, to where this shard is. Whoever calls puts a time limit around it.
    pub(super) async fn open(
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

    /// Hears the channels from now on, on a connection of its own. Whoever calls puts a time limit
    /// around it. (In a cluster each node has its own: `listen::apart`.)
    pub(super) async fn subscribe(
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

/// What a connection is made with, whatever it goes to.
#[derive(Default)]
pub(super) struct ConnectionSettings {
    /// How long the network may take for one connection; no limit of its own if `None`.
    pub(super) connect_timeout: Option<Duration>,
    /// Set when the server or the network ends the connection, or its driver ends with the runtime that it is on.
    pub(super) disconnected: Arc<AtomicBool>,
}

/// Part of a connection's driver. A driver that is dropped reads and writes no more: a call that is not sent yet must
/// go elsewhere, since one that fails here counts as one that may have run.
struct DriverGuard(Arc<AtomicBool>);

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
    /// Deadlines of calls are ours, around each.
    fn to_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(self.connect_timeout)
            .set_response_timeout(None)
            .set_push_sender(self.disconnect_handler())
    }

    /// The driver task alone owns the function, so it is dropped with that.
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

    fn driver_guard(&self) -> DriverGuard {
        DriverGuard(Arc::clone(&self.disconnected))
    }
}
