//! Operations on several shards of a cluster: one call per shard, all at once. Shards of an
//! unavailable cluster node are left out; the others are served.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    job_submission::parse_due_locks,
    job_workers::{lease_millis, parse_nodes},
    number_arg,
};
use crate::{
    error::Error,
    key::SHARD_COUNT,
    store::{
        backend::{DueLocks, Heartbeat, NodeId, SHARD_VACANCY_GRACE},
        key_names::COMMON_SHARD,
        redis::{RedisBackend, call_execution::ResendPolicy, reply_reader::ReplyReader, scripts},
    },
};

/// Time after which an unreachable shard is polled again.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(300);

/// Time after which the registry of workers is asked again.
const REGISTRY_RETRY: Duration = Duration::from_secs(1);

/// Owner of a shard watch, as reported by `SHARD_WATCH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShardWatchOwner {
    ThisNode,
    OtherNode,
    /// This node's, but expired.
    Lapsed,
    /// Given up, or expired as another node's.
    Released,
    Unassigned,
}

/// Changes to the shard watches.
#[derive(Debug, Default, PartialEq, Eq)]
struct ShardAssignment {
    keep: Vec<u16>,
    vacate: Vec<u16>,
    clear: Vec<u16>,
}

/// Assigns shards as the script `HEARTBEAT` does: keeps at most `most` and vacates the others.
fn assign_shards(
    shards: impl Iterator<Item = (u16, ShardWatchOwner)> + Clone,
    most: usize,
    alone: bool,
) -> ShardAssignment {
    let mut division = ShardAssignment::default();
    for (shard, whose) in shards.clone() {
        match whose {
            ShardWatchOwner::ThisNode if division.keep.len() < most => division.keep.push(shard),
            ShardWatchOwner::ThisNode => division.vacate.push(shard),
            ShardWatchOwner::Lapsed if most == 0 => division.clear.push(shard),
            ShardWatchOwner::Released if most == 0 && alone => division.clear.push(shard),
            _ => {}
        }
    }
    let nobodys = shards.filter(|(_, whose)| {
        matches!(
            whose,
            ShardWatchOwner::Lapsed | ShardWatchOwner::Released | ShardWatchOwner::Unassigned
        )
    });
    let room = most - division.keep.len();
    division.keep.extend(nobodys.map(|(shard, _)| shard).take(room));
    division
}

impl RedisBackend {
    pub(super) async fn heartbeat_per_shard(
        &self,
        node: NodeId,
        lease: Duration,
    ) -> Result<Heartbeat, Error> {
        let keys = [self.keys.workers(), self.keys.paused()];
        let args = [node.as_str().into(), number_arg(lease_millis(lease))];
        let workers =
            match self.call_script(COMMON_SHARD, &scripts::CLUSTER_HEARTBEAT, &keys, &args).await {
                Ok(workers) => workers,
                Err(error) => return self.keep_current_shards(&node, lease).await.ok_or(error),
            };
        let mut row = ReplyReader::new("heartbeat", workers);
        let paused = row.read_number()? == 1;
        let living = usize::try_from(row.read_number()?).unwrap_or(usize::MAX);
        let told = row.read_number()? == 1;
        let others = parse_nodes(&mut row.read_list()?)?;
        let lapse = row.read_text()?.parse().ok().map(Duration::from_millis);
        let works = !lease.is_zero() && !paused;
        let most = if works { usize::from(SHARD_COUNT).div_ceil(living.max(1)) } else { 0 };
        let known = self.watch_owners(&node).await;
        let division = assign_shards(known.into_iter(), most, lease.is_zero() && living == 0);
        let hand_over =
            if others.is_empty() || paused { 0 } else { lease_millis(SHARD_VACANCY_GRACE) };
        let all = |shards: &[u16], verb: &'static str, ms: u64| {
            join_all(shards.iter().map(|&shard| self.update_shard_watch(shard, &node, verb, ms)))
        };
        let ((mine, busy), ..) = tokio::join!(
            self.keep_shards(&node, lease, division.keep),
            all(&division.vacate, "leave", hand_over),
            all(&division.clear, "free", 0),
        );
        let beat = Heartbeat {
            is_paused: paused,
            peers: others,
            peer_expires_in: lapse,
            own_shards: mine,
            busy_shards: busy,
        };
        if told || !division.vacate.is_empty() || !division.clear.is_empty() {
            self.notify_workers().await?;
        }
        Ok(beat)
    }

    /// Returns the owners of the shards. An unreachable shard is left out: it is neither taken nor
    /// vacated.
    async fn watch_owners(&self, node: &NodeId) -> Vec<(u16, ShardWatchOwner)> {
        let looks =
            join_all((0..SHARD_COUNT).map(|shard| self.update_shard_watch(shard, node, "look", 0)))
                .await;
        (0..).zip(looks).filter_map(|(shard, look)| Some((shard, look?.0))).collect()
    }

    /// Keeps or takes these shards. Returns those that this node owns afterwards, and those of them
    /// that have work to do.
    async fn keep_shards(
        &self,
        node: &NodeId,
        lease: Duration,
        mut keep: Vec<u16>,
    ) -> (Vec<u16>, Vec<u16>) {
        keep.sort_unstable();
        let ms = lease_millis(lease);
        let kept =
            join_all(keep.iter().map(|&shard| self.update_shard_watch(shard, node, "keep", ms)))
                .await;
        let (mut mine, mut busy) = (Vec::new(), Vec::new());
        for (shard, kept) in keep.into_iter().zip(kept) {
            if let Some((ShardWatchOwner::ThisNode, works)) = kept {
                mine.push(shard);
                busy.extend(works.then_some(shard));
            }
        }
        (mine, busy)
    }

    /// Sends a heartbeat while the registry of workers is unavailable, so that the shards of the
    /// other cluster nodes keep their workers.
    ///
    /// It keeps the watches of this node. A watch that lapsed while unreachable shards delayed this
    /// call is kept too, unless another node has taken it. No shard is taken or vacated. `None` if
    /// there is none to keep.
    async fn keep_current_shards(&self, node: &NodeId, lease: Duration) -> Option<Heartbeat> {
        if lease.is_zero() {
            return None;
        }
        let known = self.watch_owners(node).await.into_iter();
        let mine = known.filter(|(_, whose)| {
            matches!(whose, ShardWatchOwner::ThisNode | ShardWatchOwner::Lapsed)
        });
        let mine = mine.map(|(shard, _)| shard);
        let (mine, busy) = self.keep_shards(node, lease, mine.collect()).await;
        (!mine.is_empty()).then(|| Heartbeat {
            own_shards: mine,
            busy_shards: busy,
            peer_expires_in: Some(REGISTRY_RETRY),
            ..Heartbeat::default()
        })
    }

    /// Applies `verb` to a shard watch. Returns its owner afterwards, and true if the shard has
    /// work to do; `None` if the shard is unreachable.
    async fn update_shard_watch(
        &self,
        shard: u16,
        node: &NodeId,
        verb: &str,
        ms: u64,
    ) -> Option<(ShardWatchOwner, bool)> {
        let keys = ["watch", "due", "late", "exp"].map(|kind| self.keys.shard_key(shard, kind));
        let args = [node.as_str().into(), verb.into(), number_arg(ms)];
        let reply = self.call_script(shard, &scripts::SHARD_WATCH, &keys, &args).await.ok()?;
        let mut row = ReplyReader::new("shard_watch", reply);
        let whose = match row.read_text().ok()?.as_str() {
            "mine" => ShardWatchOwner::ThisNode,
            "another" => ShardWatchOwner::OtherNode,
            "lapsed" => ShardWatchOwner::Lapsed,
            "free" => ShardWatchOwner::Released,
            _ => ShardWatchOwner::Unassigned,
        };
        Some((whose, row.read_number().ok()? == 1))
    }

    /// Deletes all shard watches after a pause. A worker that takes one meanwhile learns of the
    /// pause and gives it up.
    pub(super) async fn delete_shard_watches(&self) -> Result<(), Error> {
        let deleted = join_all((0..SHARD_COUNT).map(async |shard| {
            let mut pipe = redis::pipe();
            pipe.cmd("DEL").arg(self.keys.shard_key(shard, "watch"));
            self.run_write_pipeline(shard, "pause_jobs", &pipe, ResendPolicy::UntilAnswered)
                .await
                .map(drop)
        }));
        deleted.await.into_iter().collect()
    }

    /// Polls each shard; fails if all of them are unreachable.
    pub(super) async fn due_per_shard(
        &self,
        shards: &[u16],
        most: usize,
    ) -> Result<Vec<DueLocks>, Error> {
        let one = async |&shard: &u16| {
            let (keys, args) =
                ([self.keys.shard_key(shard, "due")], [number_arg(most as u64), number_arg(1)]);
            let mut rows = ReplyReader::new(
                "poll_due",
                self.call_script(shard, &scripts::POLL_DUE, &keys, &args).await?,
            );
            parse_due_locks(rows.read_list()?)
        };
        let mut looked = join_all(shards.iter().map(one)).await;
        if looked.iter().all(Result::is_err)
            && let Some(Err(failed)) = looked.pop()
        {
            return Err(failed);
        }
        let mut room = most;
        let bounded = looked.into_iter().map(|looked| {
            let Ok(mut due) = looked else {
                return DueLocks { locks: Vec::new(), next_due_in: Some(UNREACHABLE_RETRY) };
            };
            if due.locks.len() > room {
                // The rest stays due.
                due.locks.truncate(room);
                due.next_due_in = Some(Duration::ZERO);
            }
            room -= due.locks.len();
            due
        });
        Ok(bounded.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_assigned_as_by_the_script() {
        let all = [
            ShardWatchOwner::ThisNode,
            ShardWatchOwner::OtherNode,
            ShardWatchOwner::Unassigned,
            ShardWatchOwner::ThisNode,
            ShardWatchOwner::Lapsed,
        ];
        let divided = |most, alone| assign_shards((0..).zip(all), most, alone);
        let none = Vec::new;
        assert_eq!(divided(4, false).keep, [0, 3, 2, 4]);
        assert_eq!(
            divided(2, false),
            ShardAssignment { keep: vec![0, 3], vacate: none(), clear: none() }
        );
        assert_eq!(
            divided(1, false),
            ShardAssignment { keep: vec![0], vacate: vec![3], clear: none() }
        );
        let leaves = ShardAssignment { keep: none(), vacate: vec![0, 3], clear: vec![4] };
        assert_eq!(divided(0, false), leaves);
        let left = [ShardWatchOwner::Released, ShardWatchOwner::OtherNode];
        assert_eq!(assign_shards((0..).zip(left), 0, true).clear, [0]);
        assert_eq!(assign_shards((0..).zip(left), 0, false).clear, none());
    }
}
