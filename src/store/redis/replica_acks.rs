//! Acknowledgements of replicas: how many have a grant in memory (`WAIT`), or on disk with the
//! master (`WAITAOF`).
//!
//! `WAIT` blocks its connection and covers the writes of that connection only. So it has a
//! connection of its own and writes a key on it first. Earlier writes on other connections precede
//! that key in the replication stream.
//!
//! The server must still be the same: replicas of a successor never receive writes that its
//! predecessor had not replicated.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::RedisError;
use tokio::{runtime::Handle, time::timeout};

use super::{
    RedisBackend,
    connection_lanes::ConnectionLanes,
    home_runtime::run_on_home_runtime,
    server_info::ServerInfo,
    target::{
        ConnectError, ConnectionTarget, Endpoint, OpenedConnection, RedisConnection,
        TimeoutAndDisconnectFlag,
    },
};
use crate::store::key_names::KeyNames;
use crate::{
    durations::ceil_millis,
    error::{Error, ErrorKind},
};

/// Connection reserved for `WAIT`.
struct WaitConnection {
    connection: RedisConnection,
    /// As [`TimeoutAndDisconnectFlag::disconnected`].
    disconnected: Arc<AtomicBool>,
    server_id: Option<String>,
    uses_waitaof: bool,
}

/// State of one server's replicas. A call holds its mutex while it waits.
#[derive(Default)]
struct NodeReplicas {
    connection: Option<WaitConnection>,
    last_wait: Option<CompletedWait>,
}

/// Completed `WAIT`. It covers all writes that preceded its start.
struct CompletedWait {
    started_at: Instant,
    wanted: u32,
    acknowledged: u32,
    server_id: Option<String>,
}

impl CompletedWait {
    /// Returns true if this result answers a call made at `called_at` for `wanted` replicas.
    fn satisfies(&self, called_at: Instant, wanted: u32) -> bool {
        self.started_at > called_at && (self.acknowledged >= wanted || self.wanted >= wanted)
    }
}

type NodeReplicasMap = HashMap<Option<Endpoint>, Arc<tokio::sync::Mutex<NodeReplicas>>>;

/// Counter of replica acknowledgements. Each cluster node has an entry of its own, so that its
/// lagging replicas delay no call about other nodes.
pub(super) struct ReplicaAcks {
    target: ConnectionTarget,
    lanes: Arc<ConnectionLanes>,
    keys: KeyNames,
    deadline: Duration,
    /// Counts replicas that have the data on disk, if the server supports it.
    requires_disk: bool,
    /// Runtime on which the store was created.
    home_runtime: Option<Handle>,
    nodes: Mutex<NodeReplicasMap>,
}

impl ReplicaAcks {
    pub(super) fn new(
        target: &ConnectionTarget,
        lanes: &Arc<ConnectionLanes>,
        keys: &KeyNames,
        deadline: Duration,
        requires_disk: bool,
    ) -> Arc<Self> {
        let (target, lanes, keys) = (target.clone(), Arc::clone(lanes), keys.clone());
        let (home_runtime, nodes) = (Handle::try_current().ok(), Mutex::default());
        Arc::new(Self { target, lanes, keys, deadline, requires_disk, home_runtime, nodes })
    }

    fn node_entry(
        &self,
        endpoint: &Option<Endpoint>,
        owners: impl FnOnce() -> Vec<Endpoint>,
    ) -> Arc<tokio::sync::Mutex<NodeReplicas>> {
        let mut nodes = self.nodes.lock();
        if !nodes.contains_key(endpoint) {
            let owners = owners();
            nodes.retain(|endpoint, _| {
                endpoint.as_ref().is_none_or(|endpoint| owners.contains(endpoint))
            });
        }
        Arc::clone(nodes.entry(endpoint.clone()).or_default())
    }
}

impl RedisBackend {
    pub(super) async fn wait_for_replica_acks(
        &self,
        shard: u16,
        wanted: u32,
        since: u64,
    ) -> Result<u32, Error> {
        let timeout_error = || Error::new(ErrorKind::Timeout, "replicas");
        let (replicas, deadline) = (Arc::clone(&self.replica_acks), self.deadline);
        let wait = move || {
            let replicas = Arc::clone(&replicas);
            // In a task of its own: the next caller of this server must not depend on this future
            // being polled, and the connection outlives a dropped caller.
            async move {
                let acks = async move { replicas.await_acks(shard, wanted, since).await };
                let outcome = tokio::spawn(timeout(deadline, acks)).await;
                outcome
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "replicas"))?
                    .map_err(|_| timeout_error())?
            }
        };
        // On the home runtime, so that the task does not depend on the caller's thread either.
        // Timed here, since the home runtime may be blocked too.
        let grace = deadline / 4;
        let remote_wait =
            run_on_home_runtime(self.replica_acks.home_runtime.as_ref(), grace, wait());
        match timeout(deadline + grace, remote_wait).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => wait().await,
            Err(_) => Err(timeout_error()),
        }
    }
}

impl ReplicaAcks {
    async fn await_acks(&self, shard: u16, wanted: u32, since: u64) -> Result<u32, Error> {
        let unavailable = |error| Error::new(ErrorKind::Unavailable, "replicas").with_source(error);
        let called_at = Instant::now();
        let endpoint = self.target.owner_of_shard(shard).await.map_err(ConnectError::into_error)?;
        let address =
            endpoint.as_ref().map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        let is_current_server = |id: &Option<String>| {
            self.lanes.server_tracker().is_same_server(since, &address, id.as_deref())
        };
        let entry = self.node_entry(&endpoint, || self.target.owner_endpoints());
        let mut entry = entry.lock().await;
        if let Some(last) =
            entry.last_wait.as_ref().filter(|last| last.satisfies(called_at, wanted))
            && is_current_server(&last.server_id)
        {
            return Ok(last.acknowledged);
        }
        // Taken out of the entry: a call dropped half way must not leave a connection with a
        // pending reply.
        let mut connection = match entry
            .connection
            .take()
            .filter(|connection| !connection.disconnected.load(Ordering::Acquire))
        {
            Some(connection) => connection,
            None => self.connect(shard, endpoint.is_some()).await?,
        };
        let started_at = Instant::now();
        let acknowledged = self.send_wait(&mut connection, shard, wanted).await;
        let acknowledged =
            acknowledged.inspect_err(|_| self.target.request_refresh()).map_err(unavailable)?;
        if !is_current_server(&connection.server_id) {
            // The lanes or this connection lead to a successor. The next call connects again.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        entry.last_wait = Some(CompletedWait {
            started_at,
            wanted,
            acknowledged,
            server_id: connection.server_id.clone(),
        });
        entry.connection = Some(connection);
        Ok(acknowledged)
    }

    async fn send_wait(
        &self,
        wait_connection: &mut WaitConnection,
        shard: u16,
        wanted: u32,
    ) -> Result<u32, RedisError> {
        let marker_key = self.keys.shard_key(shard, "replicas");
        let timeout_ms = ceil_millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET")
            .arg(&marker_key)
            .arg(1)
            .arg("PX")
            .arg(ceil_millis(Duration::from_secs(1)))
            .ignore();
        if !wait_connection.uses_waitaof {
            pipe.cmd("WAIT").arg(wanted).arg(timeout_ms);
            let (acknowledged,) = pipe.query_async(&mut wait_connection.connection).await?;
            return Ok(acknowledged);
        }
        pipe.cmd("WAITAOF").arg(1).arg(wanted).arg(timeout_ms);
        let ((local_disks, acknowledged),): ((u32, u32),) =
            pipe.query_async(&mut wait_connection.connection).await?;
        // The master may lose data that are not on its own disk in a restart, and its replicas
        // follow it.
        Ok(if local_disks > 0 { acknowledged } else { 0 })
    }

    async fn connect(&self, shard: u16, as_node: bool) -> Result<WaitConnection, Error> {
        // Without limits of its own: the caller has a deadline around everything.
        let settings = TimeoutAndDisconnectFlag::default();
        let opened = self.target.open(shard, &settings).await;
        let OpenedConnection { mut connection, endpoint } =
            opened.map_err(ConnectError::into_error)?;
        let server_info =
            ServerInfo::fetch(&mut connection).await.map_err(ConnectError::into_error)?;
        server_info.check_usable(as_node).map_err(ConnectError::into_error)?;
        let uses_waitaof = self.requires_disk && server_info.supports_waitaof();
        if self.requires_disk && !uses_waitaof {
            tracing::warn!(
                "WAITAOF is not available, so replicas count that have the write in memory only; \
                 it needs Redis 7.2 and `appendonly yes`"
            );
        }
        let server_id = server_info.identity(endpoint.as_ref());
        Ok(WaitConnection {
            connection,
            disconnected: settings.disconnected,
            server_id,
            uses_waitaof,
        })
    }
}
