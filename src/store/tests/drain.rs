//! The end of a random sequence: nobody does anything new, and every message is lost. Those who live go
//! on as real clients do, by their timers alone: each is served, each job ends, and nothing is left.

use std::{collections::BTreeMap, time::Duration};

use super::{
    calls::{Call, Reply},
    clients::{Clients, Waiter},
    model::Model,
    moves::time,
    rig::{LONG, Rig, done, fixed, settled, together, visit},
};
use crate::{
    Key,
    store::backend::{
        AcquireReply, ClaimCommand, ClaimOutcome, LockMode, LockToken, NodeId, OFFER_TIMEOUT,
        SettleOutcome,
    },
};

/// How soon those who live are served: the lease of a dead holder is over, dead places have cost an accept
/// window each, and jobs nobody takes one.
const LIVE: Duration = Duration::from_secs(12);

/// How soon all jobs have run, once the shards of dead workers are free: as above, and their backoffs.
const JOBS: Duration = Duration::from_secs(18);

/// As in the lock's line: the longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// As the worker's: life of a watch, time between two signs of life.
const WATCH: Duration = Duration::from_secs(15);
const BEAT: Duration = Duration::from_secs(5);

/// How long a lock is held, by whomever.
const WORK: Duration = Duration::from_millis(70);

/// What somebody does next.
enum Next {
    Look(usize),
    Release(Key, LockToken, LockMode),
    Beat,
    Due(u16),
    Visit(Key),
    Settle(ClaimCommand),
}

pub(super) struct Drain<'a> {
    rig: &'a Rig,
    clients: &'a mut Clients,
    model: &'a mut Model,
    worker: NodeId,
    mine: Vec<u16>,
    agenda: BTreeMap<(Duration, usize), Next>,
    planned: usize,
    now: Duration,
}

/// `crashed`: whose processes have died, of the tokens that may wait.
pub(super) async fn drain(rig: &Rig, clients: &mut Clients, model: &mut Model, crashed: &[bool]) {
    let worker = NodeId::new();
    let mut drain = Drain {
        rig,
        clients,
        model,
        worker,
        mine: Vec::new(),
        agenda: BTreeMap::new(),
        planned: 0,
        now: Duration::ZERO,
    };
    drain.step(Call::Pause(false)).await;
    drain.begin(crashed);
    let watch_ends = drain.watch_ends();
    loop {
        let (live, jobs) = drain.waiting();
        match (live, jobs) {
            (0, 0) => break,
            (0, _) => assert!(drain.now < watch_ends + JOBS, "{jobs} jobs are not run"),
            _ => assert!(drain.now < LIVE, "{live} waiters are not served"),
        }
        drain.go_on().await;
    }
    drain.leave_nothing().await;
}

impl Drain<'_> {
    fn begin(&mut self, crashed: &[bool]) {
        self.plan(Duration::ZERO, Next::Beat);
        for (who, crashed) in crashed.iter().enumerate() {
            let waiter = self.clients.waiters[who].clone();
            let mode = waiter.held();
            let Waiter { key, me, .. } = waiter;
            let lock = &self.model.locks[&key];
            if *crashed {
                continue;
            }
            if lock.is_held_by(&me) {
                self.plan(WORK, Next::Release(key, me, mode));
            } else if lock.waits(&me) {
                self.plan(LOOK, Next::Look(who));
            }
        }
    }

    fn plan(&mut self, after: Duration, next: Next) {
        self.planned += 1;
        self.agenda.insert((self.now + after, self.planned), next);
    }

    /// Living waiters, and whether jobs wait.
    fn waiting(&self) -> (usize, usize) {
        let looks = |next: &&Next| matches!(next, Next::Look(_) | Next::Release(..));
        let jobs = self.model.locks.values().map(|lock| lock.pending().count());
        (self.agenda.values().filter(looks).count(), jobs.sum())
    }

    /// When the last shard that a dead worker watches is free.
    fn watch_ends(&self) -> Duration {
        let locks = self.model.locks.values().map(|lock| lock.watched_until);
        let others = self.model.workers.values().copied();
        let ends = locks.chain(others).max().unwrap_or(0);
        Duration::from_millis(ends.saturating_sub(self.model.now))
    }

    async fn step(&mut self, call: Call) -> Reply {
        let reply = call.clone().on(self.rig).await;
        self.model.check(&call, &reply);
        self.clients.hear(&call, &reply);
        reply
    }

    async fn go_on(&mut self) {
        let Some(((at, _), next)) = self.agenda.pop_first() else {
            panic!("nobody does anything any more")
        };
        let pass = at - self.now;
        self.step(Call::Pass(pass)).await;
        self.now = at;
        match next {
            Next::Look(who) => self.look(who).await,
            Next::Release(key, me, mode) => {
                self.step(Call::Release(key, me, mode)).await;
            }
            Next::Beat => self.beat().await,
            Next::Due(shard) => self.due(shard).await,
            Next::Visit(key) => self.visit(key).await,
            Next::Settle(run) => self.settle(run).await,
        }
    }

    async fn look(&mut self, who: usize) {
        let Waiter { key, me, mode, .. } = self.clients.waiters[who].clone();
        let call = self.clients.waiters[who].wait(LONG, time(5));
        match self.step(Call::Acquire(call)).await {
            Reply::Acquired(AcquireReply::Busy { lease_remaining: left, .. }) => {
                self.plan(left.min(LOOK), Next::Look(who));
            }
            _ => self.plan(WORK, Next::Release(key, me, mode)),
        }
    }

    async fn beat(&mut self) {
        let beat = Call::Beat(self.worker.clone(), WATCH);
        if let Reply::Beaten(beat) = self.step(beat).await {
            self.mine = beat.own_shards;
        }
        let mut shards: Vec<u16> = self.clients.keys.iter().map(Key::shard).collect();
        shards.dedup();
        shards.retain(|shard| self.mine.contains(shard));
        for shard in shards {
            self.plan(Duration::ZERO, Next::Due(shard));
        }
        self.plan(BEAT, Next::Beat);
    }

    /// One visit or run at a time is under way for a lock.
    fn is_visited(&self, name: &Key) -> bool {
        self.agenda.values().any(|next| match next {
            Next::Visit(key) => key == name,
            Next::Settle(run) => run.key == *name,
            _ => false,
        })
    }

    async fn due(&mut self, shard: u16) {
        let Reply::Looked(due) = self.step(Call::Due(shard)).await else {
            return;
        };
        for name in due.names {
            if !self.is_visited(&name) {
                self.plan(Duration::ZERO, Next::Visit(name));
            }
        }
        if let Some(next) = due.next {
            self.plan(next, Next::Due(shard));
        }
    }

    async fn visit(&mut self, key: Key) {
        let shard = key.shard();
        for _ in 0..8 {
            let head = self.rig.heads(std::slice::from_ref(&key)).await.remove(0);
            let Some(id) = head else { break };
            let claim = visit(&key, &id, &LockToken::new(&self.worker));
            match self.step(Call::Claim(claim.clone())).await {
                Reply::Claimed(ClaimOutcome::Claimed(_)) => {
                    return self.plan(WORK, Next::Settle(claim));
                }
                Reply::Claimed(ClaimOutcome::Busy(wait) | ClaimOutcome::NotDue(wait)) => {
                    return self.plan(wait, Next::Due(shard));
                }
                _ => {}
            }
        }
        self.plan(OFFER_TIMEOUT, Next::Due(shard));
    }

    async fn settle(&mut self, run: ClaimCommand) {
        let ClaimCommand { key, id, token: me, .. } = run;
        let verdict = settled(&key, &id, &me, done());
        let stands = Reply::Settled(SettleOutcome::Settled(None));
        assert_eq!(self.step(Call::Settle(verdict)).await, stands);
        self.plan(OFFER_TIMEOUT, Next::Due(key.shard()));
    }

    /// What is left has an end; after it there is nothing.
    async fn leave_nothing(&mut self) {
        let store = self.rig.embedded();
        assert_eq!(store.persistent_entry_count(), 0, "things without an end");
        self.step(Call::Pass(LONG * 200)).await;
        for key in self.clients.keys.clone() {
            for _ in 0..64 {
                self.rig.due(key.shard(), 1).await;
                let nothing = fixed("sweep", &key, (0, LONG), 0);
                self.rig.charge(together(vec![nothing])).await;
            }
        }
        assert_eq!(store.stored_value_count(), 0, "nothing has an end any more");
    }
}
