//! The embedded store against a plain model: its replies must be possible and fair.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::{
    client_operation::{ClientOperation, operation_sequences, proptest_config, token_modes},
    model_drain::drain_model,
    reply_model::ReplyModel,
    simulated_clients::SimulatedClients,
    store_call::{StoreCall, StoreReply},
    store_harness::{LONG_TIME, StoreHarness},
};
use crate::{
    Key,
    durations::ceil_millis,
    key::SHARD_COUNT,
    store::{
        ChargeItem, QuotaRule,
        backend::{
            ChargeCommand, ChargeOutcome, HeartbeatReply, JobId, LockMode, NodeId,
            SHARD_VACANCY_GRACE,
        },
    },
};

/// Model of a store: its locks, and everything that is not part of one.
pub(super) struct StoreModel {
    pub(super) now_ms: u64,
    pub(super) locks: HashMap<Key, ReplyModel>,
    /// Spent units and end of each window, by policy, subject and tag.
    windows: HashMap<(Arc<str>, Key, Key), (u64, u64)>,
    shard_owners: HashMap<u16, (NodeId, u64)>,
    /// Shards that were given up, and the end of the time in which another worker may take them.
    vacated_shards: HashMap<u16, u64>,
    pub(super) worker_expiries: HashMap<NodeId, u64>,
    is_paused: bool,
}

impl StoreModel {
    pub(super) fn new(keys: &[Key]) -> Self {
        let locks = keys.iter().map(|key| (key.clone(), ReplyModel::default()));
        let mut model = Self {
            // Start time of the harness.
            now_ms: 1_700_000_000_000,
            locks: locks.collect(),
            windows: HashMap::new(),
            shard_owners: HashMap::new(),
            vacated_shards: HashMap::new(),
            worker_expiries: HashMap::new(),
            is_paused: false,
        };
        model.advance_time(Duration::ZERO);
        model
    }

    fn expiry_after(&self, time: Duration) -> u64 {
        self.now_ms + ceil_millis(time)
    }

    fn lock_mut(&mut self, key: &Key) -> &mut ReplyModel {
        self.locks.get_mut(key).expect("a lock of the model")
    }

    fn lock_of_job(&mut self, id: &JobId) -> Option<&mut ReplyModel> {
        self.locks.values_mut().find(|lock| lock.expected_view(id).is_some())
    }

    pub(super) fn check_reply(&mut self, call: &StoreCall, reply: &StoreReply) {
        match (call, reply) {
            (StoreCall::Acquire(c), StoreReply::Acquired(r)) => {
                self.lock_mut(&c.key).check_acquire(c, r);
            }
            (StoreCall::Release(key, token, mode), StoreReply::Released(r)) => {
                self.lock_mut(key).check_release(token, *mode, *r);
            }
            (
                StoreCall::ReleaseAndReacquire(token, mode, next),
                StoreReply::ReleasedAndReacquired(r, acquired),
            ) => {
                let lock = self.lock_mut(&next.key);
                lock.check_release(token, *mode, *r);
                lock.check_acquire(next, acquired);
            }
            (StoreCall::RefreshGrant(key, token), StoreReply::GrantRefreshed(r)) => {
                self.lock_mut(key).check_refresh(token, *r);
            }
            (StoreCall::Downgrade(key, token, lease), StoreReply::Downgraded(r)) => {
                self.lock_mut(key).check_downgrade(token, *lease, *r);
            }
            (StoreCall::ForceRelease(key), StoreReply::ForceReleased(r)) => {
                self.lock_mut(key).check_forced_release(*r);
            }
            (StoreCall::Renew(c), StoreReply::Renewed(r)) => {
                self.lock_mut(&c.key).check_renewal(&c.token, c.mode, c.lease, r == &[true]);
            }
            (StoreCall::Enqueue(c), StoreReply::Enqueued(r)) => {
                let [jobs, bytes, _] = self.pending_usage(&c.key);
                self.lock_mut(&c.key).check_enqueue(c, r, (jobs, bytes));
            }
            (StoreCall::Claim(c), StoreReply::Claimed(r)) => {
                self.lock_mut(&c.key).check_claim(c, r);
            }
            (StoreCall::Settle(c), StoreReply::Settled(r)) => {
                self.lock_mut(&c.key).check_settle(c, r);
            }
            (StoreCall::Unclaim(key, token, id), StoreReply::Unclaimed(r)) => {
                self.lock_mut(key).check_unclaim(token, id.as_ref(), *r);
            }
            (StoreCall::Redrive(id), StoreReply::Redriven(r)) => match self.lock_of_job(id) {
                Some(lock) => lock.check_redrive(id, *r),
                None => assert_eq!(*r, None),
            },
            (StoreCall::Purge(id), StoreReply::Purged(r)) => match self.lock_of_job(id) {
                Some(lock) => lock.check_purge(id, *r),
                None => assert!(!r),
            },
            (StoreCall::Cancel(id), StoreReply::Cancelled(r)) => match self.lock_of_job(id) {
                Some(lock) => lock.check_cancel(id, LONG_TIME, *r),
                None => assert_eq!(*r, None),
            },
            (StoreCall::Charge(c), StoreReply::Charged(r)) => self.check_charge(c, r),
            (StoreCall::Heartbeat(node, lease), StoreReply::Heartbeat(r)) => {
                self.check_heartbeat(node, *lease, r);
            }
            (StoreCall::SetPaused(paused), StoreReply::PauseChanged) => {
                self.is_paused = *paused;
                if *paused {
                    self.shard_owners.clear();
                    self.vacated_shards.clear();
                }
            }
            (StoreCall::PollDue(shard), StoreReply::DuePolled(_)) => {
                let locks = self.locks.iter_mut().filter(|(key, _)| key.shard() == *shard);
                locks.for_each(|(_, lock)| lock.apply_due_times());
            }
            (StoreCall::AdvanceTime(time), StoreReply::TimeAdvanced) => self.advance_time(*time),
            other => panic!("no reply to that call: {other:?}"),
        }
        self.sync_shard_state();
    }

    fn advance_time(&mut self, time: Duration) {
        self.now_ms += u64::try_from(time.as_millis()).unwrap();
        self.sync_shard_state();
    }

    /// Copies the state that all locks of a shard share.
    fn sync_shard_state(&mut self) {
        let mut fences = HashMap::<u16, u64>::new();
        for (key, lock) in &self.locks {
            let fence = fences.entry(key.shard()).or_default();
            *fence = lock.highest_fence.max(*fence);
        }
        for (key, lock) in &mut self.locks {
            let watch = self.shard_owners.get(&key.shard());
            let live_watch = watch.filter(|(_, until)| *until > self.now_ms);
            lock.is_watched = live_watch.is_some();
            lock.is_between_workers =
                self.vacated_shards.get(&key.shard()).is_some_and(|until| *until > self.now_ms);
            // After a worker has given up a shard, an offer made just before still stands.
            let last_end = lock.watched_until.min(self.now_ms);
            lock.watched_until = live_watch.map_or(last_end, |(_, until)| *until);
            lock.highest_fence = fences[&key.shard()];
            lock.now_ms = self.now_ms;
            lock.reset_order_if_free();
        }
    }

    /// Returns the jobs and bytes of the key's shard, and the bytes of its queue.
    fn pending_usage(&self, key: &Key) -> [u64; 3] {
        let mut sums = [0; 3];
        for (other, lock) in &self.locks {
            for job in lock.pending_jobs().filter(|_| other.shard() == key.shard()) {
                sums[0] += 1;
                sums[1] += job.envelope_bytes;
                let is_queued = other == key && job.delayed_until.is_none();
                sums[2] += if is_queued { job.envelope_bytes } else { 0 };
            }
        }
        sums
    }

    /// Checks a charge: all or none, and never beyond the limit. A refused call begins no window. A
    /// window is shortened to that of the current rule.
    fn check_charge(&mut self, call: &ChargeCommand, reply: &ChargeOutcome) {
        let name =
            |item: &ChargeItem| (Arc::clone(&item.policy), item.subject.clone(), call.tag.clone());
        let mut after = self.windows.clone();
        after.retain(|_, (_, end)| *end > self.now_ms);
        for item in &*call.items {
            // If two rules name one counter, the longer window applies.
            let same_counter = call.items.iter().filter(|other| name(other) == name(item));
            let longest = same_counter.map(|other| other.rule.window()).max().unwrap_or_default();
            let expiry = self.expiry_after(longest);
            let window = after.entry(name(item)).or_insert((0, expiry));
            window.1 = window.1.min(expiry);
        }
        self.windows.clone_from(&after);
        self.windows.retain(|_, (spent, _)| *spent > 0);
        call.items.iter().for_each(|i| after.entry(name(i)).or_default().0 += i.cost);
        let limit = |item: &ChargeItem| match item.rule {
            QuotaRule::Fixed { limit, .. } => limit,
            other => panic!("none of these: {other:?}"),
        };
        // An item with a cost of zero refuses nothing.
        let is_charged = |item: &&ChargeItem| {
            call.items.iter().any(|other| name(other) == name(item) && other.cost > 0)
        };
        let fits = call.items.iter().filter(is_charged).all(|i| after[&name(i)].0 <= limit(i));
        assert_eq!(reply.admitted, u32::from(fits));
        if fits {
            after.retain(|_, (spent, _)| *spent > 0);
            self.windows = after;
        }
        for (item, snapshot) in call.items.iter().zip(&reply.snapshots) {
            let same_counter = call.items.iter().filter(|other| name(other) == name(item));
            let limit = same_counter.map(limit).min().unwrap_or(0);
            let window = self.windows.get(&name(item));
            assert_eq!(snapshot.remaining, limit.saturating_sub(window.map_or(0, |w| w.0)));
            if let Some((_, end)) = window {
                assert_eq!(snapshot.reset_after, Duration::from_millis(end - self.now_ms));
            }
        }
    }

    fn check_heartbeat(&mut self, node: &NodeId, lease: Duration, reply: &HeartbeatReply) {
        let now = self.now_ms;
        self.worker_expiries.retain(|other, until| *until > now && other != node);
        let mut peers = Vec::from_iter(self.worker_expiries.keys().cloned());
        peers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        assert_eq!((&reply.peers, reply.is_paused), (&peers, self.is_paused));
        let mut share = 0;
        if !lease.is_zero() {
            self.worker_expiries.insert(node.clone(), self.expiry_after(lease));
            share = usize::from(SHARD_COUNT).div_ceil(self.worker_expiries.len());
        }
        self.update_vacated_shards(node, reply);
        self.shard_owners.retain(|_, (watcher, until)| *until > now && watcher != node);
        let unowned = usize::from(SHARD_COUNT) - self.shard_owners.len();
        assert_eq!(reply.own_shards.len(), if self.is_paused { 0 } else { share.min(unowned) });
        for shard in &reply.own_shards {
            let watch = (node.clone(), self.expiry_after(lease));
            let other = self.shard_owners.insert(*shard, watch);
            assert!(other.is_none(), "a shard has two watchers");
        }
        for (key, lock) in &self.locks {
            if reply.own_shards.contains(&key.shard()) && lock.pending_jobs().next().is_some() {
                assert!(reply.busy_shards.contains(&key.shard()), "there are jobs in it");
            }
        }
    }

    /// Shards that this worker has given up are left to the others, if there are any.
    fn update_vacated_shards(&mut self, node: &NodeId, reply: &HeartbeatReply) {
        let (now, expiry) = (self.now_ms, self.expiry_after(SHARD_VACANCY_GRACE));
        self.vacated_shards.retain(|shard, _| {
            !self.worker_expiries.is_empty() && !reply.own_shards.contains(shard)
        });
        let live_watches = self
            .shard_owners
            .iter()
            .filter(|(_, (watcher, until))| *until > now && watcher == node);
        let vacated =
            live_watches.map(|(shard, _)| *shard).filter(|shard| !reply.own_shards.contains(shard));
        if !reply.peers.is_empty() && !self.is_paused {
            self.vacated_shards.extend(vacated.map(|shard| (shard, expiry)));
        }
    }

    /// Checks the store's view of every job, and its counts.
    pub(super) async fn check_store_state(&mut self, rig: &StoreHarness) {
        for lock in self.locks.values_mut() {
            let ids: BTreeSet<JobId> = lock.jobs.iter().map(|job| job.id.clone()).collect();
            let mut views = Vec::with_capacity(ids.len());
            for id in ids {
                let view = rig.backend().job_view(id.clone()).await.unwrap();
                lock.adopt_uncertain_ending(&id, view.as_ref());
                views.push((id, view));
            }
            // A resolved job moves the jobs behind it, so all views are compared afterwards.
            for (id, view) in views {
                assert_eq!(view, lock.expected_view(&id));
            }
        }
        for key in self.locks.keys() {
            assert_eq!(rig.memory_backend().usage_counts(key), self.pending_usage(key));
        }
    }
}

/// Applies the operations with all checks after each, then drains the store.
async fn run_operations(
    one_shard: bool,
    modes: &[LockMode],
    operations: &[ClientOperation],
    crashed: &[bool],
) {
    let rig = StoreHarness::memory();
    let mut clients = SimulatedClients::new(one_shard, modes);
    let mut model = StoreModel::new(&clients.keys);
    for operation in operations {
        let Some(call) = clients.resolve_operation(&rig, operation).await else {
            continue;
        };
        let reply = call.clone().run_on(&rig).await;
        model.check_reply(&call, &reply);
        clients.observe_call(&call, &reply);
        model.check_store_state(&rig).await;
    }
    drain_model(&rig, &mut clients, &mut model, crashed).await;
}

proptest! {
    #![proptest_config(proptest_config(400))]

    #[test]
    fn random_client_operations_match_model(
        one_shard: bool,
        token_modes in token_modes(),
        operations in operation_sequences(60),
        crashed in prop::collection::vec(prop::bool::weighted(0.3), 12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_operations(one_shard, &token_modes, &operations, &crashed));
    }
}
