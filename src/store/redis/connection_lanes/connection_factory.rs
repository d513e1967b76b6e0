//! `ConnectionFactory`: opens a connection of a lane, and checks the server at its end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{
    TrackedConnection, connect_failures::ConnectFailures,
    connection_silence_guard::ConnectionSilenceGuard, namespace_layout,
};
use crate::{
    error::{Error, ErrorKind},
    store::{
        key_names::{COMMON_SHARD, KeyNames},
        redis::{
            acl_check,
            cluster_node_lanes::ClusterNode,
            fence_recovery,
            home_runtime::run_on_home_runtime,
            server_info::ServerInfo,
            server_tracker::{DataIdentity, ServerChange, ServerTracker},
            target::{
                ConnectError, ConnectionTarget, Endpoint, OpenedConnection, RedisConnection,
                TimeoutAndDisconnectFlag,
            },
        },
    },
};

/// Connection attempt in progress, until it ends or its runtime does.
struct ConnectAttempt<'a>(&'a Mutex<Option<Instant>>);

impl<'a> ConnectAttempt<'a> {
    fn start(started_at: &'a Mutex<Option<Instant>>) -> Self {
        *started_at.lock() = Some(Instant::now());
        Self(started_at)
    }
}

impl Drop for ConnectAttempt<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// Makes connections, and checks that the server is usable and the namespace has this layout.
#[derive(Clone)]
pub(super) struct ConnectionFactory {
    pub(super) target: ConnectionTarget,
    pub(super) keys: KeyNames,
    pub(super) deadline: Duration,
    pub(super) failures: Arc<ConnectFailures>,
    pub(super) server_tracker: Option<Arc<ServerTracker>>,
    pub(super) node: Option<Arc<ClusterNode>>,
    /// A new connection may create the namespace, and raise fences after a failover.
    pub(super) writes_on_connect: bool,
    /// Number of connections of all lanes that were abandoned or broke.
    pub(super) connection_resets: Arc<AtomicU64>,
    /// Start of the attempt in progress, if any, for the pool of this factory.
    pub(super) attempt_started_at: Arc<Mutex<Option<Instant>>>,
    /// Runtime that the store was created on.
    pub(super) home_runtime: Option<Handle>,
}

impl bb8::ManageConnection for ConnectionFactory {
    type Connection = TrackedConnection;
    type Error = Error;

    async fn connect(&self) -> Result<TrackedConnection, Error> {
        let _attempt = ConnectAttempt::start(&self.attempt_started_at);
        // The whole attempt has a timeout: one that never ends would keep its lane from making
        // another.
        let limit = self.deadline * 2;
        let opened = timeout(limit, self.open_on_home_runtime()).await;
        let timed_out = |_| {
            let address = self.target.address();
            Err(ConnectError::Unreachable(format!("{address}: no connection within {limit:?}")))
        };
        let opened = opened.unwrap_or_else(timed_out).inspect(|_| self.failures.clear());
        opened.map_err(|failure| self.failures.record(failure))
    }

    async fn is_valid(&self, socket: &mut TrackedConnection) -> Result<(), Error> {
        if socket.is_dead() {
            Err(Error::new(ErrorKind::Unavailable, "connection"))
        } else {
            Ok(())
        }
    }

    fn has_broken(&self, socket: &mut TrackedConnection) -> bool {
        socket.is_dead()
    }
}

impl ConnectionFactory {
    /// Returns a factory for the lanes to a target.
    pub(super) fn for_target(
        &self,
        target: ConnectionTarget,
        server_tracker: &Arc<ServerTracker>,
        node: Option<Arc<ClusterNode>>,
    ) -> Self {
        let server_tracker = Some(Arc::clone(server_tracker));
        Self { target, failures: Arc::default(), server_tracker, node, ..self.clone() }
    }

    async fn open_on_home_runtime(&self) -> Result<TrackedConnection, ConnectError> {
        let factory = self.clone();
        let open = async move { factory.open().await };
        match run_on_home_runtime(self.home_runtime.as_ref(), self.deadline / 4, open).await {
            Some(opened) => opened,
            None => self.open().await,
        }
    }

    pub(super) async fn open(&self) -> Result<TrackedConnection, ConnectError> {
        let settings = TimeoutAndDisconnectFlag {
            connect_timeout: Some(self.deadline),
            ..TimeoutAndDisconnectFlag::default()
        };
        let OpenedConnection { mut connection, endpoint } =
            self.target.open(COMMON_SHARD, &settings).await?;
        let server_info = ServerInfo::fetch(&mut connection).await?;
        server_info.check_usable(self.node.is_some())?;
        // The server has answered, so it was alive at a later moment than this.
        let alive_at = Instant::now();
        let mut acl_connection = connection.clone();
        // Run concurrently, to save a round trip.
        let (data, permissions) = tokio::join!(
            self.verify_layout(&mut connection),
            acl_check::check_permissions(&mut acl_connection, &self.keys)
        );
        let data = data?;
        permissions?;
        let run_id = server_info.run_id().filter(|_| self.may_write());
        if let (Some(run_id), None) = (run_id, &self.node) {
            fence_recovery::advance_all_shards(&mut connection, &self.keys, run_id).await?;
        }
        if let Some(node) = &self.node
            && !node.owns_shards().await
        {
            return Err(ConnectError::Unavailable);
        }
        let disconnected = settings.disconnected;
        if self.record_server(&server_info, endpoint.as_ref(), data, &disconnected) {
            server_info.log_concerns(&mut connection).await;
        }
        let guard = self
            .max_silence()
            .map(|silence| Arc::new(ConnectionSilenceGuard::new(alive_at, silence)));
        Ok(TrackedConnection {
            connection,
            node: self.node.clone(),
            run_id: run_id.filter(|_| self.node.is_some()).map(Arc::from),
            dead: disconnected,
            consecutive_timeouts: Arc::default(),
            silence_guard: guard,
            checked_out_at: alive_at,
            connection_resets: Arc::clone(&self.connection_resets),
        })
    }

    /// Reports the server to the tracker, if there is one. Returns true if it is a new server.
    fn record_server(
        &self,
        server_info: &ServerInfo,
        endpoint: Option<&Endpoint>,
        data: Option<DataIdentity>,
        disconnected: &Arc<AtomicBool>,
    ) -> bool {
        let Some(server_tracker) = &self.server_tracker else { return false };
        let node_name = self.node.as_ref().map(|node| node.name()).unwrap_or_default();
        let node_address = self.node.as_ref().map(|node| &node.address);
        let server_id = server_info.identity(endpoint.or(node_address));
        matches!(
            server_tracker.record_connection(
                &node_name,
                server_id,
                data,
                Arc::downgrade(disconnected)
            ),
            ServerChange::FirstContact | ServerChange::Replaced
        )
    }

    /// Returns true if a new connection may write. A probe never does.
    fn may_write(&self) -> bool {
        self.server_tracker.is_some() && self.writes_on_connect
    }

    /// Returns how long a connection may be silent and still be used; `None` means any time.
    pub(super) fn max_silence(&self) -> Option<Duration> {
        match &self.node {
            Some(node) => Some(node.cluster.max_silence()),
            None => self.target.max_silence(),
        }
    }

    /// Returns an error unless the namespace has the layout of this version. Returns the identity
    /// of the data, unless another node has it. (A probe does not create it; that is left to the
    /// lanes.)
    async fn verify_layout(
        &self,
        connection: &mut RedisConnection,
    ) -> Result<Option<DataIdentity>, ConnectError> {
        let may_write = self.may_write();
        let data =
            namespace_layout::check_layout(connection, &self.keys, self.node.is_some(), may_write)
                .await?;
        let (Some(server_tracker), Some(node)) = (&self.server_tracker, &self.node) else {
            return Ok(data);
        };
        // A node without the key `meta` cannot report the layout. Until the layout is verified, the
        // node with that key is asked.
        if data.is_none() && !server_tracker.is_layout_verified() {
            let settings = TimeoutAndDisconnectFlag {
                connect_timeout: Some(self.deadline),
                ..TimeoutAndDisconnectFlag::default()
            };
            let mut connection = node.cluster.open(COMMON_SHARD, &settings).await?.connection;
            let data =
                namespace_layout::check_layout(&mut connection, &self.keys, false, may_write)
                    .await?;
            // Delegation headers are signed with the identity before a lane of that node connects.
            if let Some(DataIdentity(Some(identity))) = data {
                server_tracker.learn_identity(&identity);
            }
        }
        server_tracker.mark_layout_verified();
        Ok(data)
    }
}
