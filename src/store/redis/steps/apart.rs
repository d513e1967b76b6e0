//! Steps about several shards, in a cluster: a call for each of them, all at once. A node that is away has its
//! shards left out, and the others their due.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    number,
    pending::due,
    workers::{nodes, watched_until},
};
use crate::{
    error::Error,
    key::SHARDS,
    store::{
        backend::{Heartbeat, DueLocks, SHARD_VACANCY_GRACE, NodeId},
        key_names::COMMON,
        redis::{Redis, call::Copies, read::Row, script},
    },
};

/// How soon a shard that could not be asked is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// How soon it is asked again who lives.
const SOON: Duration = Duration::from_secs(1);

/// Whose a shard is, as `watch.lua` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Mine,
    Another,
    /// This node's, until it ended.
    Lapsed,
    /// Somebody's, once.
    Free,
    Nobody,
}

/// What becomes of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Division {
    keep: Vec<u16>,
    leave: Vec<u16>,
    free: Vec<u16>,
}

/// As in `beat.lua`: at most so many are kept, the rest is given up.
fn divide(
    shards: impl Iterator<Item = (u16, Whose)> + Clone,
    most: usize,
    alone: bool,
) -> Division {
    let mut division = Division::default();
    for (shard, whose) in shards.clone() {
        match whose {
            Whose::Mine if division.keep.len() < most => division.keep.push(shard),
            Whose::Mine => division.leave.push(shard),
            Whose::Lapsed if most == 0 => division.free.push(shard),
            Whose::Free if most == 0 && alone => division.free.push(shard),
            _ => {}
        }
    }
    let nobodys =
        shards.filter(|(_, whose)| matches!(whose, Whose::Lapsed | Whose::Free | Whose::Nobody));
    let room = most - division.keep.len();
    division.keep.extend(nobodys.map(|(shard, _)| shard).take(room));
    division
}

impl Redis {
    pub(super) async fn beat_apart(&self, node: NodeId, lease: Duration) -> Result<Heartbeat, Error> {
        let keys = [self.keys.workers(), self.keys.paused()];
        let args = [node.as_str().into(), number(watched_until(lease))];
        let workers = match self.script(COMMON, &script::WORKERS, &keys, &args).await {
            Ok(workers) => workers,
            Err(error) => return self.hold_on(&node, lease).await.ok_or(error),
        };
        let mut row = Row::of("beat", workers);
        let paused = row.number()? == 1;
        let living = usize::try_from(row.number()?).unwrap_or(usize::MAX);
        let told = row.number()? == 1;
        let others = nodes(&mut row.row()?)?;
        let lapse = row.text()?.parse().ok().map(Duration::from_millis);
        let works = !lease.is_zero() && !paused;
        let most = if works { usize::from(SHARDS).div_ceil(living.max(1)) } else { 0 };
        let known = self.whose(&node).await;
        let division = divide(known.into_iter(), most, lease.is_zero() && living == 0);
        let hand_over = if others.is_empty() || paused { 0 } else { watched_until(SHARD_VACANCY_GRACE) };
        let all = |shards: &[u16], verb: &'static str, ms: u64| {
            join_all(shards.iter().map(|&shard| self.watch(shard, &node, verb, ms)))
        };
        let ((mine, busy), ..) = tokio::join!(
            self.keep(&node, lease, division.keep),
            all(&division.leave, "leave", hand_over),
            all(&division.free, "free", 0),
        );
        let beat = Heartbeat { is_paused: paused, peers: others, peer_expires_in: lapse, own_shards: mine, busy_shards: busy };
        if told || !division.leave.is_empty() || !division.free.is_empty() {
            self.tell_workers().await?;
        }
        Ok(beat)
    }

    /// Whose the shards are. Of one that can't be asked nothing is known: it is neither taken nor left.
    async fn whose(&self, node: &NodeId) -> Vec<(u16, Whose)> {
        let looks = join_all((0..SHARDS).map(|shard| self.watch(shard, node, "look", 0))).await;
        (0..).zip(looks).filter_map(|(shard, look)| Some((shard, look?.0))).collect()
    }

    /// Keeps and takes these; those that are this node's then, and those of them that have something to do.
    async fn keep(&self, node: &NodeId, lease: Duration, mut keep: Vec<u16>) -> (Vec<u16>, Vec<u16>) {
        keep.sort_unstable();
        let ms = watched_until(lease);
        let kept = join_all(keep.iter().map(|&shard| self.watch(shard, node, "keep", ms))).await;
        let (mut mine, mut busy) = (Vec::new(), Vec::new());
        for (shard, kept) in keep.into_iter().zip(kept) {
            if let Some((Whose::Mine, works)) = kept {
                mine.push(shard);
                busy.extend(works.then_some(shard));
            }
        }
        (mine, busy)
    }

    /// A sign of life while nobody can say who else lives: the node that knows is away, and the shards of the others
    /// must not go without a worker for that. What this one watches it keeps, also if this comes so late, for the sake of
    /// those that do not answer, that it has lapsed: whoever else has come for it has it. None is taken and none is left. `None`
    /// if there is nothing to keep.
    async fn hold_on(&self, node: &NodeId, lease: Duration) -> Option<Heartbeat> {
        if lease.is_zero() {
            return None;
        }
        let known = self.whose(node).await.into_iter();
        let mine = known.filter(|(_, whose)| matches!(whose, Whose::Mine | Whose::Lapsed));
        let mine = mine.map(|(shard, _)| shard);
        let (mine, busy) = self.keep(node, lease, mine.collect()).await;
        (!mine.is_empty()).then(|| Heartbeat { own_shards: mine, busy_shards: busy, peer_expires_in: Some(SOON), ..Heartbeat::default() })
    }

    /// Whose a shard is after this, and whether it has anything to do; `None` if it can't be asked.
    async fn watch(&self, shard: u16, node: &NodeId, verb: &str, ms: u64) -> Option<(Whose, bool)> {
        let keys = ["watch", "due", "late", "exp"].map(|kind| self.keys.shard_key(shard, kind));
        let args = [node.as_str().into(), verb.into(), number(ms)];
        let reply = self.script(shard, &script::WATCH, &keys, &args).await.ok()?;
        let mut row = Row::of("watch", reply);
        let whose = match row.text().ok()?.as_str() {
            "mine" => Whose::Mine,
            "another" => Whose::Another,
            "lapsed" => Whose::Lapsed,
            "free" => Whose::Free,
            _ => Whose::Nobody,
        };
        Some((whose, row.number().ok()? == 1))
    }

    /// Takes the watches of a queue that has just been paused. Whoever has taken one meanwhile hears of the
    /// pause, and gives it up.
    pub(super) async fn unwatch_apart(&self) -> Result<(), Error> {
        let deleted = join_all((0..SHARDS).map(async |shard| {
            let mut pipe = redis::pipe();
            pipe.cmd("DEL").arg(self.keys.shard_key(shard, "watch"));
            self.write(shard, "pause", &pipe, Copies::Any).await.map(drop)
        }));
        deleted.await.into_iter().collect()
    }

    /// Fails if none of them can be asked.
    pub(super) async fn due_apart(&self, shards: &[u16], most: usize) -> Result<Vec<DueLocks>, Error> {
        let one = async |&shard: &u16| {
            let (keys, args) = ([self.keys.shard_key(shard, "due")], [number(most as u64), number(1)]);
            let mut rows = Row::of("due", self.script(shard, &script::DUE, &keys, &args).await?);
            due(rows.row()?)
        };
        let mut looked = join_all(shards.iter().map(one)).await;
        if looked.iter().all(Result::is_err)
            && let Some(Err(failed)) = looked.pop()
        {
            return Err(failed);
        }
        let mut room = most;
        let bounded = looked.into_iter().map(|looked| {
            let Ok(mut due) = looked else { return DueLocks { locks: Vec::new(), next_due_in: Some(AGAIN) } };
            if due.locks.len() > room {
                // They stay due.
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
    fn shards_are_divided_as_in_the_script() {
        let all = [Whose::Mine, Whose::Another, Whose::Nobody, Whose::Mine, Whose::Lapsed];
        let divided = |most, alone| divide((0..).zip(all), most, alone);
        let none = Vec::new;
        assert_eq!(divided(4, false).keep, [0, 3, 2, 4]);
        assert_eq!(divided(2, false), Division { keep: vec![0, 3], leave: none(), free: none() });
        assert_eq!(divided(1, false), Division { keep: vec![0], leave: vec![3], free: none() });
        let leaves = Division { keep: none(), leave: vec![0, 3], free: vec![4] };
        assert_eq!(divided(0, false), leaves);
        let left = [Whose::Free, Whose::Another];
        assert_eq!(divide((0..).zip(left), 0, true).free, [0]);
        assert_eq!(divide((0..).zip(left), 0, false).free, none());
    }
}
