//! Who is told of what. A hint may come late or never; here the ones that must be sent are awaited.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, SHORT_TIME, StoreHarness, claim_command, done_settlement, enqueue_command,
        keys_of_one_shard, new_token, retryable_enqueue_command, settle_command, test_key,
        try_acquire_command, wait_command,
    },
};
use crate::{
    Key,
    store::{
        backend::{
            AcquireCommand, ClaimCommand, ClaimOutcome, Contenders, EnqueueCommand, JobId,
            JobPolicy, LockMode, LockToken, NodeId, OnFailure, Settlement,
        },
        shared_job_poll::SharedJobPoll,
        wakeup_listeners::{JoinListener, WakeupListeners},
        wakeup_message::WakeupMessage,
    },
};

on_every_store!(
    queue_head_is_notified_of_offer,
    next_waiter_is_notified_after_offer_lapses,
    shard_worker_is_notified_of_offered_job,
    shard_worker_is_notified_of_earlier_due_time,
    shard_worker_is_notified_of_lease_below_heartbeat,
    all_processes_are_notified_of_job_changes,
    worker_wakeup_reaches_only_its_target,
    shard_worker_is_notified_of_retry_delay,
    shard_worker_is_notified_of_earlier_delay_or_deadline,
    store_keeps_no_dropped_subscriber_alive,
    each_holding_process_is_notified_once_per_join,
    every_admitted_reader_is_notified,
    all_workers_are_notified_of_dead_worker,
    retry_beside_overdue_lock_notifies_shard_worker,
);

/// A process that listens.
struct WakeupSubscriber {
    node: NodeId,
    wakeups: Arc<WakeupListeners>,
    worker_messages: mpsc::UnboundedReceiver<WakeupMessage>,
}

const WAKEUP_TIMEOUT: Duration = Duration::from_secs(10);

impl WakeupSubscriber {
    async fn new(rig: &StoreHarness) -> Self {
        let (node, hints) = (NodeId::new(), Arc::new(WakeupListeners::default()));
        let mut work = hints.subscribe_work();
        rig.subscribe_node(&node, &hints).await;
        // Where messages travel, it takes a while until they are subscribed to.
        if rig.resyncs_on_subscribe() {
            assert_eq!(
                timeout(WAKEUP_TIMEOUT, work.recv()).await.unwrap(),
                Some(WakeupMessage::Resync)
            );
        }
        Self { node, wakeups: hints, worker_messages: work }
    }

    /// Who waits for a job for the first time is told to look again once changes are subscribed to.
    async fn subscribe_to_job_changes(&mut self, rig: &StoreHarness) {
        let _bell = self.wakeups.subscribe_job(&JobId::new(&test_key()));
        if rig.resyncs_on_subscribe() {
            assert_eq!(
                timeout(WAKEUP_TIMEOUT, self.worker_messages.recv()).await.unwrap(),
                Some(WakeupMessage::Resync)
            );
        }
    }

    fn new_token(&self) -> LockToken {
        LockToken::new(&self.node)
    }

    /// But that workers have come.
    async fn next_message(&mut self) -> WakeupMessage {
        loop {
            let next = timeout(WAKEUP_TIMEOUT, self.worker_messages.recv()).await;
            match next.expect("no hint came").unwrap() {
                WakeupMessage::WorkersChanged => {}
                hint => return hint,
            }
        }
    }
}

async fn assert_notified(bell: &Notify) {
    timeout(WAKEUP_TIMEOUT, bell.notified()).await.expect("it was not told");
}

async fn queue_head_is_notified_of_offer(rig: &StoreHarness) {
    let (key, holder) = (test_key(), new_token());
    let (b, c) = (WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await);
    rig.acquire_exclusive(&key, &holder).await;
    let (to_b, to_c) = (b.new_token(), c.new_token());
    rig.join_queue(&key, &to_b).await;
    rig.join_queue(&key, &to_c).await;
    let (bell, other) = (b.wakeups.subscribe_offers(&to_b), c.wakeups.subscribe_offers(&to_c));
    rig.release(&key, &holder).await;
    assert_notified(&bell).await;
    assert!(other.notified().now_or_never().is_none(), "it wakes exactly one process");
    rig.acquire_exclusive(&key, &to_b).await;
    rig.release(&key, &to_b).await;
    assert_notified(&other).await;
}

async fn next_waiter_is_notified_after_offer_lapses(rig: &StoreHarness) {
    let key = test_key();
    let b = WakeupSubscriber::new(rig).await;
    let (me, dead) = (b.new_token(), new_token());
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &new_token()) })
        .await;
    rig.join_queue(&key, &dead).await;
    rig.join_queue(&key, &me).await;
    rig.advance_past(SHORT_TIME).await;
    let bell = b.wakeups.subscribe_offers(&me);
    rig.expect_busy(&key, &new_token()).await;
    rig.let_offer_expire().await;
    rig.expect_busy(&key, &new_token()).await;
    assert_notified(&bell).await;
    rig.acquire_exclusive(&key, &me).await;
}

async fn shard_worker_is_notified_of_offered_job(rig: &StoreHarness) {
    let (key, holder) = (test_key(), new_token());
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    let first = rig.enqueue_job(&key).await;
    assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key.clone(), first.clone()));
    let run = worker.new_token();
    rig.start_run(&key, &first, &run).await;
    rig.finish_run(&key, &first, &run).await;
    rig.acquire_exclusive(&key, &holder).await;
    let second = rig.enqueue_job(&key).await;
    // Held, with an end: that is when to look, if no release comes before it.
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
    rig.release(&key, &holder).await;
    assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key, second));
}

async fn shard_worker_is_notified_of_earlier_due_time(rig: &StoreHarness) {
    let (key, holder, run) = (test_key(), new_token(), new_token());
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.acquire_exclusive(&key, &holder).await;
    let id = rig.enqueue_job(&key).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    rig.release(&key, &holder).await;
    assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key.clone(), id.clone()));
    rig.start_run(&key, &id, &run).await;
    let later = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    rig.settle(settle_command(&key, &id, &run, later)).await;
    // The lock is taken while the jobs wait: they are due when its lease ends, and sooner once it is
    // given back.
    rig.acquire_exclusive(&key, &holder).await;
    rig.release(&key, &holder).await;
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
}

/// The first run of a line, and the next one, which begins as the first is settled.
async fn shard_worker_is_notified_of_lease_below_heartbeat(rig: &StoreHarness) {
    for (lease, told) in [(Duration::from_millis(9_999), true), (Duration::from_secs(10), false)] {
        let key = Key::custom(&format!("{told}"));
        let mut worker = WakeupSubscriber::new(rig).await;
        rig.heartbeat(&worker.node, LONG_TIME).await;
        let (first, second) = (rig.enqueue_job(&key).await, rig.enqueue_job(&key).await);
        assert_eq!(
            worker.next_message().await,
            WakeupMessage::JobOffer(key.clone(), first.clone())
        );
        let run = worker.new_token();
        let claimed = rig.claim(ClaimCommand { lease, ..claim_command(&key, &first, &run) }).await;
        assert!(matches!(claimed, ClaimOutcome::Claimed(_)), "{claimed:?}");
        if told {
            assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
        }
        // What comes next is of the release.
        rig.finish_run(&key, &first, &run).await;
        assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key, second));
        rig.heartbeat(&worker.node, Duration::ZERO).await;
    }
}

async fn shard_worker_is_notified_of_earlier_delay_or_deadline(rig: &StoreHarness) {
    let (key, elsewhere) = (test_key(), Key::custom("elsewhere"));
    assert_ne!(key.shard(), elsewhere.shard());
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    for delay in [LONG_TIME, LONG_TIME * 2, SHORT_TIME] {
        let mut call = enqueue_command(&key);
        call.policy.delay = delay;
        rig.enqueue(call).await;
    }
    let mut call = enqueue_command(&elsewhere);
    (call.policy.delay, call.policy.deadline) = (LONG_TIME, Some(SHORT_TIME));
    rig.enqueue(call).await;
    // Of the longer one nobody has to hear. Messages of several shards have no order among them.
    let mut told = Vec::new();
    while told.len() < 4 {
        match worker.next_message().await {
            WakeupMessage::ShardDue(shard) => told.push(shard),
            hint => panic!("{hint:?}"),
        }
    }
    told.sort_unstable();
    let mut due = [key.shard(), key.shard(), elsewhere.shard(), elsewhere.shard()];
    due.sort_unstable();
    assert_eq!(told, due);
}

async fn all_processes_are_notified_of_job_changes(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let mut ears = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    for ear in &mut ears {
        ear.subscribe_to_job_changes(rig).await;
    }
    let listen = |id: &JobId| {
        ears.each_ref().map(|ear| {
            let watch = ear.wakeups.subscribe_job(id);
            (watch.subscribe_changes(), watch)
        })
    };
    let id = rig.enqueue_job(&key).await;
    let other = rig.enqueue_job(&key).await;
    let quiet = listen(&other);
    let told = listen(&id);
    rig.start_run(&key, &id, &run).await;
    assert_all_changed(told).await;
    let told = listen(&id);
    rig.settle(settle_command(&key, &id, &run, done_settlement())).await;
    assert_all_changed(told).await;
    assert!(quiet.iter().all(|(changes, _)| !changes.has_changed().expect("it is there")));
    drop(quiet);
    let told = listen(&other);
    rig.cancel(&other).await;
    assert_all_changed(told).await;
    let crashed = rig.enqueue_job(&key).await;
    let told = listen(&crashed);
    rig.start_run(&key, &crashed, &run).await;
    assert_all_changed(told).await;
    rig.release(&key, &run).await;
    let told = listen(&crashed);
    rig.claim(claim_command(&key, &crashed, &new_token())).await;
    assert_all_changed(told).await;
}

async fn assert_all_changed(listening: [(watch::Receiver<u64>, Arc<SharedJobPoll>); 2]) {
    for (mut changes, _watch) in listening {
        let told = timeout(WAKEUP_TIMEOUT, changes.changed()).await.expect("it was not told");
        told.expect("it is there");
    }
}

async fn assert_all_notified(bells: [Arc<Notify>; 2]) {
    for bell in bells {
        assert_notified(&bell).await;
    }
}

async fn worker_wakeup_reaches_only_its_target(rig: &StoreHarness) {
    let (key, mut worker) = (test_key(), WakeupSubscriber::new(rig).await);
    let mut other = WakeupSubscriber::new(rig).await;
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), hint.clone()).await.unwrap();
    assert_eq!(worker.next_message().await, hint);
    // What is nobody else's business is not passed on.
    rig.backend().send_wakeup(worker.node.clone(), WakeupMessage::Resync).await.unwrap();
    let hint = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), hint.clone()).await.unwrap();
    assert_eq!(worker.next_message().await, hint);
    assert!(other.worker_messages.try_recv().is_err());
}

async fn shard_worker_is_notified_of_retry_delay(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let call = retryable_enqueue_command(&key);
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let id = call.id.clone();
    rig.enqueue(EnqueueCommand { policy, ..call }).await;
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    rig.start_run(&key, &id, &run).await;
    let later = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    rig.settle(settle_command(&key, &id, &run, later)).await;
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
}

async fn store_keeps_no_dropped_subscriber_alive(rig: &StoreHarness) {
    let (key, holder) = (Key::custom("x"), new_token());
    let ear = WakeupSubscriber::new(rig).await;
    let me = ear.new_token();
    rig.acquire_exclusive(&key, &holder).await;
    rig.acquire(wait_command(&key, &me)).await;
    let gone = Arc::downgrade(&ear.wakeups);
    drop(ear);
    rig.release(&key, &holder).await;
    assert!(gone.upgrade().is_none(), "the store keeps it alive");
    rig.acquire_exclusive(&key, &me).await;
    assert_eq!(rig.job_view(&JobId::new(&key)).await, None);
}

/// What a process is told of its lines.
struct JoinRecorder(mpsc::UnboundedSender<(Key, Contenders)>);

impl JoinListener for JoinRecorder {
    fn on_join(&self, key: &Key, who: Contenders) {
        self.0.send((key.clone(), who)).unwrap();
    }

    fn drain(&self) -> bool {
        true
    }
}

async fn each_holding_process_is_notified_once_per_join(rig: &StoreHarness) {
    let key = test_key();
    let ears = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    let mut told = Vec::new();
    for ear in &ears {
        let (tx, rx) = mpsc::unbounded_channel();
        let listens: Arc<dyn JoinListener> = Arc::new(JoinRecorder(tx));
        ear.wakeups.set_join_listener(Arc::downgrade(&listens));
        told.push((rx, listens));
        // Readers of one process, each with a hold of its own.
        for _ in 0..3 {
            rig.acquire_as(LockMode::Shared, &key, &ear.new_token()).await;
        }
    }
    let seqs = [rig.join_queue(&key, &new_token()).await, rig.join_queue(&key, &new_token()).await];
    let id = rig.enqueue_job(&key).await;
    for (rx, _) in &mut told {
        for seq in seqs {
            let (of, who) =
                timeout(WAKEUP_TIMEOUT, rx.recv()).await.expect("it was not told").unwrap();
            assert_eq!((of, who), (key.clone(), Contenders::from_waiter(seq)));
        }
        // A job joins the line as well.
        let (_, who) = timeout(WAKEUP_TIMEOUT, rx.recv()).await.expect("it was not told").unwrap();
        assert!(who.job > seqs[1] && who.first == who.job, "{id:?} stands behind them: {who:?}");
        assert!(rx.try_recv().is_err(), "told twice");
    }
}

/// By whichever step made room: nobody else looks at the lock in this case.
async fn every_admitted_reader_is_notified(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let ears = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    rig.heartbeat(&NodeId::new(), LONG_TIME).await;
    for step in ["release", "downgrade", "leave", "cancel", "settle"] {
        let (holder, before) = (new_token(), new_token());
        let mut job = None;
        match step {
            "release" | "downgrade" => drop(rig.acquire_exclusive(&key, &holder).await),
            "settle" => {
                let id = rig.enqueue_job(&key).await;
                rig.start_run(&key, &id, &run).await;
                job = Some(id);
            }
            _ => drop(rig.acquire_as(LockMode::Shared, &key, &holder).await),
        }
        match step {
            "leave" => drop(rig.join_queue(&key, &before).await),
            "cancel" => job = Some(rig.enqueue_job(&key).await),
            _ => {}
        }
        let readers = ears.each_ref().map(WakeupSubscriber::new_token);
        for me in &readers {
            rig.join_queue_as(LockMode::Shared, &key, me).await;
        }
        let bells = [
            ears[0].wakeups.subscribe_offers(&readers[0]),
            ears[1].wakeups.subscribe_offers(&readers[1]),
        ];
        match (step, &job) {
            ("release", _) => drop(rig.release(&key, &holder).await),
            ("downgrade", _) => assert!(rig.downgrade(&key, &holder, LONG_TIME).await),
            ("leave", _) => drop(rig.release(&key, &before).await),
            ("cancel", Some(id)) => drop(rig.cancel(id).await),
            ("settle", Some(id)) => assert!(rig.finish_run(&key, id, &run).await),
            _ => unreachable!("{step}"),
        }
        assert_all_notified(bells).await;
        for me in readers.iter().chain([&holder]) {
            rig.release_as(LockMode::Shared, &key, me).await;
        }
    }
}

/// Whoever sees it first tells the others: each has its part of what was the dead one's.
async fn all_workers_are_notified_of_dead_worker(rig: &StoreHarness) {
    let mut ear = WakeupSubscriber::new(rig).await;
    let (dead, first) = (NodeId::new(), NodeId::new());
    let mut told = async || {
        timeout(WAKEUP_TIMEOUT, ear.worker_messages.recv()).await.expect("not told").unwrap()
    };
    for (node, lease) in [(&dead, SHORT_TIME), (&first, LONG_TIME)] {
        rig.heartbeat(node, lease).await;
        assert_eq!(told().await, WakeupMessage::WorkersChanged, "one has come");
    }
    rig.advance_past(SHORT_TIME).await;
    rig.heartbeat(&first, LONG_TIME).await;
    assert_eq!(told().await, WakeupMessage::WorkersChanged);
}

async fn retry_beside_overdue_lock_notifies_shard_worker(rig: &StoreHarness) {
    let ([one, two], run) = (keys_of_one_shard::<2>(), new_token());
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    for key in [&one, &two] {
        let id = rig.enqueue_job(key).await;
        assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key.clone(), id.clone()));
        if key == &two {
            rig.advance(Duration::from_millis(1)).await;
            rig.start_run(key, &id, &run).await;
            let later = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
            assert!(rig.settle(settle_command(key, &id, &run, later)).await);
        }
    }
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(two.shard()));
}
