//! Who is told of what. A hint may come late or never; here the ones that must be sent are awaited.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};

use super::{
    on_every_store,
    rig::{
        LONG, Rig, SHORT, again, ask, deferred, done, key, neighbours, settled, stranger, visit,
        wait,
    },
};
use crate::{
    Key,
    store::{
        backend::{
            AcquireCommand, ClaimCommand, ClaimOutcome, Contenders, EnqueueCommand, JobId,
            JobPolicy, LockMode, LockToken, NodeId, OnFailure, Settlement,
        },
        job_watch::JobWatch,
        wakeups::{JoinListener, WakeupMessage, Wakeups},
    },
};

on_every_store!(
    the_head_is_told_of_its_offer,
    a_moved_offer_is_told_to_the_next,
    the_watcher_is_told_of_an_offered_job,
    the_watcher_is_told_of_an_earlier_due_time,
    the_watcher_is_told_of_a_run_whose_lease_is_shorter_than_a_beat,
    everybody_is_told_of_a_jobs_changes,
    a_worker_is_told_by_another_one,
    the_watcher_is_told_of_a_job_that_is_late,
    the_watcher_is_told_of_delays_and_deadlines_that_come_first,
    a_listener_that_has_gone_is_told_nothing,
    each_holders_process_is_told_once_of_who_joins,
    every_reader_that_is_let_in_is_told,
    everybody_is_told_of_a_worker_that_died,
    the_watcher_is_told_of_a_retry_beside_a_lock_that_is_overdue,
);

/// A process that listens.
struct Ear {
    node: NodeId,
    hints: Arc<Wakeups>,
    work: mpsc::UnboundedReceiver<WakeupMessage>,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl Ear {
    async fn new(rig: &Rig) -> Self {
        let (node, hints) = (NodeId::new(), Arc::new(Wakeups::default()));
        let mut work = hints.subscribe_work();
        rig.listen(&node, &hints).await;
        // Where messages travel, it takes a while until they are subscribed to.
        if rig.resyncs() {
            assert_eq!(timeout(PATIENCE, work.recv()).await.unwrap(), Some(WakeupMessage::Resync));
        }
        Self { node, hints, work }
    }

    /// Who waits for a job for the first time is told to look again once changes are subscribed to.
    async fn hears_of_jobs(&mut self, rig: &Rig) {
        let _bell = self.hints.subscribe_job(&JobId::new(&key()));
        if rig.resyncs() {
            assert_eq!(
                timeout(PATIENCE, self.work.recv()).await.unwrap(),
                Some(WakeupMessage::Resync)
            );
        }
    }

    fn token(&self) -> LockToken {
        LockToken::new(&self.node)
    }

    /// But that workers have come.
    async fn next(&mut self) -> WakeupMessage {
        loop {
            let next = timeout(PATIENCE, self.work.recv()).await;
            match next.expect("no hint came").unwrap() {
                WakeupMessage::WorkersChanged => {}
                hint => return hint,
            }
        }
    }
}

async fn rings(bell: &Notify) {
    timeout(PATIENCE, bell.notified()).await.expect("it was not told");
}

async fn the_head_is_told_of_its_offer(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    let (b, c) = (Ear::new(rig).await, Ear::new(rig).await);
    rig.hold(&key, &holder).await;
    let (to_b, to_c) = (b.token(), c.token());
    rig.join(&key, &to_b).await;
    rig.join(&key, &to_c).await;
    let (bell, other) = (b.hints.subscribe_offers(&to_b), c.hints.subscribe_offers(&to_c));
    rig.release(&key, &holder).await;
    rings(&bell).await;
    assert!(other.notified().now_or_never().is_none(), "it wakes exactly one process");
    rig.hold(&key, &to_b).await;
    rig.release(&key, &to_b).await;
    rings(&other).await;
}

async fn a_moved_offer_is_told_to_the_next(rig: &Rig) {
    let key = key();
    let b = Ear::new(rig).await;
    let (me, dead) = (b.token(), stranger());
    rig.acquire(AcquireCommand { lease: SHORT, ..ask(&key, &stranger()) }).await;
    rig.join(&key, &dead).await;
    rig.join(&key, &me).await;
    rig.pass(SHORT).await;
    let bell = b.hints.subscribe_offers(&me);
    rig.refused(&key, &stranger()).await;
    rig.miss_the_window().await;
    rig.refused(&key, &stranger()).await;
    rings(&bell).await;
    rig.hold(&key, &me).await;
}

async fn the_watcher_is_told_of_an_offered_job(rig: &Rig) {
    let (key, holder) = (key(), stranger());
    let mut worker = Ear::new(rig).await;
    rig.beat(&worker.node, LONG).await;
    let first = rig.put_off(&key).await;
    assert_eq!(worker.next().await, WakeupMessage::JobOffer(key.clone(), first.clone()));
    let run = worker.token();
    rig.start(&key, &first, &run).await;
    rig.finish(&key, &first, &run).await;
    rig.hold(&key, &holder).await;
    let second = rig.put_off(&key).await;
    // Held, with an end: that is when to look, if no release comes before it.
    assert_eq!(worker.next().await, WakeupMessage::ShardDue(key.shard()));
    rig.release(&key, &holder).await;
    assert_eq!(worker.next().await, WakeupMessage::JobOffer(key, second));
}

async fn the_watcher_is_told_of_an_earlier_due_time(rig: &Rig) {
    let (key, holder, run) = (key(), stranger(), stranger());
    let mut worker = Ear::new(rig).await;
    rig.hold(&key, &holder).await;
    let id = rig.put_off(&key).await;
    rig.beat(&worker.node, LONG).await;
    rig.release(&key, &holder).await;
    assert_eq!(worker.next().await, WakeupMessage::JobOffer(key.clone(), id.clone()));
    rig.start(&key, &id, &run).await;
    let later = Settlement::Retry { delay: SHORT, reason: "status 500" };
    rig.settle(settled(&key, &id, &run, later)).await;
    // The lock is taken while the jobs wait: they are due when its lease ends, and sooner once it is
    // given back.
    rig.hold(&key, &holder).await;
    rig.release(&key, &holder).await;
    assert_eq!(worker.next().await, WakeupMessage::ShardDue(key.shard()));
}

/// The first run of a line, and the next one, which begins as the first is settled.
async fn the_watcher_is_told_of_a_run_whose_lease_is_shorter_than_a_beat(rig: &Rig) {
    for (lease, told) in [(Duration::from_millis(9_999), true), (Duration::from_secs(10), false)] {
        let key = Key::custom(&format!("{told}"));
        let mut worker = Ear::new(rig).await;
        rig.beat(&worker.node, LONG).await;
        let (first, second) = (rig.put_off(&key).await, rig.put_off(&key).await);
        assert_eq!(worker.next().await, WakeupMessage::JobOffer(key.clone(), first.clone()));
        let run = worker.token();
        let claimed = rig.claim(ClaimCommand { lease, ..visit(&key, &first, &run) }).await;
        assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
        if told {
            assert_eq!(worker.next().await, WakeupMessage::ShardDue(key.shard()));
        }
        // What comes next is of the release.
        rig.finish(&key, &first, &run).await;
        assert_eq!(worker.next().await, WakeupMessage::JobOffer(key, second));
        rig.beat(&worker.node, Duration::ZERO).await;
    }
}

async fn the_watcher_is_told_of_delays_and_deadlines_that_come_first(rig: &Rig) {
    let (key, elsewhere) = (key(), Key::custom("elsewhere"));
    assert_ne!(key.shard(), elsewhere.shard());
    let mut worker = Ear::new(rig).await;
    rig.beat(&worker.node, LONG).await;
    for delay in [LONG, LONG * 2, SHORT] {
        let mut call = deferred(&key);
        call.policy.delay = delay;
        rig.enqueue(call).await;
    }
    let mut call = deferred(&elsewhere);
    (call.policy.delay, call.policy.deadline) = (LONG, Some(SHORT));
    rig.enqueue(call).await;
    // Of the longer one nobody has to hear. Messages of several shards have no order among them.
    let mut told = Vec::new();
    while told.len() < 4 {
        match worker.next().await {
            WakeupMessage::ShardDue(shard) => told.push(shard),
            hint => panic!("{hint:?}"),
        }
    }
    told.sort_unstable();
    let mut due = [key.shard(), key.shard(), elsewhere.shard(), elsewhere.shard()];
    due.sort_unstable();
    assert_eq!(told, due);
}

async fn everybody_is_told_of_a_jobs_changes(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let mut ears = [Ear::new(rig).await, Ear::new(rig).await];
    for ear in &mut ears {
        ear.hears_of_jobs(rig).await;
    }
    let listen = |id: &JobId| {
        ears.each_ref().map(|ear| {
            let watch = ear.hints.subscribe_job(id);
            (watch.subscribe_changes(), watch)
        })
    };
    let id = rig.put_off(&key).await;
    let other = rig.put_off(&key).await;
    let quiet = listen(&other);
    let told = listen(&id);
    rig.start(&key, &id, &run).await;
    all_hear(told).await;
    let told = listen(&id);
    rig.settle(settled(&key, &id, &run, done())).await;
    all_hear(told).await;
    assert!(quiet.iter().all(|(changes, _)| !changes.has_changed().expect("it is there")));
    drop(quiet);
    let told = listen(&other);
    rig.cancel(&other).await;
    all_hear(told).await;
    let crashed = rig.put_off(&key).await;
    let told = listen(&crashed);
    rig.start(&key, &crashed, &run).await;
    all_hear(told).await;
    rig.release(&key, &run).await;
    let told = listen(&crashed);
    rig.claim(visit(&key, &crashed, &stranger())).await;
    all_hear(told).await;
}

async fn all_hear(listening: [(watch::Receiver<u64>, Arc<JobWatch>); 2]) {
    for (mut changes, _watch) in listening {
        let told = timeout(PATIENCE, changes.changed()).await.expect("it was not told");
        told.expect("it is there");
    }
}

async fn all_ring(bells: [Arc<Notify>; 2]) {
    for bell in bells {
        rings(&bell).await;
    }
}

async fn a_worker_is_told_by_another_one(rig: &Rig) {
    let (key, mut worker) = (key(), Ear::new(rig).await);
    let mut other = Ear::new(rig).await;
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), hint.clone()).await.unwrap();
    assert_eq!(worker.next().await, hint);
    // What is nobody else's business is not passed on.
    rig.backend().send_wakeup(worker.node.clone(), WakeupMessage::Resync).await.unwrap();
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), hint.clone()).await.unwrap();
    assert_eq!(worker.next().await, hint);
    assert!(other.work.try_recv().is_err());
}

async fn the_watcher_is_told_of_a_job_that_is_late(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let call = again(&key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let id = call.id.clone();
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let mut worker = Ear::new(rig).await;
    rig.beat(&worker.node, LONG).await;
    rig.start(&key, &id, &run).await;
    let later = Settlement::Retry { delay: SHORT, reason: "status 500" };
    rig.settle(settled(&key, &id, &run, later)).await;
    assert_eq!(worker.next().await, WakeupMessage::ShardDue(key.shard()));
}

async fn a_listener_that_has_gone_is_told_nothing(rig: &Rig) {
    let (key, holder) = (Key::custom("x"), stranger());
    let ear = Ear::new(rig).await;
    let me = ear.token();
    rig.hold(&key, &holder).await;
    rig.acquire(wait(&key, &me)).await;
    let gone = Arc::downgrade(&ear.hints);
    drop(ear);
    rig.release(&key, &holder).await;
    assert!(gone.upgrade().is_none(), "the store keeps it alive");
    rig.hold(&key, &me).await;
    assert_eq!(rig.job(&JobId::new(&key)).await, None);
}

/// What a process is told of its lines.
struct Told(mpsc::UnboundedSender<(Key, Contenders)>);

impl JoinListener for Told {
    fn on_join(&self, key: &Key, who: Contenders) {
        self.0.send((key.clone(), who)).unwrap();
    }

    fn drain(&self) -> bool {
        true
    }
}

async fn each_holders_process_is_told_once_of_who_joins(rig: &Rig) {
    let key = key();
    let ears = [Ear::new(rig).await, Ear::new(rig).await];
    let mut told = Vec::new();
    for ear in &ears {
        let (tx, rx) = mpsc::unbounded_channel();
        let listens: Arc<dyn JoinListener> = Arc::new(Told(tx));
        ear.hints.set_join_listener(Arc::downgrade(&listens));
        told.push((rx, listens));
        // Readers of one process, each with a hold of its own.
        for _ in 0..3 {
            rig.hold_as(LockMode::Shared, &key, &ear.token()).await;
        }
    }
    let seqs = [rig.join(&key, &stranger()).await, rig.join(&key, &stranger()).await];
    let id = rig.put_off(&key).await;
    for (rx, _) in &mut told {
        for seq in seqs {
            let (of, who) = timeout(PATIENCE, rx.recv()).await.expect("it was not told").unwrap();
            assert_eq!((of, who), (key.clone(), Contenders::from_waiter(seq)));
        }
        // A job joins the line as well.
        let (_, who) = timeout(PATIENCE, rx.recv()).await.expect("it was not told").unwrap();
        assert!(who.job > seqs[1] && who.first == who.job, "{id:?} stands behind them: {who:?}");
        assert!(rx.try_recv().is_err(), "told twice");
    }
}

/// By whichever step made room: nobody else looks at the lock in this case.
async fn every_reader_that_is_let_in_is_told(rig: &Rig) {
    let (key, run) = (key(), stranger());
    let ears = [Ear::new(rig).await, Ear::new(rig).await];
    rig.beat(&NodeId::new(), LONG).await;
    for step in ["release", "downgrade", "leave", "cancel", "settle"] {
        let (holder, before) = (stranger(), stranger());
        let mut job = None;
        match step {
            "release" | "downgrade" => drop(rig.hold(&key, &holder).await),
            "settle" => {
                let id = rig.put_off(&key).await;
                rig.start(&key, &id, &run).await;
                job = Some(id);
            }
            _ => drop(rig.hold_as(LockMode::Shared, &key, &holder).await),
        }
        match step {
            "leave" => drop(rig.join(&key, &before).await),
            "cancel" => job = Some(rig.put_off(&key).await),
            _ => {}
        }
        let readers = ears.each_ref().map(Ear::token);
        for me in &readers {
            rig.join_as(LockMode::Shared, &key, me).await;
        }
        let bells = [
            ears[0].hints.subscribe_offers(&readers[0]),
            ears[1].hints.subscribe_offers(&readers[1]),
        ];
        match (step, &job) {
            ("release", _) => drop(rig.release(&key, &holder).await),
            ("downgrade", _) => assert!(rig.downgrade(&key, &holder, LONG).await),
            ("leave", _) => drop(rig.release(&key, &before).await),
            ("cancel", Some(id)) => drop(rig.cancel(id).await),
            ("settle", Some(id)) => assert!(rig.finish(&key, id, &run).await),
            _ => unreachable!("{step}"),
        }
        all_ring(bells).await;
        for me in readers.iter().chain([&holder]) {
            rig.release_as(LockMode::Shared, &key, me).await;
        }
    }
}

/// Whoever sees it first tells the others: each has its part of what was the dead one's.
async fn everybody_is_told_of_a_worker_that_died(rig: &Rig) {
    let mut ear = Ear::new(rig).await;
    let (dead, first) = (NodeId::new(), NodeId::new());
    let mut told = async || timeout(PATIENCE, ear.work.recv()).await.expect("not told").unwrap();
    for (node, lease) in [(&dead, SHORT), (&first, LONG)] {
        rig.beat(node, lease).await;
        assert_eq!(told().await, WakeupMessage::WorkersChanged, "one has come");
    }
    rig.pass(SHORT).await;
    rig.beat(&first, LONG).await;
    assert_eq!(told().await, WakeupMessage::WorkersChanged);
}

async fn the_watcher_is_told_of_a_retry_beside_a_lock_that_is_overdue(rig: &Rig) {
    let ([one, two], run) = (neighbours::<2>(), stranger());
    let mut worker = Ear::new(rig).await;
    rig.beat(&worker.node, LONG).await;
    for key in [&one, &two] {
        let id = rig.put_off(key).await;
        assert_eq!(worker.next().await, WakeupMessage::JobOffer(key.clone(), id.clone()));
        if key == &two {
            rig.advance(Duration::from_millis(1)).await;
            rig.start(key, &id, &run).await;
            let later = Settlement::Retry { delay: SHORT, reason: "status 500" };
            assert!(rig.settle(settled(key, &id, &run, later)).await);
        }
    }
    assert_eq!(worker.next().await, WakeupMessage::ShardDue(two.shard()));
}
