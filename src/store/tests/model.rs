//! The embedded store against a plain model: what clients are told must be possible, and fair.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::{
    calls::{Call, Reply},
    clients::Clients,
    drain::drain,
    moves::{Move, cases, modes, moves},
    rig::{LONG, Rig},
    truth::Truth,
};
use crate::{
    Key,
    clock::ceil_millis,
    key::SHARD_COUNT,
    store::{
        ChargeItem, QuotaRule,
        backend::{
            ChargeCommand, ChargeOutcome, Heartbeat, JobId, LockMode, NodeId, SHARD_VACANCY_GRACE,
        },
    },
};

/// The model: each lock, and what is not about one.
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) locks: HashMap<Key, Truth>,
    /// By policy, subject and tag: spent, and the end.
    windows: HashMap<(Arc<str>, Key, Key), (u64, u64)>,
    watch: HashMap<u16, (NodeId, u64)>,
    /// Shards that were given up, and until when somebody is expected.
    left: HashMap<u16, u64>,
    pub(super) workers: HashMap<NodeId, u64>,
    paused: bool,
}

impl Model {
    pub(super) fn new(keys: &[Key]) -> Self {
        let locks = keys.iter().map(|key| (key.clone(), Truth::default()));
        let mut model = Self {
            // As the rig's clock.
            now: 1_700_000_000_000,
            locks: locks.collect(),
            windows: HashMap::new(),
            watch: HashMap::new(),
            left: HashMap::new(),
            workers: HashMap::new(),
            paused: false,
        };
        model.pass(Duration::ZERO);
        model
    }

    fn after(&self, time: Duration) -> u64 {
        self.now + ceil_millis(time)
    }

    fn lock(&mut self, key: &Key) -> &mut Truth {
        self.locks.get_mut(key).expect("a lock of the model")
    }

    fn lock_of(&mut self, id: &JobId) -> Option<&mut Truth> {
        self.locks.values_mut().find(|lock| lock.view(id).is_some())
    }

    pub(super) fn check(&mut self, call: &Call, reply: &Reply) {
        match (call, reply) {
            (Call::Acquire(c), Reply::Acquired(r)) => self.lock(&c.key).acquired(c, r),
            (Call::Release(key, me, mode), Reply::GaveBack(r)) => {
                self.lock(key).released(me, *mode, *r);
            }
            (Call::HandOn(me, mode, next), Reply::HandedOn(r, then)) => {
                let lock = self.lock(&next.key);
                lock.released(me, *mode, *r);
                lock.acquired(next, then);
            }
            (Call::Still(key, me), Reply::Still(r)) => self.lock(key).told_again(me, *r),
            (Call::Downgrade(key, me, lease), Reply::Downgraded(r)) => {
                self.lock(key).downgraded(me, *lease, *r);
            }
            (Call::Renew(c), Reply::Renewed(r)) => {
                self.lock(&c.key).renewed(&c.token, c.mode, c.lease, r == &[true]);
            }
            (Call::Enqueue(c), Reply::Enqueued(r)) => {
                let [jobs, bytes, _] = self.counted(&c.key);
                self.lock(&c.key).enqueued(c, r, (jobs, bytes));
            }
            (Call::Claim(c), Reply::Claimed(r)) => self.lock(&c.key).claimed(c, r),
            (Call::Settle(c), Reply::Settled(r)) => self.lock(&c.key).settled(c, r),
            (Call::Unclaim(key, me, id), Reply::Unclaimed(r)) => {
                self.lock(key).unclaimed(me, id.as_ref(), *r);
            }
            (Call::Redrive(id), Reply::Redriven(r)) => match self.lock_of(id) {
                Some(lock) => lock.redriven(id, *r),
                None => assert_eq!(*r, None),
            },
            (Call::Purge(id), Reply::Purged(r)) => match self.lock_of(id) {
                Some(lock) => lock.purged(id, *r),
                None => assert!(!r),
            },
            (Call::Cancel(id), Reply::Cancelled(r)) => match self.lock_of(id) {
                Some(lock) => lock.cancelled(id, LONG, *r),
                None => assert_eq!(*r, None),
            },
            (Call::Charge(c), Reply::Charged(r)) => self.charged(c, r),
            (Call::Beat(node, lease), Reply::Beaten(r)) => self.beaten(node, *lease, r),
            (Call::Pause(paused), Reply::Paused) => {
                self.paused = *paused;
                if *paused {
                    self.watch.clear();
                    self.left.clear();
                }
            }
            (Call::Due(shard), Reply::Looked(_)) => {
                let locks = self.locks.iter_mut().filter(|(key, _)| key.shard() == *shard);
                locks.for_each(|(_, lock)| lock.looked());
            }
            (Call::Pass(time), Reply::Passed) => self.pass(*time),
            other => panic!("no reply to that call: {other:?}"),
        }
        self.share();
    }

    fn pass(&mut self, time: Duration) {
        self.now += u64::try_from(time.as_millis()).unwrap();
        self.share();
    }

    /// What locks of a shard have in common.
    fn share(&mut self) {
        let mut fences = HashMap::<u16, u64>::new();
        for (key, lock) in &self.locks {
            let fence = fences.entry(key.shard()).or_default();
            *fence = lock.fence.max(*fence);
        }
        for (key, lock) in &mut self.locks {
            let watch = self.watch.get(&key.shard());
            let live = watch.filter(|(_, until)| *until > self.now);
            lock.watched = live.is_some();
            lock.left = self.left.get(&key.shard()).is_some_and(|until| *until > self.now);
            // Given up: what was offered just before is still offered.
            let ended = lock.watched_until.min(self.now);
            lock.watched_until = live.map_or(ended, |(_, until)| *until);
            lock.fence = fences[&key.shard()];
            lock.now = self.now;
            lock.look();
        }
    }

    /// Jobs and bytes of the key's shard, bytes of its line.
    fn counted(&self, key: &Key) -> [u64; 3] {
        let mut sums = [0; 3];
        for (other, lock) in &self.locks {
            for job in lock.pending().filter(|_| other.shard() == key.shard()) {
                sums[0] += 1;
                sums[1] += job.bytes;
                let stands = other == key && job.late.is_none();
                sums[2] += if stands { job.bytes } else { 0 };
            }
        }
        sums
    }

    /// All or none, and never more than the limit; a refused call begins no window. A window is cut to that
    /// of whoever asks.
    fn charged(&mut self, call: &ChargeCommand, reply: &ChargeOutcome) {
        let name =
            |item: &ChargeItem| (Arc::clone(&item.policy), item.subject.clone(), call.tag.clone());
        let mut after = self.windows.clone();
        after.retain(|_, (_, end)| *end > self.now);
        for item in &*call.items {
            // Asked for by two rules, a counter has the longer window.
            let same = call.items.iter().filter(|other| name(other) == name(item));
            let longest = same.map(|other| other.rule.window()).max().unwrap_or_default();
            let whole = self.after(longest);
            let window = after.entry(name(item)).or_insert((0, whole));
            window.1 = window.1.min(whole);
        }
        self.windows.clone_from(&after);
        self.windows.retain(|_, (spent, _)| *spent > 0);
        call.items.iter().for_each(|i| after.entry(name(i)).or_default().0 += i.cost);
        let limit = |item: &ChargeItem| match item.rule {
            QuotaRule::Fixed { limit, .. } => limit,
            other => panic!("none of these: {other:?}"),
        };
        // What asks for nothing refuses nothing.
        let asks = |item: &&ChargeItem| {
            call.items.iter().any(|other| name(other) == name(item) && other.cost > 0)
        };
        let fits = call.items.iter().filter(asks).all(|i| after[&name(i)].0 <= limit(i));
        assert_eq!(reply.admitted, u32::from(fits));
        if fits {
            after.retain(|_, (spent, _)| *spent > 0);
            self.windows = after;
        }
        for (item, state) in call.items.iter().zip(&reply.snapshots) {
            let all = call.items.iter().filter(|other| name(other) == name(item));
            let limit = all.map(limit).min().unwrap_or(0);
            let window = self.windows.get(&name(item));
            assert_eq!(state.remaining, limit.saturating_sub(window.map_or(0, |w| w.0)));
            if let Some((_, end)) = window {
                assert_eq!(state.reset_after, Duration::from_millis(end - self.now));
            }
        }
    }

    fn beaten(&mut self, node: &NodeId, lease: Duration, reply: &Heartbeat) {
        let now = self.now;
        self.workers.retain(|other, until| *until > now && other != node);
        let mut others = Vec::from_iter(self.workers.keys().cloned());
        others.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        assert_eq!((&reply.peers, reply.is_paused), (&others, self.paused));
        let mut most = 0;
        if !lease.is_zero() {
            self.workers.insert(node.clone(), self.after(lease));
            most = usize::from(SHARD_COUNT).div_ceil(self.workers.len());
        }
        self.leave_to_others(node, reply);
        self.watch.retain(|_, (watcher, until)| *until > now && watcher != node);
        let room = usize::from(SHARD_COUNT) - self.watch.len();
        assert_eq!(reply.own_shards.len(), if self.paused { 0 } else { most.min(room) });
        for shard in &reply.own_shards {
            let watch = (node.clone(), self.after(lease));
            let other = self.watch.insert(*shard, watch);
            assert!(other.is_none(), "a shard has two watchers");
        }
        for (key, lock) in &self.locks {
            if reply.own_shards.contains(&key.shard()) && lock.pending().next().is_some() {
                assert!(reply.busy_shards.contains(&key.shard()), "there are jobs in it");
            }
        }
    }

    /// What this worker had and has no more is left to the others, if there are any.
    fn leave_to_others(&mut self, node: &NodeId, reply: &Heartbeat) {
        let (now, end) = (self.now, self.after(SHARD_VACANCY_GRACE));
        self.left.retain(|shard, _| !self.workers.is_empty() && !reply.own_shards.contains(shard));
        let live =
            self.watch.iter().filter(|(_, (watcher, until))| *until > now && watcher == node);
        let given = live.map(|(shard, _)| *shard).filter(|shard| !reply.own_shards.contains(shard));
        if !reply.peers.is_empty() && !self.paused {
            self.left.extend(given.map(|shard| (shard, end)));
        }
    }

    /// What the store shows of every job, and what it counts.
    pub(super) async fn look(&mut self, rig: &Rig) {
        for lock in self.locks.values_mut() {
            let ids: BTreeSet<JobId> = lock.jobs.iter().map(|job| job.id.clone()).collect();
            let mut all = Vec::with_capacity(ids.len());
            for id in ids {
                let told = rig.backend().job_view(id.clone()).await.unwrap();
                lock.learns(&id, told.as_ref());
                all.push((id, told));
            }
            // What is learned of one job moves those behind it.
            for (id, told) in all {
                assert_eq!(told, lock.view(&id));
            }
        }
        for key in self.locks.keys() {
            assert_eq!(rig.embedded().usage_counts(key), self.counted(key));
        }
    }
}

/// Makes the moves, with everything checked after each; then lets everybody come to an end.
async fn play(one_shard: bool, modes: &[LockMode], made: &[Move], crashed: &[bool]) {
    let rig = Rig::memory();
    let mut clients = Clients::new(one_shard, modes);
    let mut model = Model::new(&clients.keys);
    for made in made {
        let Some(call) = clients.call(&rig, made).await else {
            continue;
        };
        let reply = call.clone().on(&rig).await;
        model.check(&call, &reply);
        clients.hear(&call, &reply);
        model.look(&rig).await;
    }
    drain(&rig, &mut clients, &mut model, crashed).await;
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn whatever_clients_do_the_store_is_right(
        one_shard: bool,
        modes in modes(),
        made in moves(60),
        crashed in prop::collection::vec(prop::bool::weighted(0.3), 12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(one_shard, &modes, &made, &crashed));
    }
}
