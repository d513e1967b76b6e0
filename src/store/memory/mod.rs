//! The embedded store: the steps of `lua/*.lua` on data of this process.
//!
//! A step locks its shard, reads the clock once, does what the script does, and unlocks; then its
//! messages go out. It never waits, so the future it returns is ready at once. The scripts are the
//! specification: [`visit`] is `line.lua`, [`pending`] is `jobs.lua`, [`ended`] is `kept.lua`, [`locks`], [`enqueue`] and [`runs`] are the scripts
//! about a line, [`listed`] those about jobs wherever they are, [`workers`] what workers say of themselves, [`rate`]
//! those about quotas, [`tasks`] those about queues of tasks, [`due`] the look for what is due; the rest is in [`shard`].
//!
//! Whatever is over is gone at once for every step, and its memory is freed by later steps.

mod backoffs;
mod direct;
mod due;
mod ended;
mod ends;
mod enqueue;
mod facts;
#[cfg(any(test, feature = "fsck"))]
#[path = "../fsck/memory.rs"]
mod fsck;
mod job;
mod line;
mod listed;
mod locks;
mod owned;
mod pending;
#[cfg(test)]
mod picture;
mod post;
mod rate;
mod records;
mod runs;
mod shard;
mod steps;
mod tasks;
mod visit;
mod workers;

#[cfg(test)]
pub(super) use self::picture::{Names, Planted};
#[cfg(any(test, feature = "test-kit"))]
use std::sync::atomic::Ordering;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;

use self::{
    post::Post,
    shard::{Now, Shard},
    visit::Visit,
};
#[cfg(any(test, feature = "fsck"))]
use super::fsck::{FsckFound, FsckPart};
use super::{
    backend::{
        AcquireCommand, AcquireReply, Backend, ChargeCommand, ChargeFuture, CounterName, ReleaseOutcome, JobId, JobState, LockMode,
        NodeId, LeaseRenewal, SettleChargeCommand, QuotaSnapshot, StoreFuture, GrantRefresh, LockToken,
    },
    wakeups::Wakeups,
    rate::check_item_count,
};
use crate::{
    clock::Clock,
    error::Error,
    key::{Key, SHARDS},
};

/// The store of [`Store::memory`](crate::Store::memory).
pub(crate) struct Memory {
    clock: Clock,
    space: Arc<str>,
    /// One for each shard number.
    shards: Vec<Mutex<Shard>>,
    /// Live workers, and when each one's lease ends.
    workers: Mutex<HashMap<NodeId, u64>>,
    /// Live limiters.
    limiters: Mutex<HashMap<NodeId, u64>>,
    paused: AtomicBool,
    queues: tasks::Queues,
    post: Post,
    /// Locks are busy for all but jobs.
    #[cfg(any(test, feature = "test-kit"))]
    pretends_busy: AtomicBool,
}

impl Memory {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            space: uuid::Uuid::new_v4().simple().to_string().into(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            workers: Mutex::default(),
            limiters: Mutex::default(),
            paused: AtomicBool::new(false),
            queues: Mutex::default(),
            post: Post::default(),
            #[cfg(any(test, feature = "test-kit"))]
            pretends_busy: Default::default(),
        }
    }

    /// Runs a step on a shard. The time is read under the lock, so that steps see it in their order.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    fn at<T>(&self, shard: u16, step: impl FnOnce(&mut Shard, Now) -> T) -> T {
        // Shards of keys and of parsed job ids are below their number, which is the length.
        let mut shard = self.shards[usize::from(shard)].lock();
        step(&mut shard, Now::of(self.clock.now_us()))
    }

    /// Runs a step on a line, then sends its messages.
    fn visit<T>(&self, key: &Key, step: impl FnOnce(&mut Visit<'_>) -> T) -> T {
        let mut post = Vec::new();
        let answer = self.at(key.shard(), |shard, now| shard.visit(key, now, &mut post, step));
        self.post.send(post);
        answer
    }

    /// From now on, every lock is busy for those who ask for it: jobs, which claim theirs, run.
    #[cfg(any(test, feature = "test-kit"))]
    pub(crate) fn pretend_busy(&self, busy: bool) {
        self.pretends_busy.store(busy, Ordering::SeqCst);
    }

    /// Taken and given back, so that whatever goes before a free lock has its say.
    #[cfg(any(test, feature = "test-kit"))]
    fn pretended(&self, call: &AcquireCommand, acquired: AcquireReply) -> AcquireReply {
        let AcquireReply::Granted { queue_length: line, .. } = acquired else {
            return acquired;
        };
        // What workers share among them is no resource: those that can't have a permit run nothing.
        if !self.pretends_busy.load(Ordering::SeqCst) || call.key == Key::of_workers() {
            return acquired;
        }
        self.visit(&call.key, |visit| visit.release(&call.token, call.mode));
        AcquireReply::Busy { lease_remaining: Duration::from_secs(1), queue_length: line, seq: 0, has_joined: false }
    }

    /// Locks, jobs, records, counters and due entries, those that are over but not yet swept included.
    #[cfg(test)]
    pub(super) fn stored(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Takes out the counters that are over: as long as they lie there, a clock that is put back would bring them back.
    #[cfg(test)]
    pub(super) fn sweep_counters(&self) {
        let now = Now::of(self.clock.now_us());
        for shard in &self.shards {
            shard.lock().counters.sweep(now.ms + 1, usize::MAX);
        }
    }

    /// Puts jobs among a shard's dead ones, of which nothing else is kept; when each is forgotten, in microseconds.
    #[cfg(test)]
    pub(super) fn fill_graves(&self, shard: u16, times: std::ops::Range<u64>) {
        self.at(shard, |shard_of, now| {
            for until in times {
                let id = JobId::parse(&format!("{shard:02x}{until:032x}")).expect("it is an id");
                shard_of.facts.ended(JobState::Dead, (&id, ""), (until, 0), now);
            }
        });
    }

    /// Those of them that nothing will end by itself: lines with jobs, pending jobs, due entries.
    #[cfg(test)]
    pub(super) fn lasting(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().lasting()).sum()
    }

    /// What is counted: jobs and bytes of the key's shard, bytes of its line.
    #[cfg(test)]
    pub(super) fn counted(&self, key: &Key) -> [u64; 3] {
        self.at(key.shard(), |shard, _| shard.counted(key))
    }

    fn cancel_job(&self, id: &JobId, began_us: u64, retention: Duration) -> Option<JobState> {
        let key = self.at(id.shard(), |shard, now| shard.lock_of(id, now))?;
        self.visit(&key, |visit| visit.cancel(id, began_us, retention))
    }
}

impl Backend for Memory {
    fn identities(&self) -> Vec<Arc<str>> {
        vec![Arc::clone(&self.space)]
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.space))))
    }

    fn estimated_now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn has_manual_clock(&self) -> bool {
        self.clock.is_by_hand()
    }

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        let acquired = self.visit(&call.key, |visit| visit.acquire(&call));
        #[cfg(any(test, feature = "test-kit"))]
        let acquired = self.pretended(&call, acquired);
        done(acquired)
    }

    fn release(&self, key: Key, me: LockToken, mode: LockMode) -> StoreFuture<'_, ReleaseOutcome> {
        done(self.visit(&key, |visit| visit.release(&me, mode)))
    }

    fn send_release(&self, key: Key, me: LockToken, mode: LockMode) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        Some(done(self.visit(&key, |visit| visit.release(&me, mode))))
    }

    fn release_and_reacquire(&self, me: LockToken, mode: LockMode, next: AcquireCommand) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        done(self.visit(&next.key, |visit| {
            let came = if next.record_name.is_none() { next.resume_seq } else { 0 };
            (visit.release_before(&me, mode, came), visit.acquire(&next))
        }))
    }

    fn refresh_grant(&self, key: Key, me: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        done(self.visit(&key, |visit| visit.still(&me)))
    }

    fn downgrade(&self, key: Key, me: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        done(self.visit(&key, |visit| visit.downgrade(&me, lease)))
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        let one = |item: &LeaseRenewal| self.at(item.key.shard(), |shard, now| shard.renew(item, now));
        done(items.iter().map(one).collect())
    }

    fn advance_fence(&self, key: Key, me: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        done(self.at(key.shard(), |shard, now| shard.raise_fence(&key, &me, fence, now)))
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        let charge =
            |call: &ChargeCommand| self.at(call.tag.shard(), |shard, now| shard.charge(call, now));
        ChargeFuture::Boxed(told(call.validate().map(|()| match call.merge_duplicates() {
            None => charge(&call),
            Some((merged, places)) => charge(&merged).expand_duplicates(&places),
        })))
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        let settle = |()| self.at(call.tag.shard(), |shard, now| shard.settle_charge(&call, now));
        told(call.validate().map(settle))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        let reset = |()| self.at(tag.shard(), |shard, _| shard.reset_charges(&tag, &counters));
        told(check_item_count(counters.len()).map(reset))
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        let now = Now::of(self.clock.now_us());
        done(live(&mut self.limiters.lock(), node, lease, now).1)
    }

    /// Ignores `mend`: data of this process can't be broken by hand, so a finding is a fault of this store.
    #[cfg(any(test, feature = "fsck"))]
    fn fsck(&self, part: FsckPart, _mend: bool) -> StoreFuture<'_, FsckFound> {
        // Nobody has mistyped its name.
        let mut found = FsckFound { scans: true, owned: 1, ..FsckFound::default() };
        if let FsckPart::Shard { shard: number, .. } = part {
            let look = |shard: &mut Shard, now| shard.fsck(number, now);
            (found.looked, found.findings) = self.at(number, look);
        }
        done(found)
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        done(())
    }

    fn subscribe(&self, node: NodeId, hints: &Arc<Wakeups>) -> Option<BoxFuture<'static, ()>> {
        self.post.listen(&node, hints);
        None
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // None of the data: keys and requests are the users'.
        f.debug_struct("Memory").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// `living.lua`: whether one has come, left or died, and how many there are.
fn live(nodes: &mut HashMap<NodeId, u64>, node: NodeId, lease: Duration, now: Now) -> (bool, usize) {
    let mut gone = false;
    nodes.retain(|other, end| {
        let lives = *end > now.ms;
        gone |= !lives && *other != node;
        lives
    });
    let changed = if lease.is_zero() {
        nodes.remove(&node).is_some()
    } else {
        nodes.insert(node, now.after(lease)).is_none()
    };
    (gone || changed, nodes.len())
}

fn done<T: Send + 'static>(answer: T) -> StoreFuture<'static, T> {
    told(Ok(answer))
}

fn told<T: Send + 'static>(outcome: Result<T, Error>) -> StoreFuture<'static, T> {
    Box::pin(ready(outcome))
}
