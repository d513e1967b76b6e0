//! Where the servers are, and how one gets to them.
//!
//! A [`Target`] is what the application has configured; [`Target::open`] makes one [`Connection`] to
//! it, [`Target::subscribe`] one stream of messages. Everybody else sees connections alone, so what a
//! topology asks for stays here.

mod connection;
mod failure;
mod one;
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

pub(super) use self::{
    connection::Connection,
    failure::Failure,
    tls::Trust,
    url::{Address, Login, Nodes, SENTINEL},
};
use self::{one::One, sentinel::Sentinels};
use crate::error::Error;

/// What the application has configured.
#[derive(Clone)]
pub(super) enum Target {
    One(One),
    Sentinel(Sentinels),
}

/// Messages of the channels that were asked for, until the connection breaks.
pub(super) type Messages = BoxStream<'static, Msg>;

impl Target {
    /// Asks nobody yet.
    pub(super) fn new(address: &Address, trust: &Trust) -> Result<Self, Error> {
        trust.check(address.tls)?;
        let target = match address.nodes.clone() {
            Nodes::One(node) => {
                One::new(tls::address(&node, address.tls), address, trust).map(Self::One)
            }
            Nodes::Socket(path) => {
                One::new(ConnectionAddr::Unix(path), address, trust).map(Self::One)
            }
            Nodes::Sentinels { nodes, master } => {
                Sentinels::new(nodes, master, address, trust).map(Self::Sentinel)
            }
            Nodes::Cluster(_) => {
                Err(Failure::Config("a cluster is not supported by this version".to_owned()))
            }
        };
        target.map_err(Failure::error)
    }

    /// A connection of its own. Whoever calls puts a time limit around it.
    pub(super) async fn open(&self, settings: &Settings) -> Result<Connection, Failure> {
        match self {
            Self::One(one) => one.open(settings).await,
            Self::Sentinel(sentinels) => sentinels.open(settings).await,
        }
    }

    /// Hears the channels from now on, on a connection of its own. Whoever calls puts a time limit
    /// around it.
    pub(super) async fn subscribe(&self, channels: &[&str]) -> Result<Messages, Failure> {
        match self {
            Self::One(one) => one.subscribe(channels).await,
            Self::Sentinel(sentinels) => sentinels.subscribe(channels).await,
        }
    }
}

/// What a connection is made with, whatever it goes to.
#[derive(Default)]
pub(super) struct Settings {
    /// How long the network may take for one connection; no limit of its own if `None`.
    pub(super) within: Option<Duration>,
    /// Set when the server or the network ends the connection.
    pub(super) gone: Arc<AtomicBool>,
}

impl Settings {
    /// Deadlines of calls are ours, around each.
    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(self.within)
            .set_response_timeout(None)
            .set_push_sender(self.on_push())
    }

    fn on_push(&self) -> impl Fn(PushInfo) -> Result<(), SendError> + Send + Sync + 'static {
        let gone = Arc::clone(&self.gone);
        move |push| {
            if push.kind == PushKind::Disconnection {
                gone.store(true, Ordering::Release);
            }
            Ok(())
        }
    }
}
