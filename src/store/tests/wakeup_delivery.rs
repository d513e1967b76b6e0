//! Delivery of wake-ups. Wake-ups may be late or lost; these tests await those that must be sent.

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
        inspection::WaitReport,
        shared_job_poll::SharedJobPoll,
        tasks::TaskId,
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
    runs_of_all_processes_receive_their_cancellation,
);

/// A process with a subscription.
struct WakeupSubscriber {
    node: NodeId,
    wakeups: Arc<WakeupListeners>,
    worker_messages: mpsc::UnboundedReceiver<WakeupMessage>,
}

const WAKEUP_TIMEOUT: Duration = Duration::from_secs(10);

impl WakeupSubscriber {
    async fn new(rig: &StoreHarness) -> Self {
        let (node, wakeups) = (NodeId::new(), Arc::new(WakeupListeners::default()));
        let mut worker_messages = wakeups.subscribe_work();
        rig.subscribe_node(&node, &wakeups).await;
        // On a server, a subscription takes a while to become active.
        if rig.resyncs_on_subscribe() {
            assert_eq!(
                timeout(WAKEUP_TIMEOUT, worker_messages.recv()).await.unwrap(),
                Some(WakeupMessage::Resync)
            );
        }
        Self { node, wakeups, worker_messages }
    }

    /// The first subscription to job changes triggers a resync when it becomes active.
    async fn subscribe_to_job_changes(&mut self, rig: &StoreHarness) {
        let _poll = self.wakeups.subscribe_job(&JobId::new(&test_key()));
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

    /// Returns the next message, except for changes of workers.
    async fn next_message(&mut self) -> WakeupMessage {
        loop {
            let next = timeout(WAKEUP_TIMEOUT, self.worker_messages.recv()).await;
            match next.expect("no hint came").unwrap() {
                WakeupMessage::WorkersChanged => {}
                message => return message,
            }
        }
    }
}

async fn assert_notified(notify: &Notify) {
    timeout(WAKEUP_TIMEOUT, notify.notified()).await.expect("no wake-up was received");
}

async fn queue_head_is_notified_of_offer(rig: &StoreHarness) {
    let (key, holder) = (test_key(), new_token());
    let (b, c) = (WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await);
    rig.acquire_exclusive(&key, &holder).await;
    let (token_b, token_c) = (b.new_token(), c.new_token());
    rig.join_queue(&key, &token_b).await;
    rig.join_queue(&key, &token_c).await;
    let (notify_b, notify_c) =
        (b.wakeups.subscribe_offers(&token_b), c.wakeups.subscribe_offers(&token_c));
    rig.release(&key, &holder).await;
    assert_notified(&notify_b).await;
    assert!(notify_c.notified().now_or_never().is_none(), "it wakes exactly one process");
    rig.acquire_exclusive(&key, &token_b).await;
    rig.release(&key, &token_b).await;
    assert_notified(&notify_c).await;
}

async fn next_waiter_is_notified_after_offer_lapses(rig: &StoreHarness) {
    let key = test_key();
    let b = WakeupSubscriber::new(rig).await;
    let (token, dead) = (b.new_token(), new_token());
    rig.acquire(AcquireCommand { lease: SHORT_TIME, ..try_acquire_command(&key, &new_token()) })
        .await;
    rig.join_queue(&key, &dead).await;
    rig.join_queue(&key, &token).await;
    rig.advance_past(SHORT_TIME).await;
    let notify = b.wakeups.subscribe_offers(&token);
    rig.expect_busy(&key, &new_token()).await;
    rig.let_offer_expire().await;
    rig.expect_busy(&key, &new_token()).await;
    assert_notified(&notify).await;
    rig.acquire_exclusive(&key, &token).await;
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
    // The lock is held. A worker must poll when its lease ends, unless a release comes first.
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
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    rig.settle(settle_command(&key, &id, &run, retry)).await;
    // The lock is acquired during the backoff. The jobs are due when its lease ends, or at its
    // release.
    rig.acquire_exclusive(&key, &holder).await;
    rig.release(&key, &holder).await;
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
}

/// Covers the first run of a queue, and the next one, which begins with the settlement of the
/// first.
async fn shard_worker_is_notified_of_lease_below_heartbeat(rig: &StoreHarness) {
    for (lease, is_notified) in
        [(Duration::from_millis(9_999), true), (Duration::from_secs(10), false)]
    {
        let key = Key::custom(&format!("{is_notified}"));
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
        if is_notified {
            assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
        }
        // The next message comes from the release.
        rig.finish_run(&key, &first, &run).await;
        assert_eq!(worker.next_message().await, WakeupMessage::JobOffer(key, second));
        rig.heartbeat(&worker.node, Duration::ZERO).await;
    }
}

async fn shard_worker_is_notified_of_earlier_delay_or_deadline(rig: &StoreHarness) {
    let (key, other) = (test_key(), Key::custom("elsewhere"));
    assert_ne!(key.shard(), other.shard());
    let mut worker = WakeupSubscriber::new(rig).await;
    rig.heartbeat(&worker.node, LONG_TIME).await;
    for delay in [LONG_TIME, LONG_TIME * 2, SHORT_TIME] {
        let mut call = enqueue_command(&key);
        call.policy.delay = delay;
        rig.enqueue(call).await;
    }
    let mut call = enqueue_command(&other);
    (call.policy.delay, call.policy.deadline) = (LONG_TIME, Some(SHORT_TIME));
    rig.enqueue(call).await;
    // The later due time needs no message. Messages of several shards have no order.
    let mut notified = Vec::new();
    while notified.len() < 4 {
        match worker.next_message().await {
            WakeupMessage::ShardDue(shard) => notified.push(shard),
            message => panic!("{message:?}"),
        }
    }
    notified.sort_unstable();
    let mut due = [key.shard(), key.shard(), other.shard(), other.shard()];
    due.sort_unstable();
    assert_eq!(notified, due);
}

async fn all_processes_are_notified_of_job_changes(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let mut subscribers = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    for subscriber in &mut subscribers {
        subscriber.subscribe_to_job_changes(rig).await;
    }
    let subscribe = |id: &JobId| {
        subscribers.each_ref().map(|subscriber| {
            let poll = subscriber.wakeups.subscribe_job(id);
            (poll.subscribe_changes(), poll)
        })
    };
    let id = rig.enqueue_job(&key).await;
    let other = rig.enqueue_job(&key).await;
    let unchanged = subscribe(&other);
    let changed = subscribe(&id);
    rig.start_run(&key, &id, &run).await;
    assert_all_changed(changed).await;
    let changed = subscribe(&id);
    rig.settle(settle_command(&key, &id, &run, done_settlement())).await;
    assert_all_changed(changed).await;
    assert!(unchanged.iter().all(|(changes, _)| !changes.has_changed().expect("it is there")));
    drop(unchanged);
    let changed = subscribe(&other);
    rig.cancel(&other).await;
    assert_all_changed(changed).await;
    let crashed = rig.enqueue_job(&key).await;
    let changed = subscribe(&crashed);
    rig.start_run(&key, &crashed, &run).await;
    assert_all_changed(changed).await;
    rig.release(&key, &run).await;
    let changed = subscribe(&crashed);
    rig.claim(claim_command(&key, &crashed, &new_token())).await;
    assert_all_changed(changed).await;
}

async fn assert_all_changed(subscriptions: [(watch::Receiver<u64>, Arc<SharedJobPoll>); 2]) {
    for (mut changes, _poll) in subscriptions {
        let result =
            timeout(WAKEUP_TIMEOUT, changes.changed()).await.expect("no wake-up was received");
        result.expect("it is there");
    }
}

async fn assert_all_notified(notifies: [Arc<Notify>; 2]) {
    for notify in notifies {
        assert_notified(&notify).await;
    }
}

async fn worker_wakeup_reaches_only_its_target(rig: &StoreHarness) {
    let (key, mut worker) = (test_key(), WakeupSubscriber::new(rig).await);
    let mut other = WakeupSubscriber::new(rig).await;
    let message = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), message.clone()).await.unwrap();
    assert_eq!(worker.next_message().await, message);
    // A resync is for the store's own use and is not delivered to a worker by another node.
    rig.backend().send_wakeup(worker.node.clone(), WakeupMessage::Resync).await.unwrap();
    let message = WakeupMessage::JobOffer(key.clone(), JobId::new(&key));
    rig.backend().send_wakeup(worker.node.clone(), message.clone()).await.unwrap();
    assert_eq!(worker.next_message().await, message);
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
    let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
    rig.settle(settle_command(&key, &id, &run, retry)).await;
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(key.shard()));
}

async fn store_keeps_no_dropped_subscriber_alive(rig: &StoreHarness) {
    let (key, holder) = (Key::custom("x"), new_token());
    let subscriber = WakeupSubscriber::new(rig).await;
    let token = subscriber.new_token();
    rig.acquire_exclusive(&key, &holder).await;
    rig.acquire(wait_command(&key, &token)).await;
    let listeners = Arc::downgrade(&subscriber.wakeups);
    drop(subscriber);
    rig.release(&key, &holder).await;
    assert!(listeners.upgrade().is_none(), "the store holds no reference");
    rig.acquire_exclusive(&key, &token).await;
    assert_eq!(rig.job_view(&JobId::new(&key)).await, None);
}

/// Records the joins that a process is notified of.
struct JoinRecorder(mpsc::UnboundedSender<(Key, Contenders)>);

impl JoinListener for JoinRecorder {
    fn on_join(&self, key: &Key, contenders: Contenders) {
        self.0.send((key.clone(), contenders)).unwrap();
    }

    fn drain(&self) -> bool {
        true
    }

    fn longest_waits(&self, _: Option<&Key>) -> Vec<WaitReport> {
        Vec::new()
    }
}

async fn each_holding_process_is_notified_once_per_join(rig: &StoreHarness) {
    let key = test_key();
    let subscribers = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    let mut recorders = Vec::new();
    for subscriber in &subscribers {
        let (tx, rx) = mpsc::unbounded_channel();
        let listener: Arc<dyn JoinListener> = Arc::new(JoinRecorder(tx));
        subscriber.wakeups.set_join_listener(Arc::downgrade(&listener));
        recorders.push((rx, listener));
        // Readers of one process, each with its own hold.
        for _ in 0..3 {
            rig.acquire_as(LockMode::Shared, &key, &subscriber.new_token()).await;
        }
    }
    let seqs = [rig.join_queue(&key, &new_token()).await, rig.join_queue(&key, &new_token()).await];
    let id = rig.enqueue_job(&key).await;
    for (rx, _) in &mut recorders {
        for seq in seqs {
            let (joined_key, contenders) =
                timeout(WAKEUP_TIMEOUT, rx.recv()).await.expect("no wake-up was received").unwrap();
            assert_eq!((joined_key, contenders), (key.clone(), Contenders::from_waiter(seq)));
        }
        // A job joins the queue as well.
        let (_, contenders) =
            timeout(WAKEUP_TIMEOUT, rx.recv()).await.expect("no wake-up was received").unwrap();
        assert!(
            contenders.job > seqs[1] && contenders.first == contenders.job,
            "{id:?} follows both entries: {contenders:?}"
        );
        assert!(rx.try_recv().is_err(), "the join is announced twice");
    }
}

/// The operation that made room must send the wake-ups: no other operation touches the lock.
async fn every_admitted_reader_is_notified(rig: &StoreHarness) {
    let (key, run) = (test_key(), new_token());
    let subscribers = [WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await];
    rig.heartbeat(&NodeId::new(), LONG_TIME).await;
    for operation in ["release", "downgrade", "leave", "cancel", "settle"] {
        let (holder, waiter) = (new_token(), new_token());
        let mut job = None;
        match operation {
            "release" | "downgrade" => drop(rig.acquire_exclusive(&key, &holder).await),
            "settle" => {
                let id = rig.enqueue_job(&key).await;
                rig.start_run(&key, &id, &run).await;
                job = Some(id);
            }
            _ => drop(rig.acquire_as(LockMode::Shared, &key, &holder).await),
        }
        match operation {
            "leave" => drop(rig.join_queue(&key, &waiter).await),
            "cancel" => job = Some(rig.enqueue_job(&key).await),
            _ => {}
        }
        let readers = subscribers.each_ref().map(WakeupSubscriber::new_token);
        for token in &readers {
            rig.join_queue_as(LockMode::Shared, &key, token).await;
        }
        let notifies = [
            subscribers[0].wakeups.subscribe_offers(&readers[0]),
            subscribers[1].wakeups.subscribe_offers(&readers[1]),
        ];
        match (operation, &job) {
            ("release", _) => drop(rig.release(&key, &holder).await),
            ("downgrade", _) => assert!(rig.downgrade(&key, &holder, LONG_TIME).await),
            ("leave", _) => drop(rig.release(&key, &waiter).await),
            ("cancel", Some(id)) => drop(rig.cancel(id).await),
            ("settle", Some(id)) => assert!(rig.finish_run(&key, id, &run).await),
            _ => unreachable!("{operation}"),
        }
        assert_all_notified(notifies).await;
        for token in readers.iter().chain([&holder]) {
            rig.release_as(LockMode::Shared, &key, token).await;
        }
    }
}

/// The first worker to notice notifies the others, because each takes a share of the dead worker's
/// shards.
async fn all_workers_are_notified_of_dead_worker(rig: &StoreHarness) {
    let mut subscriber = WakeupSubscriber::new(rig).await;
    let (dead, first) = (NodeId::new(), NodeId::new());
    let mut next_message = async || {
        timeout(WAKEUP_TIMEOUT, subscriber.worker_messages.recv())
            .await
            .expect("no message was received")
            .unwrap()
    };
    for (node, lease) in [(&dead, SHORT_TIME), (&first, LONG_TIME)] {
        rig.heartbeat(node, lease).await;
        assert_eq!(next_message().await, WakeupMessage::WorkersChanged, "one has come");
    }
    rig.advance_past(SHORT_TIME).await;
    rig.heartbeat(&first, LONG_TIME).await;
    assert_eq!(next_message().await, WakeupMessage::WorkersChanged);
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
            let retry = Settlement::Retry { delay: SHORT_TIME, reason: "status 500" };
            assert!(rig.settle(settle_command(key, &id, &run, retry)).await);
        }
    }
    assert_eq!(worker.next_message().await, WakeupMessage::ShardDue(two.shard()));
}

async fn runs_of_all_processes_receive_their_cancellation(rig: &StoreHarness) {
    let (first, second) = (WakeupSubscriber::new(rig).await, WakeupSubscriber::new(rig).await);
    let job = JobId::new(&test_key());
    let task = TaskId::new();
    let runs = [&first, &second].map(|process| process.wakeups.register_run(job.as_str()));
    let other = second.wakeups.register_run(task.as_str());
    rig.backend().cancel_run(job.to_string()).await.expect("it answers");
    for run in &runs {
        timeout(WAKEUP_TIMEOUT, run.cancelled()).await.expect("it is told");
    }
    assert!(!other.is_cancelled());
    rig.backend().cancel_run(task.to_string()).await.expect("it answers");
    timeout(WAKEUP_TIMEOUT, other.cancelled()).await.expect("it is told");
    // A later run of the same job has its own signal.
    assert!(!first.wakeups.register_run(job.as_str()).is_cancelled());
}
