//! `WAIT`: how many replicas have a grant; or `WAITAOF`: how many have it on their disks, as the master has.
//!
//! `WAIT` holds up its connection, and counts what was written on that connection: so it has one of its
//! own, and writes something there first. What was written before, on any connection, stands before it
//! in the stream that replicas get.
//!
//! It must be the same server, though: the replicas of a successor have never heard of what was written to
//! the one before and not passed on.

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
    KeyNames, RedisBackend,
    connection_lanes::ConnectionLanes,
    home_runtime::run_on_home_runtime,
    server_info::ServerInfo,
    target::{
        ConnectError, ConnectionSettings, ConnectionTarget, Endpoint, OpenedConnection,
        RedisConnection,
    },
};
use crate::{
    clock::ceil_millis,
    error::{Error, ErrorKind},
};

/// A connection to a server.
struct WaitConnection {
    connection: RedisConnection,
    /// As [`ConnectionSettings::disconnected`].
    disconnected: Arc<AtomicBool>,
    server_id: Option<String>,
    uses_waitaof: bool,
}

/// What is known of one server's replicas; whoever asks it holds this.
#[derive(Default)]
struct NodeReplicas {
    connection: Option<WaitConnection>,
    last_wait: Option<CompletedWait>,
}

/// A `WAIT` that was answered. It tells of all that was written before it was begun.
struct CompletedWait {
    started_at: Instant,
    wanted: u32,
    acknowledged: u32,
    server_id: Option<String>,
}

impl CompletedWait {
    /// Whether it answers somebody who has asked for so many since then.
    fn satisfies(&self, called: Instant, wanted: u32) -> bool {
        self.started_at > called && (self.acknowledged >= wanted || self.wanted >= wanted)
    }
}

type NodeReplicasMap = HashMap<Option<Endpoint>, Arc<tokio::sync::Mutex<NodeReplicas>>>;

/// In a cluster a slot for each node: one whose replicas lag holds up nobody who asks another.
pub(super) struct ReplicaAcks {
    target: ConnectionTarget,
    lanes: Arc<ConnectionLanes>,
    keys: KeyNames,
    deadline: Duration,
    /// What is on a disk counts, where the server can tell.
    requires_disk: bool,
    /// The runtime it was made on.
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
            // A task of its own: whoever waits for its slot does not wait for this caller to be polled, and it keeps its
            // connection where he leaves.
            async move {
                let waits = async move { replicas.await_acks(shard, wanted, since).await };
                let waited = tokio::spawn(timeout(deadline, waits)).await;
                waited
                    .map_err(|_| Error::new(ErrorKind::Unavailable, "replicas"))?
                    .map_err(|_| late())?
            }
        };
        // Nor for his thread. By his own clock: that one may stand still, too.
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
        // Taken out: a call that is dropped half way leaves no connection with a reply on its way.
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
            // The lanes or this connection lead to a successor: the next one is made anew.
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
        // What the master itself has not on its disk may be gone when it starts again, and its replicas follow it.
        Ok(if here > 0 { have } else { 0 })
    }

    async fn connect(&self, shard: u16, as_node: bool) -> Result<WaitConnection, Error> {
        // The deadline is ours, around all of it.
        let settings = ConnectionSettings::default();
        let connected = self.target.open(shard, &settings).await;
        let OpenedConnection { mut connection, endpoint: at } =
            connected.map_err(ConnectError::into_error)?;
        let facts = ServerInfo::fetch(&mut connection).await.map_err(ConnectError::into_error)?;
        facts.check_usable(as_node).map_err(ConnectError::into_error)?;
        let waits_for_disks = self.requires_disk && facts.supports_waitaof();
        if self.requires_disk && !waits_for_disks {
            tracing::warn!(
                "the store's server can't tell what is on disks (Redis 7.2 with `appendonly yes` can): what replicas \
                 have in their memory counts"
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
