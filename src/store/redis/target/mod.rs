//! Where the servers are, and how one gets to them.
//!
//! A [`Target`] is what the application has configured; [`Target::open`] makes one [`Connection`] to
//! it, [`Target::subscribe`] one stream of messages. Everybody else sees connections alone, so what a
//! topology asks for stays here.

mod cluster;
mod connection;
mod failure;
mod one;
#[cfg(feature = "bb8-redis")]
mod pool;
mod sentinel;
mod tls;
mod url;

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
pub(super) use self::pool::Pool;
pub(super) use self::{
    cluster::{Cluster, Endpoint},
    connection::Connection,
    failure::{Failure, not_allowed},
    sentinel::Sentinels,
    tls::Trust,
    url::{Address, Login, Nodes, SENTINEL},
};
use self::{one::One, url::Node};
use crate::error::Error;

/// What the application has configured.
#[derive(Clone)]
pub(super) enum Target {
    One(One),
    Sentinel(Sentinels),
    #[cfg(feature = "bb8-redis")]
    Pool(pool::Pooled),
    Cluster(Cluster),
}

/// A new connection, and where it goes if that is not always the same place.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) at: Option<Endpoint>,
}

/// Messages of the channels that were asked for, until the connection breaks.
pub(super) type Messages = BoxStream<'static, Msg>;

impl Target {
    /// Asks nobody yet.
    pub(super) fn new(address: &Address, trust: &Trust, within: Duration) -> Result<Self, Error> {
        trust.check(address.tls)?;
        let target = match address.nodes.clone() {
            Nodes::One(node) => {
                One::new(tls::address(&node, address.tls), address, trust).map(Self::One)
            }
            Nodes::Socket(path) => {
                One::new(ConnectionAddr::Unix(path), address, trust).map(Self::One)
            }
            Nodes::Sentinels { nodes, master } => {
                Sentinels::new(&nodes, master, address, trust, within).map(Self::Sentinel)
            }
            Nodes::Cluster(_) if address.database.is_some_and(|number| number > 0) => {
                Err(Failure::Config("a cluster has no database but 0".to_owned()))
            }
            Nodes::Cluster(nodes) => {
                let (address, trust) = (address.clone(), trust.clone());
                let seeds = nodes.into_iter().map(|Node { host, port }| (host, port)).collect();
                let make = move |(host, port): &Endpoint| {
                    let node = Node { host: host.clone(), port: *port };
                    One::new(tls::address(&node, address.tls), &address, &trust)
                };
                Ok(Self::Cluster(Cluster::new(seeds, Box::new(make), within)))
            }
        };
        target.map_err(Failure::error)
    }

    #[cfg(feature = "bb8-redis")]
    pub(super) fn of_pool(pool: Pool, messages: Option<Self>) -> Self {
        Self::Pool(pool::Pooled { pool, messages: messages.map(Arc::new) })
    }

    /// Whether different shards may be on different servers.
    pub(super) fn is_apart(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Where this shard is, if there is more than one place.
    pub(super) async fn place(&self, shard: u16) -> Result<Option<Endpoint>, Failure> {
        match self {
            Self::Cluster(cluster) => cluster.owner(shard).await.map(Some),
            _ => Ok(None),
        }
    }

    /// All such places.
    pub(super) fn owners(&self) -> Vec<Endpoint> {
        match self {
            Self::Cluster(cluster) => cluster.owners(),
            _ => Vec::new(),
        }
    }

    /// How long a connection may have been silent, and still be used; however long, if `None`.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self {
            Self::Sentinel(sentinels) => sentinels.patience(),
            Self::Cluster(cluster) => Some(cluster.patience()),
            Self::One(_) => None,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(_) => None,
        }
    }

    /// Something was not where it should be.
    pub(super) fn look_again(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.look_again();
        }
    }

    /// A connection of its own, to where this shard is. Whoever calls puts a time limit around it.
    pub(super) async fn open(&self, shard: u16, settings: &Settings) -> Result<Opened, Failure> {
        let somewhere = |connection| Opened { connection, at: None };
        match self {
            Self::One(one) => one.open(settings).await.map(somewhere),
            Self::Sentinel(sentinels) => sentinels.open(settings).await,
            Self::Cluster(cluster) => cluster.open(shard, settings).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.open(settings).await.map(somewhere),
        }
    }

    /// Hears the channels from now on, on a connection of its own. Whoever calls puts a time limit
    /// around it. (In a cluster each node has its own: `listen::apart`.)
    pub(super) async fn subscribe(&self, channels: &[String]) -> Result<Messages, Failure> {
        match self {
            Self::One(one) => one.subscribe(channels).await,
            Self::Sentinel(sentinels) => sentinels.subscribe(channels).await,
            #[cfg(feature = "bb8-redis")]
            Self::Pool(pool) => pool.subscribe(channels).await,
            Self::Cluster(_) => Err(Failure::Away),
        }
    }
}

/// What a connection is made with, whatever it goes to.
#[derive(Default)]
pub(super) struct Settings {
    /// How long the network may take for one connection; no limit of its own if `None`.
    pub(super) within: Option<Duration>,
    /// Set when the server or the network ends the connection, or its driver ends with the runtime that it is on.
    pub(super) gone: Arc<AtomicBool>,
}

/// Part of a connection's driver. A driver that is dropped reads and writes no more: a call that is not sent yet must
/// go elsewhere, since one that fails here counts as one that may have run.
struct Driver(Arc<AtomicBool>);

impl Driver {
    fn ends(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.ends();
    }
}

impl Settings {
    /// Deadlines of calls are ours, around each.
    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(self.within)
            .set_response_timeout(None)
            .set_push_sender(self.on_push())
    }

    /// The driver task alone owns the function, so it is dropped with that.
    fn on_push(&self) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let driver = self.driver();
        move |push| {
            if push.kind == PushKind::Disconnection {
                driver.ends();
            }
            Ok(())
        }
    }

    fn driver(&self) -> Driver {
        Driver(Arc::clone(&self.gone))
    }
}
