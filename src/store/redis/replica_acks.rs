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
        ConnectError, ConnectionSettings, ConnectionTarget, Endpoint, OpenedConnection,
        RedisConnection,
    },
};
use crate::store::key_names::KeyNames;
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
};

/// Connection reserved for `WAIT`.
struct WaitConnection {
    connection: RedisConnection,
    /// As [`ConnectionSettings::disconnected`].
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
    /// Returns true if this result answers a call made at `called` for `wanted` replicas.
    fn satisfies(&self, called: Instant, wanted: u32) -> bool {
        self.started_at > called && (self.acknowledged >= wanted || self.wanted >= wanted)
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
        on_disk: bool,
    ) -> Arc<Self> {
        let (target, lanes, keys) = (target.clone(), Arc::clone(lanes), keys.clone());
        let (home, slots) = (Handle::try_current().ok(), Mutex::default());
        Arc::new(Self {
            target,
            lanes,
            keys,
            deadline,
            requires_disk: on_disk,
            home_runtime: home,
            nodes: slots,
        })
    }

    fn node_entry(
        &self,
        place: &Option<Endpoint>,
        owners: impl FnOnce() -> Vec<Endpoint>,
    ) -> Arc<tokio::sync::Mutex<NodeReplicas>> {
        let mut slots = self.nodes.lock();
        if !slots.contains_key(place) {
            let owners = owners();
            slots.retain(|place, _| place.as_ref().is_none_or(|place| owners.contains(place)));
        }
        Arc::clone(slots.entry(place.clone()).or_default())
    }
}

impl RedisBackend {
    pub(super) async fn do_wait_for_replicas(
        &self,
        shard: u16,
        wanted: u32,
        since: u64,
    ) -> Result<u32, Error> {
        let late = || Error::new(ErrorKind::Timeout, "replicas");
        let (replicas, deadline) = (Arc::clone(&self.replica_acks), self.deadline);
        let wait = move || {
            let replicas = Arc::clone(&replicas);
            // In a task of its own: the next caller of this server must not depend on this future
            // being polled, and the connection outlives a dropped caller.
            async move {
                let waits = async move { replicas.await_acks(shard, wanted, since).await };
                let waited = tokio::spawn(timeout(deadline, waits)).await;
                waited
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "replicas"))?
                    .map_err(|_| late())?
            }
        };
        // On the home runtime, so that the task does not depend on the caller's thread either.
        // Timed here, since the home runtime may be blocked too.
        let patience = deadline / 4;
        let there = run_on_home_runtime(self.replica_acks.home_runtime.as_ref(), patience, wait());
        match timeout(deadline + patience, there).await {
            Ok(Some(waited)) => waited,
            Ok(None) => wait().await,
            Err(_) => Err(late()),
        }
    }
}

impl ReplicaAcks {
    async fn await_acks(&self, shard: u16, wanted: u32, since: u64) -> Result<u32, Error> {
        let away = |error| Error::new(ErrorKind::Unavailable, "replicas").with_source(error);
        let called = Instant::now();
        let place = self.target.owner_of_shard(shard).await.map_err(ConnectError::into_error)?;
        let name = place.as_ref().map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        let is_still = |id: &Option<String>| {
            self.lanes.server_tracker().is_same_server(since, &name, id.as_deref())
        };
        let slot = self.node_entry(&place, || self.target.owner_endpoints());
        let mut slot = slot.lock().await;
        if let Some(last) = slot.last_wait.as_ref().filter(|last| last.satisfies(called, wanted))
            && is_still(&last.server_id)
        {
            return Ok(last.acknowledged);
        }
        // Taken out of the entry: a call dropped half way must not leave a connection with a
        // pending reply.
        let mut kept = match slot
            .connection
            .take()
            .filter(|kept| !kept.disconnected.load(Ordering::Acquire))
        {
            Some(kept) => kept,
            None => self.connect(shard, place.is_some()).await?,
        };
        let begun = Instant::now();
        let answer = self.send_wait(&mut kept, shard, wanted).await;
        let have = answer.inspect_err(|_| self.target.request_refresh()).map_err(away)?;
        if !is_still(&kept.server_id) {
            // The lanes or this connection lead to a successor. The next call connects again.
            return Err(Error::new(ErrorKind::Unavailable, "replicas"));
        }
        slot.last_wait = Some(CompletedWait {
            started_at: begun,
            wanted,
            acknowledged: have,
            server_id: kept.server_id.clone(),
        });
        slot.connection = Some(kept);
        Ok(have)
    }

    async fn send_wait(
        &self,
        kept: &mut WaitConnection,
        shard: u16,
        wanted: u32,
    ) -> Result<u32, RedisError> {
        let mark = self.keys.shard_key(shard, "replicas");
        let patience = ceil_millis(self.deadline.saturating_sub(self.deadline / 5)).max(1);
        let mut pipe = redis::pipe();
        pipe.cmd("SET")
            .arg(&mark)
            .arg(1)
            .arg("PX")
            .arg(ceil_millis(Duration::from_secs(1)))
            .ignore();
        if !kept.uses_waitaof {
            pipe.cmd("WAIT").arg(wanted).arg(patience);
            let (have,) = pipe.query_async(&mut kept.connection).await?;
            return Ok(have);
        }
        pipe.cmd("WAITAOF").arg(1).arg(wanted).arg(patience);
        let ((here, have),): ((u32, u32),) = pipe.query_async(&mut kept.connection).await?;
        // The master may lose data that are not on its own disk in a restart, and its replicas
        // follow it.
        Ok(if here > 0 { have } else { 0 })
    }

    async fn connect(&self, shard: u16, as_node: bool) -> Result<WaitConnection, Error> {
        // Without limits of its own: the caller has a deadline around everything.
        let settings = ConnectionSettings::default();
        let connected = self.target.open(shard, &settings).await;
        let OpenedConnection { mut connection, endpoint: at } =
            connected.map_err(ConnectError::into_error)?;
        let facts = ServerInfo::fetch(&mut connection).await.map_err(ConnectError::into_error)?;
        facts.check_usable(as_node).map_err(ConnectError::into_error)?;
        let waits_for_disks = self.requires_disk && facts.supports_waitaof();
        if self.requires_disk && !waits_for_disks {
            tracing::warn!(
                "WAITAOF is not available, so replicas count that have the write in memory only; \
                 it needs Redis 7.2 and `appendonly yes`"
            );
        }
        let (gone, id) = (settings.disconnected, facts.identity(at.as_ref()));
        Ok(WaitConnection {
            connection,
            disconnected: gone,
            server_id: id,
            uses_waitaof: waits_for_disks,
        })
    }
}
