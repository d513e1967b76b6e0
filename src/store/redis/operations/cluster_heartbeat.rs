//! Heartbeat of a worker in a cluster: registers the worker, then renews, takes or vacates its
//! watch of each shard.
//!
//! There is one call for the registry of workers, and then one call per shard, all at once. Shards
//! of an unavailable cluster node are left out; the others are served.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::{
    heartbeat_and_shard_assignment::{lease_millis, parse_nodes},
    number_arg,
    shard_watch_plan::{ShardWatchOwner, ShardWatchPlan},
};
use crate::{
    error::Error,
    key::SHARD_COUNT,
    store::{
        backend::{HeartbeatReply, NodeId, SHARD_VACANCY_GRACE},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, reply_reader::ReplyReader, script_sources},
    },
};

/// Time after which the registry of workers is asked again.
const REGISTRY_RETRY: Duration = Duration::from_secs(1);

/// Watch of a shard after a call of `CLUSTER_SHARD_WATCH_LEASE`.
#[derive(Debug, Clone, Copy)]
struct ShardWatchStatus {
    owner: ShardWatchOwner,
    /// The shard has a due, a delayed or an expiring job.
    has_work: bool,
}

/// Shards that this node owns after a heartbeat.
#[derive(Debug, Default)]
struct OwnedShards {
    all: Vec<u16>,
    /// Those with work to do.
    busy: Vec<u16>,
}

/// Reply of `CLUSTER_HEARTBEAT`.
struct WorkerRegistryReply {
    is_paused: bool,
    live_workers: usize,
    /// This worker has joined or left, or another one has expired.
    has_changed: bool,
    peers: Vec<NodeId>,
    peer_expires_in: Option<Duration>,
}

impl WorkerRegistryReply {
    fn parse(reply: Value) -> Result<Self, Error> {
        let mut reader = ReplyReader::new("heartbeat_and_shard_assignment", reply);
        Ok(Self {
            is_paused: reader.read_number()? == 1,
            live_workers: usize::try_from(reader.read_number()?).unwrap_or(usize::MAX),
            has_changed: reader.read_number()? == 1,
            peers: parse_nodes(&mut reader.read_list()?)?,
            peer_expires_in: reader.read_text()?.parse().ok().map(Duration::from_millis),
        })
    }
}

impl RedisBackend {
    pub(super) async fn send_cluster_heartbeat(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<HeartbeatReply, Error> {
        let keys = [self.keys.workers(), self.keys.paused()];
        let args = [node.as_str().into(), number_arg(lease_millis(lease))];
        let registry = match self
            .call_script(COMMON_SHARD, &script_sources::CLUSTER_HEARTBEAT, &keys, &args)
            .await
        {
            Ok(reply) => WorkerRegistryReply::parse(reply)?,
            Err(error) => return self.keep_current_shards(&node, lease).await.ok_or(error),
        };
        let runs_jobs = !lease.is_zero() && !registry.is_paused;
        let max_shards = if runs_jobs {
            usize::from(SHARD_COUNT).div_ceil(registry.live_workers.max(1))
        } else {
            0
        };
        let watches = self.read_watch_owners(&node).await;
        let is_last_worker = lease.is_zero() && registry.live_workers == 0;
        let plan = ShardWatchPlan::new(watches.into_iter(), max_shards, is_last_worker);
        let has_changed = registry.has_changed || !plan.vacate.is_empty() || !plan.clear.is_empty();
        let vacancy_ms = if registry.peers.is_empty() || registry.is_paused {
            0
        } else {
            lease_millis(SHARD_VACANCY_GRACE)
        };
        let owned = self.apply_watch_plan(&node, lease, plan, vacancy_ms).await;
        if has_changed {
            self.notify_membership_change().await?;
        }
        Ok(HeartbeatReply {
            is_paused: registry.is_paused,
            peers: registry.peers,
            peer_expires_in: registry.peer_expires_in,
            own_shards: owned.all,
            busy_shards: owned.busy,
        })
    }

    /// Changes the watches of all shards at once. A vacated shard stays vacant for `vacancy_ms`.
    async fn apply_watch_plan(
        &self,
        node: &NodeId,
        lease: Duration,
        plan: ShardWatchPlan,
        vacancy_ms: u64,
    ) -> OwnedShards {
        let update_all = |shards: &[u16], verb: &'static str, ms: u64| {
            join_all(shards.iter().map(|&shard| self.update_shard_watch(shard, node, verb, ms)))
        };
        let (owned, ..) = tokio::join!(
            self.keep_shards(node, lease, plan.keep),
            update_all(&plan.vacate, "vacate", vacancy_ms),
            update_all(&plan.clear, "clear", 0),
        );
        owned
    }

    /// Returns the owners of the shards. An unreachable shard is left out: it is neither taken nor
    /// vacated.
    async fn read_watch_owners(&self, node: &NodeId) -> Vec<(u16, ShardWatchOwner)> {
        let watches =
            join_all((0..SHARD_COUNT).map(|shard| self.update_shard_watch(shard, node, "peek", 0)))
                .await;
        (0..).zip(watches).filter_map(|(shard, watch)| Some((shard, watch?.owner))).collect()
    }

    /// Keeps or takes these shards. Returns those that this node owns afterwards.
    async fn keep_shards(
        &self,
        node: &NodeId,
        lease: Duration,
        mut shards: Vec<u16>,
    ) -> OwnedShards {
        shards.sort_unstable();
        let ms = lease_millis(lease);
        let watches = join_all(
            shards.iter().map(|&shard| self.update_shard_watch(shard, node, "assign", ms)),
        )
        .await;
        let mut owned = OwnedShards::default();
        for (shard, watch) in shards.into_iter().zip(watches) {
            if let Some(ShardWatchStatus { owner: ShardWatchOwner::ThisNode, has_work }) = watch {
                owned.all.push(shard);
                owned.busy.extend(has_work.then_some(shard));
            }
        }
        owned
    }

    /// Sends a heartbeat while the registry of workers is unavailable, so that the shards of the
    /// other cluster nodes keep their workers.
    ///
    /// It keeps the watches of this node. A watch that lapsed while unreachable shards delayed this
    /// call is kept too, unless another node has taken it. No shard is taken or vacated. `None` if
    /// there is none to keep.
    async fn keep_current_shards(&self, node: &NodeId, lease: Duration) -> Option<HeartbeatReply> {
        if lease.is_zero() {
            return None;
        }
        let watches = self.read_watch_owners(node).await.into_iter();
        let own_watches = watches.filter(|(_, owner)| {
            matches!(owner, ShardWatchOwner::ThisNode | ShardWatchOwner::Lapsed)
        });
        let own_shards = own_watches.map(|(shard, _)| shard);
        let owned = self.keep_shards(node, lease, own_shards.collect()).await;
        (!owned.all.is_empty()).then(|| HeartbeatReply {
            own_shards: owned.all,
            busy_shards: owned.busy,
            peer_expires_in: Some(REGISTRY_RETRY),
            ..HeartbeatReply::default()
        })
    }

    /// Applies `verb` to a shard watch and returns it as it is afterwards; `None` if the shard is
    /// unreachable.
    async fn update_shard_watch(
        &self,
        shard: u16,
        node: &NodeId,
        verb: &str,
        ms: u64,
    ) -> Option<ShardWatchStatus> {
        let keys = ["watch", "due", "late", "exp"].map(|kind| self.keys.shard_key(shard, kind));
        let args = [node.as_str().into(), verb.into(), number_arg(ms)];
        let reply = self
            .call_script(shard, &script_sources::CLUSTER_SHARD_WATCH_LEASE, &keys, &args)
            .await
            .ok()?;
        let mut reader = ReplyReader::new("cluster_shard_watch_lease", reply);
        let owner = match reader.read_text().ok()?.as_str() {
            "this_node" => ShardWatchOwner::ThisNode,
            "other_node" => ShardWatchOwner::OtherNode,
            "lapsed" => ShardWatchOwner::Lapsed,
            "released" => ShardWatchOwner::Released,
            _ => ShardWatchOwner::Unassigned,
        };
        Some(ShardWatchStatus { owner, has_work: reader.read_number().ok()? == 1 })
    }
}
