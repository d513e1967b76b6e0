//! Plan of a heartbeat in a cluster: the shards whose watches a worker keeps, takes, vacates or
//! clears.

/// Owner of a shard watch, as reported by `CLUSTER_SHARD_WATCH_LEASE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardWatchOwner {
    ThisNode,
    OtherNode,
    /// This node's, but expired.
    Lapsed,
    /// Given up, or expired as another node's.
    Released,
    Unassigned,
}

/// Changes that a heartbeat makes to the shard watches of this worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShardWatchPlan {
    /// Shards to keep or to take.
    pub(super) keep: Vec<u16>,
    /// Shards to give up, so that other workers can take them.
    pub(super) vacate: Vec<u16>,
    /// Shards whose expired watches are deleted.
    pub(super) clear: Vec<u16>,
}

impl ShardWatchPlan {
    /// Plans as the script `HEARTBEAT_AND_SHARD_ASSIGNMENT` does: keeps at most `max_shards` and
    /// vacates the others.
    ///
    /// `is_last_worker`: this worker leaves, and no other one is live.
    pub(super) fn new(
        watches: impl Iterator<Item = (u16, ShardWatchOwner)> + Clone,
        max_shards: usize,
        is_last_worker: bool,
    ) -> Self {
        let mut plan = Self::default();
        for (shard, owner) in watches.clone() {
            match owner {
                ShardWatchOwner::ThisNode if plan.keep.len() < max_shards => plan.keep.push(shard),
                ShardWatchOwner::ThisNode => plan.vacate.push(shard),
                ShardWatchOwner::Lapsed if max_shards == 0 => plan.clear.push(shard),
                ShardWatchOwner::Released if max_shards == 0 && is_last_worker => {
                    plan.clear.push(shard);
                }
                _ => {}
            }
        }
        let available = watches.filter(|(_, owner)| {
            matches!(
                owner,
                ShardWatchOwner::Lapsed | ShardWatchOwner::Released | ShardWatchOwner::Unassigned
            )
        });
        let remaining = max_shards - plan.keep.len();
        plan.keep.extend(available.map(|(shard, _)| shard).take(remaining));
        plan
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
        let plan = |max_shards, is_last_worker| {
            ShardWatchPlan::new((0..).zip(all), max_shards, is_last_worker)
        };
        let none = Vec::new;
        assert_eq!(plan(4, false).keep, [0, 3, 2, 4]);
        assert_eq!(
            plan(2, false),
            ShardWatchPlan { keep: vec![0, 3], vacate: none(), clear: none() }
        );
        assert_eq!(
            plan(1, false),
            ShardWatchPlan { keep: vec![0], vacate: vec![3], clear: none() }
        );
        assert_eq!(
            plan(0, false),
            ShardWatchPlan { keep: none(), vacate: vec![0, 3], clear: vec![4] }
        );
        let released = [ShardWatchOwner::Released, ShardWatchOwner::OtherNode];
        assert_eq!(ShardWatchPlan::new((0..).zip(released), 0, true).clear, [0]);
        assert_eq!(ShardWatchPlan::new((0..).zip(released), 0, false).clear, none());
    }
}
