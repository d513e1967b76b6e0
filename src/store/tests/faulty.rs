//! The embedded store behind a line that fails as it is told, for tests with tokio's clock stopped.

mod faults;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};

use self::faults::on_its_way;
pub(crate) use self::faults::{Fault, Faults};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        Store,
        backend::{
            Acquire, Acquired, Backend, Beat, Began, Charge, Charging, Claim, Claimed, Counter,
            Direct, Due, Enqueue, Enqueued, GaveBack, JobId, JobState, JobView, Jobs, Listed,
            Listing, Mode, Node, PendingMark, Renewal, Running, Settle, SettleCharge, SettledRun,
            State, Step, Still, Tally, Token,
        },
        hints::{Hint, Hints},
        memory::Memory,
        tasks::{
            DeadPage, Push, PushedAs, QueueStats, RunToken, TaskId, TaskState, TaskView, Tasks,
            Turn, Turned, Walk, Walked,
        },
    },
};

/// An embedded store, and what makes it fail.
pub(crate) fn faulty() -> (Store, Faults) {
    faulty_with_clock(Clock::system())
}

/// As [`faulty`], with a clock of its own.
pub(crate) fn faulty_with_clock(clock: Clock) -> (Store, Faults) {
    let faults = Faults::default();
    let backend = Faulty { memory: Arc::new(Memory::new(clock)), faults: faults.clone() };
    (Store::on(Arc::new(backend)), faults)
}

struct Faulty {
    memory: Arc<Memory>,
    faults: Faults,
}

impl Faulty {
    fn call<T: Send + 'static>(
        &self,
        step: &'static str,
        run: impl FnOnce(&Memory) -> Step<'_, T> + Clone + Send + 'static,
    ) -> Step<'_, T> {
        Box::pin(async move {
            let fault = self.faults.next(step);
            match fault {
                Some(Fault::Away) => return Err(Error::new(ErrorKind::Unavailable, step)),
                Some(Fault::Refused) => return Err(Error::new(ErrorKind::Config, step)),
                Some(Fault::Late(time)) => tokio::time::sleep(time).await,
                Some(Fault::Stray(time)) => {
                    self.run_after(time, run);
                    return on_its_way(fault, step, Err(Error::new(ErrorKind::Timeout, step)))
                        .await;
                }
                Some(Fault::Copy(time)) => {
                    self.run_after(time, run.clone());
                    self.faults.leave_a_way();
                }
                _ => {}
            }
            let answer = run(&self.memory).await;
            on_its_way(fault, step, answer).await
        })
    }

    /// What is on its way still, and is heard of by nobody.
    fn run_after<T: Send + 'static>(
        &self,
        time: Duration,
        run: impl FnOnce(&Memory) -> Step<'_, T> + Send + 'static,
    ) {
        let memory = Arc::clone(&self.memory);
        crate::store::spawn(async move {
            tokio::time::sleep(time).await;
            drop(run(&memory).await);
        });
    }
}

impl Backend for Faulty {
    fn spaces(&self) -> Vec<Arc<str>> {
        self.memory.spaces()
    }

    fn identify(&self) -> Step<'_, Arc<str>> {
        self.memory.identify()
    }

    fn now_us(&self) -> u64 {
        self.memory.now_us()
    }

    fn is_by_hand(&self) -> bool {
        self.memory.is_by_hand()
    }

    fn silences(&self) -> u64 {
        self.faults.ways_left()
    }

    fn acquire(&self, call: Acquire) -> Step<'_, Acquired> {
        self.call("acquire", |memory| memory.acquire(call))
    }

    /// One call for all of them is made only where it is to fail.
    fn acquire_all(&self, calls: &[Acquire]) -> Step<'_, Option<Vec<Acquired>>> {
        if self.faults.left("acquire_all") == 0 {
            self.faults.next("acquire_all");
            return self.memory.acquire_all(calls);
        }
        let calls = calls.to_vec();
        self.call("acquire_all", |memory| {
            let all = join_all(calls.into_iter().map(|call| memory.acquire(call)));
            Box::pin(async { all.await.into_iter().collect::<Result<_, _>>().map(Some) })
        })
    }

    fn release(&self, key: Key, me: Token, mode: Mode) -> Step<'_, GaveBack> {
        self.call("release", move |memory| memory.release(key, me, mode))
    }

    fn send_release(&self, key: Key, me: Token, mode: Mode) -> Option<Step<'static, GaveBack>> {
        let fault = self.faults.next("release");
        if matches!(fault, Some(Fault::Away)) {
            return Some(Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "release")) }));
        }
        let answer = self.memory.send_release(key, me, mode)?;
        Some(Box::pin(async move { on_its_way(fault, "release", answer.await).await }))
    }

    fn pass(&self, me: Token, mode: Mode, next: Acquire) -> Step<'_, (GaveBack, Acquired)> {
        self.call("pass", move |memory| memory.pass(me, mode, next))
    }

    fn still(&self, key: Key, me: Token) -> Step<'_, Option<Still>> {
        self.call("still", move |memory| memory.still(key, me))
    }

    fn downgrade(&self, key: Key, me: Token, lease: Duration) -> Step<'_, bool> {
        self.call("downgrade", move |memory| memory.downgrade(key, me, lease))
    }

    fn renew(&self, items: Vec<Renewal>) -> Step<'_, Vec<bool>> {
        self.call("renew", |memory| memory.renew(items))
    }

    fn replicated(&self, shard: u16, wanted: u32, since: u64) -> Step<'_, u32> {
        self.call("replicated", move |memory| memory.replicated(shard, wanted, since))
    }

    fn raise_fence(&self, key: Key, me: Token, fence: u64) -> Step<'_, bool> {
        self.call("raise_fence", move |memory| memory.raise_fence(key, me, fence))
    }

    fn charge(&self, call: Charge) -> Charging<'_> {
        Charging::Boxed(self.call("charge", |memory| Box::pin(memory.charge(call))))
    }

    fn settle_charge(&self, call: SettleCharge) -> Step<'_, Vec<State>> {
        self.call("settle_charge", |memory| memory.settle_charge(call))
    }

    fn reset_charges(&self, tag: Key, counters: Vec<Counter>) -> Step<'_, ()> {
        self.call("reset_charges", |memory| memory.reset_charges(tag, counters))
    }

    fn limiters(&self, node: Node, lease: Duration) -> Step<'_, usize> {
        self.call("limiters", move |memory| memory.limiters(node, lease))
    }

    fn ping(&self) -> Step<'_, ()> {
        self.call("ping", Memory::ping)
    }

    fn listen(&self, node: Node, hints: &Arc<Hints>) -> Option<BoxFuture<'static, ()>> {
        self.memory.listen(node, hints)
    }
}

impl Jobs for Faulty {
    fn enqueue(&self, call: Enqueue) -> Step<'_, Enqueued> {
        self.call("enqueue", |memory| memory.enqueue(call))
    }

    fn begin_direct(&self, call: Direct) -> Step<'_, Began> {
        self.call("begin_direct", |memory| memory.begin_direct(call))
    }

    fn end_direct(&self, call: Direct, response: Option<Bytes>) -> Step<'_, bool> {
        self.call("end_direct", |memory| memory.end_direct(call, response))
    }

    fn renew_direct(&self, call: Direct) -> Step<'_, bool> {
        self.call("renew_direct", |memory| memory.renew_direct(call))
    }

    fn bury_direct(&self, call: Direct, reason: &'static str) -> Step<'_, bool> {
        self.call("bury_direct", move |memory| memory.bury_direct(call, reason))
    }

    fn claim(&self, call: Claim) -> Step<'_, Claimed> {
        self.call("claim", |memory| memory.claim(call))
    }

    fn settle(&self, call: Settle) -> Step<'_, SettledRun> {
        self.call("settle", |memory| memory.settle(call))
    }

    fn cancel(&self, id: JobId, began_us: u64, retention: Duration) -> Step<'_, Option<JobState>> {
        self.call("cancel", move |memory| memory.cancel(id, began_us, retention))
    }

    fn job(&self, id: JobId) -> Step<'_, Option<JobView>> {
        self.call("job", |memory| memory.job(id))
    }

    fn running(&self, id: JobId) -> Step<'_, Option<Running>> {
        self.call("running", |memory| memory.running(id))
    }

    fn envelope(&self, id: JobId) -> Step<'_, Option<Bytes>> {
        self.call("envelope", |memory| memory.envelope(id))
    }

    fn clock(&self) -> Step<'_, u64> {
        self.call("clock", Memory::clock)
    }

    fn heads(&self, keys: Vec<Key>) -> Step<'_, Vec<Option<JobId>>> {
        self.call("heads", |memory| memory.heads(keys))
    }

    fn due(&self, shards: Vec<u16>, most: usize) -> Step<'_, Vec<Due>> {
        self.call("due", move |memory| memory.due(shards, most))
    }

    fn unclaim(&self, key: Key, me: Token, id: Option<JobId>) -> Step<'_, bool> {
        self.call("unclaim", move |memory| memory.unclaim(key, me, id))
    }

    fn beat(&self, node: Node, lease: Duration) -> Step<'_, Beat> {
        self.call("beat", move |memory| memory.beat(node, lease))
    }

    fn tell(&self, node: Node, hint: Hint) -> Step<'_, ()> {
        self.call("tell", move |memory| memory.tell(node, hint))
    }

    fn list(&self, shard: u16, which: Listing, from: u64, most: usize) -> Step<'_, Listed> {
        self.call("list", move |memory| memory.list(shard, which, from, most))
    }

    fn pending(&self, shard: u16, from: PendingMark, most: usize) -> Step<'_, Listed<PendingMark>> {
        self.call("pending", move |memory| memory.pending(shard, from, most))
    }

    fn redrive(&self, id: JobId, ended_us: u64) -> Step<'_, Option<JobState>> {
        self.call("redrive", move |memory| memory.redrive(id, ended_us))
    }

    fn purge(&self, id: JobId, ended_us: u64) -> Step<'_, bool> {
        self.call("purge", move |memory| memory.purge(id, ended_us))
    }

    fn tally(&self, shard: u16) -> Step<'_, Tally> {
        self.call("tally", move |memory| memory.tally(shard))
    }

    fn set_paused(&self, paused: bool) -> Step<'_, ()> {
        self.call("set_paused", move |memory| memory.set_paused(paused))
    }

    fn is_paused(&self) -> Step<'_, bool> {
        self.call("is_paused", |memory| memory.is_paused())
    }
}

impl Tasks for Faulty {
    fn push_task(&self, call: Push) -> Step<'_, PushedAs> {
        self.call("push_task", |memory| memory.push_task(call))
    }

    fn turn(&self, call: Turn) -> Step<'_, Turned> {
        self.call("turn", |memory| memory.turn(call))
    }

    fn still_idle(
        &self,
        queue: Key,
        node: Node,
        worker: Arc<str>,
        longer: Duration,
    ) -> Step<'_, bool> {
        self.call("still_idle", move |memory| memory.still_idle(queue, node, worker, longer))
    }

    fn renew_runs(&self, queue: Key, runs: Vec<RunToken>, lease: Duration) -> Step<'_, Vec<bool>> {
        self.call("renew_runs", move |memory| memory.renew_runs(queue, runs, lease))
    }

    fn task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskView>> {
        self.memory.task(queue, id)
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> Step<'_, Option<Bytes>> {
        self.memory.task_payload(queue, id)
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> Step<'_, Option<TaskState>> {
        self.memory.cancel_task(queue, id)
    }

    fn dead_tasks(&self, queue: Key, after: u64, most: usize) -> Step<'_, DeadPage> {
        self.memory.dead_tasks(queue, after, most)
    }

    fn redrive_task(&self, queue: Key, id: TaskId) -> Step<'_, bool> {
        self.memory.redrive_task(queue, id)
    }

    fn redrive_tasks(
        &self,
        queue: Key,
        most: usize,
        first: Duration,
        spacing: Duration,
    ) -> Step<'_, usize> {
        self.memory.redrive_tasks(queue, most, first, spacing)
    }

    fn purge_letter(&self, queue: Key, id: TaskId) -> Step<'_, bool> {
        self.memory.purge_letter(queue, id)
    }

    fn purge_letters(&self, queue: Key) -> Step<'_, usize> {
        self.memory.purge_letters(queue)
    }

    fn purge_waiting(&self, queue: Key, walk: Option<Walk>, most: usize) -> Step<'_, Walked> {
        self.memory.purge_waiting(queue, walk, most)
    }

    fn pause_tasks(&self, queue: Key, pause: bool) -> Step<'_, ()> {
        self.memory.pause_tasks(queue, pause)
    }

    fn task_stats(&self, queue: Key) -> Step<'_, QueueStats> {
        self.memory.task_stats(queue)
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}
