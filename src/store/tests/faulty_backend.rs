//! Embedded store with scheduled faults, for tests with tokio's clock paused.

mod fault_schedule;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};

use self::fault_schedule::apply_reply_fault;
pub(crate) use self::fault_schedule::{BackendFault, FaultSchedule};

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::Key,
    store::{
        Store, StoredPolicyChanges,
        backend::{
            AcquireCommand, AcquireReply, ActiveRun, Backend, BeginDirectOutcome, ChargeCommand,
            ChargeFuture, ClaimCommand, ClaimOutcome, CounterName, DirectRunCommand, DueLocks,
            EndedJobFilter, EnqueueCommand, EnqueueOutcome, GrantRefresh, HeartbeatReply,
            JobBackend, JobId, JobListPage, JobState, JobView, LeaseRenewal, LockMode, LockToken,
            NodeId, PendingCursor, QuotaSnapshot, ReleaseOutcome, SettleChargeCommand,
            SettleCommand, SettleOutcome, ShardStats, StoreFuture,
        },
        inspection::{AuditEntry, InspectionBackend, LockSnapshot},
        memory::MemoryBackend,
        tasks::{
            DeadLetterPage, PurgeCursor, PurgePage, QueueStats, RunToken, TaskBackend, TaskFilter,
            TaskId, TaskListPage, TaskPollCommand, TaskPollOutcome, TaskPushCommand,
            TaskPushOutcome, TaskState, TaskView,
        },
        wakeup_listeners::WakeupListeners,
        wakeup_message::WakeupMessage,
    },
};

/// Returns an embedded store and the schedule of its faults.
pub(crate) fn faulty_store() -> (Store, FaultSchedule) {
    faulty_store_with_clock(Clock::system())
}

/// Like [`faulty_store`], with the given clock.
pub(crate) fn faulty_store_with_clock(clock: Clock) -> (Store, FaultSchedule) {
    let faults = FaultSchedule::default();
    let backend =
        FaultyBackend { memory: Arc::new(MemoryBackend::new(clock)), faults: faults.clone() };
    (Store::with_backend(Arc::new(backend)), faults)
}

struct FaultyBackend {
    memory: Arc<MemoryBackend>,
    faults: FaultSchedule,
}

impl FaultyBackend {
    fn call_with_fault<T: Send + 'static>(
        &self,
        operation: &'static str,
        run: impl FnOnce(&MemoryBackend) -> StoreFuture<'_, T> + Clone + Send + 'static,
    ) -> StoreFuture<'_, T> {
        Box::pin(async move {
            let fault = self.faults.next_fault(operation);
            match fault {
                Some(BackendFault::Unavailable) => {
                    return Err(Error::new(ErrorKind::Unavailable, operation));
                }
                Some(BackendFault::LoginRefused) => {
                    return Err(Error::new(ErrorKind::Config, operation));
                }
                Some(BackendFault::SlowCall(time)) => tokio::time::sleep(time).await,
                Some(BackendFault::TimeoutThenRun(time)) => {
                    self.spawn_delayed_run(time, run);
                    return apply_reply_fault(
                        fault,
                        operation,
                        Err(Error::new(ErrorKind::Timeout, operation)),
                    )
                    .await;
                }
                Some(BackendFault::DuplicateRun(time)) => {
                    self.spawn_delayed_run(time, run.clone());
                    self.faults.abandon_connection();
                }
                _ => {}
            }
            let reply = run(&self.memory).await;
            apply_reply_fault(fault, operation, reply).await
        })
    }

    /// Runs a call after its caller has given up; the reply is dropped.
    fn spawn_delayed_run<T: Send + 'static>(
        &self,
        time: Duration,
        run: impl FnOnce(&MemoryBackend) -> StoreFuture<'_, T> + Send + 'static,
    ) {
        let memory = Arc::clone(&self.memory);
        crate::store::spawn(async move {
            tokio::time::sleep(time).await;
            drop(run(&memory).await);
        });
    }
}

impl Backend for FaultyBackend {
    fn identities(&self) -> Vec<Arc<str>> {
        self.memory.identities()
    }

    fn identify(&self) -> StoreFuture<'_, Arc<str>> {
        self.memory.identify()
    }

    fn estimated_now_us(&self) -> u64 {
        self.memory.estimated_now_us()
    }

    fn has_manual_clock(&self) -> bool {
        self.memory.has_manual_clock()
    }

    fn connection_resets(&self) -> u64 {
        self.faults.abandoned_connections()
    }

    fn server_generation(&self) -> u64 {
        self.faults.server_generation()
    }

    fn acquire(&self, call: AcquireCommand) -> StoreFuture<'_, AcquireReply> {
        self.call_with_fault("acquire", |memory| memory.acquire(call))
    }

    /// Batched into one call only if a fault is scheduled for it.
    fn acquire_all(&self, calls: &[AcquireCommand]) -> StoreFuture<'_, Option<Vec<AcquireReply>>> {
        if self.faults.remaining("acquire_all") == 0 {
            self.faults.next_fault("acquire_all");
            return self.memory.acquire_all(calls);
        }
        let calls = calls.to_vec();
        self.call_with_fault("acquire_all", |memory| {
            let replies = join_all(calls.into_iter().map(|call| memory.acquire(call)));
            Box::pin(async { replies.await.into_iter().collect::<Result<_, _>>().map(Some) })
        })
    }

    fn release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> StoreFuture<'_, ReleaseOutcome> {
        self.call_with_fault("release", move |memory| memory.release(key, token, mode))
    }

    fn send_release(
        &self,
        key: Key,
        token: LockToken,
        mode: LockMode,
    ) -> Option<StoreFuture<'static, ReleaseOutcome>> {
        let fault = self.faults.next_fault("release");
        if matches!(fault, Some(BackendFault::Unavailable)) {
            return Some(Box::pin(async { Err(Error::new(ErrorKind::Unavailable, "release")) }));
        }
        let reply = self.memory.send_release(key, token, mode)?;
        Some(Box::pin(async move { apply_reply_fault(fault, "release", reply.await).await }))
    }

    fn release_and_reacquire(
        &self,
        token: LockToken,
        mode: LockMode,
        next: AcquireCommand,
    ) -> StoreFuture<'_, (ReleaseOutcome, AcquireReply)> {
        self.call_with_fault("pass", move |memory| memory.release_and_reacquire(token, mode, next))
    }

    fn refresh_grant(&self, key: Key, token: LockToken) -> StoreFuture<'_, Option<GrantRefresh>> {
        self.call_with_fault("still", move |memory| memory.refresh_grant(key, token))
    }

    fn downgrade(&self, key: Key, token: LockToken, lease: Duration) -> StoreFuture<'_, bool> {
        self.call_with_fault("downgrade", move |memory| memory.downgrade(key, token, lease))
    }

    fn renew(&self, items: Vec<LeaseRenewal>) -> StoreFuture<'_, Vec<bool>> {
        self.call_with_fault("renew", |memory| memory.renew(items))
    }

    fn wait_for_replicas(
        &self,
        shard: u16,
        replica_count: u32,
        generation: u64,
    ) -> StoreFuture<'_, u32> {
        self.call_with_fault("replicated", move |memory| {
            memory.wait_for_replicas(shard, replica_count, generation)
        })
    }

    fn advance_fence(&self, key: Key, token: LockToken, fence: u64) -> StoreFuture<'_, bool> {
        self.call_with_fault("raise_fence", move |memory| memory.advance_fence(key, token, fence))
    }

    fn charge(&self, call: ChargeCommand) -> ChargeFuture<'_> {
        ChargeFuture::Boxed(self.call_with_fault("charge", |memory| Box::pin(memory.charge(call))))
    }

    fn settle_charge(&self, call: SettleChargeCommand) -> StoreFuture<'_, Vec<QuotaSnapshot>> {
        self.call_with_fault("settle_charge", |memory| memory.settle_charge(call))
    }

    fn reset_counters(&self, tag: Key, counters: Vec<CounterName>) -> StoreFuture<'_, ()> {
        self.call_with_fault("reset_charges", |memory| memory.reset_counters(tag, counters))
    }

    fn block_counters(
        &self,
        tag: Key,
        counters: Vec<CounterName>,
        block: Duration,
    ) -> StoreFuture<'_, ()> {
        self.call_with_fault("block_counters", move |memory| {
            memory.block_counters(tag, counters, block)
        })
    }

    fn read_policy_changes(&self) -> StoreFuture<'_, StoredPolicyChanges> {
        self.call_with_fault("read_policy_changes", Backend::read_policy_changes)
    }

    fn replace_policy_changes(
        &self,
        old_version: u64,
        new: StoredPolicyChanges,
    ) -> StoreFuture<'_, bool> {
        self.call_with_fault("replace_policy_changes", move |memory| {
            memory.replace_policy_changes(old_version, new)
        })
    }

    fn register_limiter(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, usize> {
        self.call_with_fault("limiters", move |memory| memory.register_limiter(node, lease))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        self.call_with_fault("ping", MemoryBackend::ping)
    }

    fn subscribe(
        &self,
        node: NodeId,
        listeners: &Arc<WakeupListeners>,
    ) -> Option<BoxFuture<'static, ()>> {
        self.memory.subscribe(node, listeners)
    }
}

impl InspectionBackend for FaultyBackend {
    fn append_audit_record(&self, record: String) -> StoreFuture<'_, u64> {
        self.call_with_fault("append_audit_record", |memory| memory.append_audit_record(record))
    }

    fn replace_audit_record(
        &self,
        number: u64,
        initial: String,
        finished: String,
    ) -> StoreFuture<'_, bool> {
        self.call_with_fault("replace_audit_record", move |memory| {
            memory.replace_audit_record(number, initial, finished)
        })
    }

    fn read_audit_records(
        &self,
        before: u64,
        max_records: usize,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        self.memory.read_audit_records(before, max_records)
    }

    fn register_queue(&self, name: Key) -> StoreFuture<'_, ()> {
        self.call_with_fault("register_queue", |memory| memory.register_queue(name))
    }

    fn list_queues(&self) -> StoreFuture<'_, Vec<Key>> {
        self.memory.list_queues()
    }

    fn list_registered_workers(&self) -> StoreFuture<'_, Vec<(String, Duration)>> {
        self.memory.list_registered_workers()
    }

    fn count_live_workers(&self) -> StoreFuture<'_, u64> {
        self.memory.count_live_workers()
    }

    fn inspect_lock(&self, key: Key) -> StoreFuture<'_, LockSnapshot> {
        self.memory.inspect_lock(key)
    }

    fn force_release(&self, key: Key) -> StoreFuture<'_, usize> {
        self.call_with_fault("force_release", |memory| memory.force_release(key))
    }

    fn cancel_run(&self, id: String) -> StoreFuture<'_, ()> {
        self.call_with_fault("cancel_run", |memory| memory.cancel_run(id))
    }

    fn ask_fleet(&self, inquiry: String, lock: Option<Key>) -> StoreFuture<'_, u64> {
        self.memory.ask_fleet(inquiry, lock)
    }

    fn append_report(&self, inquiry: String, report: String) -> StoreFuture<'_, ()> {
        self.call_with_fault("append_report", |memory| memory.append_report(inquiry, report))
    }

    fn read_reports(&self, inquiry: String, skipped: usize) -> StoreFuture<'_, Vec<String>> {
        self.call_with_fault("read_reports", move |memory| memory.read_reports(inquiry, skipped))
    }
}

impl JobBackend for FaultyBackend {
    fn enqueue(&self, call: EnqueueCommand) -> StoreFuture<'_, EnqueueOutcome> {
        self.call_with_fault("enqueue", |memory| memory.enqueue(call))
    }

    fn begin_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, BeginDirectOutcome> {
        self.call_with_fault("begin_direct", |memory| memory.begin_direct(call))
    }

    fn finish_direct(
        &self,
        call: DirectRunCommand,
        response: Option<Bytes>,
    ) -> StoreFuture<'_, bool> {
        self.call_with_fault("end_direct", |memory| memory.finish_direct(call, response))
    }

    fn renew_direct(&self, call: DirectRunCommand) -> StoreFuture<'_, bool> {
        self.call_with_fault("renew_direct", |memory| memory.renew_direct(call))
    }

    fn mark_direct_dead(
        &self,
        call: DirectRunCommand,
        reason: &'static str,
    ) -> StoreFuture<'_, bool> {
        self.call_with_fault("bury_direct", move |memory| memory.mark_direct_dead(call, reason))
    }

    fn claim(&self, call: ClaimCommand) -> StoreFuture<'_, ClaimOutcome> {
        self.call_with_fault("claim", |memory| memory.claim(call))
    }

    fn settle(&self, call: SettleCommand) -> StoreFuture<'_, SettleOutcome> {
        self.call_with_fault("settle", |memory| memory.settle(call))
    }

    fn cancel_waiting_job(
        &self,
        id: JobId,
        began_us: u64,
        retention: Duration,
    ) -> StoreFuture<'_, Option<JobState>> {
        self.call_with_fault("cancel", move |memory| {
            memory.cancel_waiting_job(id, began_us, retention)
        })
    }

    fn end_job_delay(&self, id: JobId, began_us: u64) -> StoreFuture<'_, Option<JobState>> {
        self.call_with_fault("end_job_delay", move |memory| memory.end_job_delay(id, began_us))
    }

    fn job_view(&self, id: JobId) -> StoreFuture<'_, Option<JobView>> {
        self.call_with_fault("job", |memory| memory.job_view(id))
    }

    fn active_run(&self, id: JobId) -> StoreFuture<'_, Option<ActiveRun>> {
        self.call_with_fault("running", |memory| memory.active_run(id))
    }

    fn job_envelope(&self, id: JobId) -> StoreFuture<'_, Option<Bytes>> {
        self.call_with_fault("envelope", |memory| memory.job_envelope(id))
    }

    fn server_time_us(&self) -> StoreFuture<'_, u64> {
        self.call_with_fault("clock", MemoryBackend::server_time_us)
    }

    fn heads(&self, keys: Vec<Key>) -> StoreFuture<'_, Vec<Option<JobId>>> {
        self.call_with_fault("heads", |memory| memory.heads(keys))
    }

    fn poll_due(&self, shards: Vec<u16>, limit: usize) -> StoreFuture<'_, Vec<DueLocks>> {
        self.call_with_fault("due", move |memory| memory.poll_due(shards, limit))
    }

    fn unclaim(&self, key: Key, token: LockToken, id: Option<JobId>) -> StoreFuture<'_, bool> {
        self.call_with_fault("unclaim", move |memory| memory.unclaim(key, token, id))
    }

    fn heartbeat(&self, node: NodeId, lease: Duration) -> StoreFuture<'_, HeartbeatReply> {
        self.call_with_fault("beat", move |memory| memory.heartbeat(node, lease))
    }

    fn send_wakeup(&self, node: NodeId, message: WakeupMessage) -> StoreFuture<'_, ()> {
        self.call_with_fault("tell", move |memory| memory.send_wakeup(node, message))
    }

    fn list_ended(
        &self,
        shard: u16,
        filter: EndedJobFilter,
        cursor: u64,
        limit: usize,
    ) -> StoreFuture<'_, JobListPage> {
        self.call_with_fault("list", move |memory| memory.list_ended(shard, filter, cursor, limit))
    }

    fn list_pending(
        &self,
        shard: u16,
        cursor: PendingCursor,
        limit: usize,
    ) -> StoreFuture<'_, JobListPage<PendingCursor>> {
        self.call_with_fault("pending", move |memory| memory.list_pending(shard, cursor, limit))
    }

    fn redrive_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, Option<JobState>> {
        self.call_with_fault("redrive", move |memory| memory.redrive_job(id, ended_us))
    }

    fn purge_job(&self, id: JobId, ended_us: u64) -> StoreFuture<'_, bool> {
        self.call_with_fault("purge", move |memory| memory.purge_job(id, ended_us))
    }

    fn shard_stats(&self, shard: u16) -> StoreFuture<'_, ShardStats> {
        self.call_with_fault("tally", move |memory| memory.shard_stats(shard))
    }

    fn set_jobs_paused(&self, paused: bool) -> StoreFuture<'_, ()> {
        self.call_with_fault("set_paused", move |memory| memory.set_jobs_paused(paused))
    }

    fn are_jobs_paused(&self) -> StoreFuture<'_, bool> {
        self.call_with_fault("is_paused", |memory| memory.are_jobs_paused())
    }
}

impl TaskBackend for FaultyBackend {
    fn push_task(&self, call: TaskPushCommand) -> StoreFuture<'_, TaskPushOutcome> {
        self.call_with_fault("push_task", |memory| memory.push_task(call))
    }

    fn poll_tasks(&self, call: TaskPollCommand) -> StoreFuture<'_, TaskPollOutcome> {
        self.call_with_fault("turn", |memory| memory.poll_tasks(call))
    }

    fn poll_idle(
        &self,
        queue: Key,
        node: NodeId,
        worker: Arc<str>,
        idle_time: Duration,
    ) -> StoreFuture<'_, bool> {
        self.call_with_fault("still_idle", move |memory| {
            memory.poll_idle(queue, node, worker, idle_time)
        })
    }

    fn renew_runs(
        &self,
        queue: Key,
        runs: Vec<RunToken>,
        lease: Duration,
    ) -> StoreFuture<'_, Vec<bool>> {
        self.call_with_fault("renew_runs", move |memory| memory.renew_runs(queue, runs, lease))
    }

    fn task_view(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskView>> {
        self.memory.task_view(queue, id)
    }

    fn list_tasks(
        &self,
        queue: Key,
        filter: TaskFilter,
        offset: u64,
        limit: usize,
    ) -> StoreFuture<'_, TaskListPage> {
        self.memory.list_tasks(queue, filter, offset, limit)
    }

    fn task_payload(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<Bytes>> {
        self.memory.task_payload(queue, id)
    }

    fn cancel_task(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        self.memory.cancel_task(queue, id)
    }

    fn run_task_now(&self, queue: Key, id: TaskId) -> StoreFuture<'_, Option<TaskState>> {
        self.memory.run_task_now(queue, id)
    }

    fn list_dead_letters(
        &self,
        queue: Key,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'_, DeadLetterPage> {
        self.memory.list_dead_letters(queue, after, limit)
    }

    fn redrive_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        self.memory.redrive_dead_letter(queue, id)
    }

    fn redrive_dead_letters(
        &self,
        queue: Key,
        limit: usize,
        first: Duration,
        spacing: Duration,
    ) -> StoreFuture<'_, usize> {
        self.memory.redrive_dead_letters(queue, limit, first, spacing)
    }

    fn purge_dead_letter(&self, queue: Key, id: TaskId) -> StoreFuture<'_, bool> {
        self.memory.purge_dead_letter(queue, id)
    }

    fn purge_dead_letters(&self, queue: Key) -> StoreFuture<'_, usize> {
        self.memory.purge_dead_letters(queue)
    }

    fn purge_waiting(
        &self,
        queue: Key,
        cursor: Option<PurgeCursor>,
        limit: usize,
    ) -> StoreFuture<'_, PurgePage> {
        self.memory.purge_waiting(queue, cursor, limit)
    }

    fn set_tasks_paused(&self, queue: Key, pause: bool) -> StoreFuture<'_, ()> {
        self.memory.set_tasks_paused(queue, pause)
    }

    fn queue_stats(&self, queue: Key) -> StoreFuture<'_, QueueStats> {
        self.memory.queue_stats(queue)
    }

    fn unserved_task_count(&self, queue: Key, poll_validity: Duration) -> StoreFuture<'_, u64> {
        self.memory.unserved_task_count(queue, poll_validity)
    }
}

impl fmt::Debug for FaultyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}
