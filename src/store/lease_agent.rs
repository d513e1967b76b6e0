//! `LeaseAgent`: background task that renews leases and undoes operations of dropped callers.
//!
//! There is one task for each store handle, started when it is first needed. `agent_runtime`
//! chooses its runtime. All requests go through one unbounded channel, so a `Drop` can send one
//! without waiting and without a runtime.
//!
//! - **Renewal** is in `renewal_scheduler`.
//! - **An undo** reverses the operations of one token. It is repeated until the store has answered,
//!   or until the lease must have expired.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};

use super::{
    agent_runtime::{AgentMailbox, AgentRuntime},
    backend::{Backend, JobId, LockMode, LockToken, ReleaseOutcome, StoreFuture},
    hold_state::HoldState,
    idempotency_record_completion::IdempotencyRecordCompletion,
    lock_lease::LockLease,
    renewal_scheduler::RenewalScheduler,
};
use crate::{error::Error, key::Key};

pub(crate) struct LeaseAgent {
    runtime: Arc<AgentRuntime>,
    /// Called by the store when the server was replaced. The backend keeps only a `Weak` of it.
    _on_new_server: Arc<dyn Fn() + Send + Sync>,
}

pub(super) struct AgentState {
    backend: Arc<dyn Backend>,
    pub(super) renewals: Arc<RenewalScheduler>,
    /// Unfinished undos for which a shutdown waits.
    pending_undos: AtomicUsize,
    undos_done: Notify,
    /// An agent of this store has started.
    has_started: AtomicBool,
    /// Log records of the store show names. It is here, since the undo of a dropped caller logs
    /// without the store.
    shows_log_names: AtomicBool,
}

pub(super) enum AgentMessage {
    /// Undo, with the future of its first call if that was sent already.
    Undo(UndoRequest, Option<StoreFuture<'static, ReleaseOutcome>>, PendingUndoGuard),
    /// Work to run beside the agent.
    Spawn(BoxFuture<'static, ()>),
}

/// Operation to be undone.
pub(super) struct UndoRequest {
    pub(super) key: Key,
    pub(super) token: LockToken,
    pub(super) mode: LockMode,
    pub(super) action: UndoAction,
    /// Time at which the lease has expired by itself, and the undo may stop.
    pub(super) expires_at: Instant,
    /// Number of calls that may each need an undo of its own, because one ran after the undo of
    /// another. Calls that ran before the undo are undone together.
    pub(super) possible_grants: u32,
    /// The call to be undone may still arrive over a broken connection, so an outcome `NotFound`
    /// does not end the undo.
    pub(super) may_arrive_late: bool,
    /// [`Backend::connection_resets`] when the call was sent, if it was not answered. If it has
    /// changed since, the call may arrive after its undo.
    pub(super) resets_when_sent: Option<u64>,
    /// A shutdown waits for this undo. False if only calls that may still arrive are left to undo.
    pub(super) blocks_shutdown: bool,
    /// Receives the outcome of the first call. The undo does not depend on it.
    pub(super) reply_to: Option<ReleaseOutcomeSender>,
}

/// Sender of a release's outcome.
pub(super) type ReleaseOutcomeSender = oneshot::Sender<Result<ReleaseOutcome, Error>>;

/// Operation that reverses a call.
#[derive(Debug, Clone)]
pub(super) enum UndoAction {
    Release,
    /// Returns the job of a claim to its queue and releases its lock. The job may be unknown.
    Unclaim(Option<JobId>),
    /// Completes the idempotency record of a direct run. A late call can take the record until this
    /// time.
    CompleteRecord(Box<IdempotencyRecordCompletion>, Instant),
}

impl LeaseAgent {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        let shared = AgentState {
            renewals: Arc::new(RenewalScheduler::new(Arc::clone(&backend))),
            backend,
            pending_undos: AtomicUsize::new(0),
            undos_done: Notify::new(),
            has_started: AtomicBool::new(false),
            shows_log_names: AtomicBool::new(false),
        };
        let runtime = Arc::new(AgentRuntime::new(shared));
        let weak_runtime = Arc::downgrade(&runtime);
        let on_new_server: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if let Some(runtime) = weak_runtime.upgrade() {
                runtime.recheck_all();
            }
        });
        runtime.shared.backend.on_new_server(Arc::downgrade(&on_new_server));
        Self { runtime, _on_new_server: on_new_server }
    }

    /// Sets whether log records show names: see [`Store::log_names`](super::Store::log_names).
    pub(super) fn set_log_names(&self, shown: bool) {
        self.runtime.shared.shows_log_names.store(shown, Ordering::Relaxed);
    }

    pub(super) fn shows_log_names(&self) -> bool {
        self.runtime.shared.shows_log_names.load(Ordering::Relaxed)
    }

    /// Schedules the renewals and the end of a new lease.
    pub(super) fn track_lease(&self, lease: &Arc<LockLease>) {
        self.runtime.ensure_running();
        self.runtime.shared.renewals.track(lease);
    }

    /// Returns the holds of all leases.
    pub(super) fn holds(&self) -> Vec<Arc<HoldState>> {
        self.runtime.shared.renewals.holds()
    }

    /// Checks all leases at once, since one of them may have been taken.
    pub(super) fn recheck_leases(&self) {
        self.runtime.recheck_all();
    }

    /// Returns the number of leases that are held.
    pub(super) fn tracked_lease_count(&self) -> usize {
        self.runtime.shared.renewals.len()
    }

    /// Returns the number of undos for which a shutdown waits.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "read by metrics only"))]
    pub(super) fn pending_undo_count(&self) -> usize {
        self.runtime.shared.pending_undos.load(Ordering::Relaxed)
    }

    /// Stops tracking a closed lease. This is done at once, so that there are no more timers than
    /// leases.
    pub(super) fn untrack_lease(&self, lease: &LockLease) {
        self.runtime.shared.renewals.untrack(lease);
    }

    /// Extends the lease to last `duration` from now. Returns false if it is lost.
    pub(super) async fn extend(
        &self,
        lease: &Arc<LockLease>,
        duration: Duration,
    ) -> Result<bool, Error> {
        self.runtime.shared.renewals.extend(lease, duration).await
    }

    /// Schedules an undo, ordered after the call to be undone: calls about one lock share a
    /// connection. Never waits. Without a runtime the lease expires by itself.
    pub(super) fn schedule_undo(&self, request: UndoRequest) {
        let pending = PendingUndoGuard::new(&self.runtime.shared, request.blocks_shutdown);
        // Sent ahead of all later calls about this lock. The undo of a claim is another operation
        // and not urgent: no worker gets the job until then.
        let first_call = match request.action {
            UndoAction::Release => {
                let UndoRequest { key, token, mode, .. } = &request;
                self.runtime.shared.backend.send_release(key.clone(), token.clone(), *mode)
            }
            UndoAction::Unclaim(_) | UndoAction::CompleteRecord(..) => None,
        };
        if let Some(mailbox) = self.runtime.ensure_running() {
            // If the channel is closed, the message is dropped together with the guard that counts
            // it.
            let _ = mailbox.tx.send(AgentMessage::Undo(request, first_call, pending));
        }
    }

    /// Resolves when no undo is left for which a shutdown waits.
    pub(crate) async fn wait_until_drained(&self) {
        loop {
            let undos_done = self.runtime.shared.undos_done.notified();
            if self.runtime.shared.pending_undos.load(Ordering::Acquire) == 0 {
                return;
            }
            // The undo may have been sent to a runtime that is not driven.
            self.runtime.ensure_running();
            undos_done.await;
        }
    }

    /// Runs `work` beside the agent, on a runtime that is driven; finding one may take a while. The
    /// returned `Weak` is dead once the work has ended or was dropped with its runtime. Returns
    /// `None` if there is no runtime.
    pub(super) fn spawn_long_running(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<Weak<()>> {
        let liveness = Arc::new(());
        let weak_liveness = Arc::downgrade(&liveness);
        let work = async move {
            let _liveness = liveness;
            work.await;
        };
        self.runtime.ensure_running()?.tx.send(AgentMessage::Spawn(Box::pin(work))).ok()?;
        Some(weak_liveness)
    }

    /// Starts the agent if none has started. Called where work given to
    /// [`spawn_long_running`](Self::spawn_long_running) is used: its caller may be gone before any
    /// driven runtime was found.
    pub(crate) fn ensure_started(&self) {
        if !self.runtime.shared.has_started.load(Ordering::Acquire) {
            self.runtime.ensure_running();
        }
    }

    /// Returns the runtime for background work, which lives as long as the store if there is one,
    /// unlike the runtime of a request. Until the agent has started on it, it is the caller's.
    pub(super) fn runtime_handle(&self) -> Option<Handle> {
        self.runtime.ensure_running().map(AgentMailbox::runtime_handle)
    }
}

impl fmt::Debug for LeaseAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseAgent").field("held", &self.runtime.shared.renewals.len()).finish()
    }
}

/// Counts an undo until it is finished, or dropped with the runtime that was to run it.
pub(super) struct PendingUndoGuard {
    shared: Arc<AgentState>,
    is_counted: bool,
}

impl PendingUndoGuard {
    fn new(shared: &Arc<AgentState>, is_counted: bool) -> Self {
        if is_counted {
            shared.pending_undos.fetch_add(1, Ordering::AcqRel);
        }
        Self { shared: Arc::clone(shared), is_counted }
    }

    fn finish(&mut self) {
        let was_counted = std::mem::take(&mut self.is_counted);
        if was_counted && self.shared.pending_undos.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.undos_done.notify_waiters();
        }
    }
}

impl Drop for PendingUndoGuard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Runs until the store handle is dropped and the channel is empty.
pub(super) async fn run_agent(
    shared: Arc<AgentState>,
    mut mailbox: mpsc::UnboundedReceiver<AgentMessage>,
) {
    shared.has_started.store(true, Ordering::Release);
    loop {
        let next_wakeup = shared.renewals.next_wakeup();
        let renewals_due = async {
            match next_wakeup {
                Some(wakeup_at) => tokio::time::sleep_until(wakeup_at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => match message {
                Some(AgentMessage::Undo(request, first_call, pending)) => {
                    drop(tokio::spawn(run_undo(request, first_call, pending)));
                }
                Some(AgentMessage::Spawn(work)) => drop(tokio::spawn(work)),
                None => return,
            },
            () = renewals_due => shared.renewals.tick(),
            () = shared.renewals.rescheduled() => {}
        }
    }
}

/// Repeats the undo until the store has answered for all possible grants, or until the grants must
/// have expired.
async fn run_undo(
    request: UndoRequest,
    mut first_call: Option<StoreFuture<'static, ReleaseOutcome>>,
    mut pending: PendingUndoGuard,
) {
    let backend = Arc::clone(&pending.shared.backend);
    let UndoRequest {
        key,
        token,
        mode,
        action,
        mut expires_at,
        mut possible_grants,
        may_arrive_late,
        resets_when_sent,
        mut reply_to,
        ..
    } = request;
    let mut pause = Duration::from_millis(20);
    loop {
        let outcome = match (first_call.take(), &action) {
            (Some(call), _) => call.await,
            (None, UndoAction::Release) => backend.release(key.clone(), token.clone(), mode).await,
            (None, UndoAction::Unclaim(job)) => undo_claim(&*backend, &key, &token, job).await,
            (None, UndoAction::CompleteRecord(completion, _)) => {
                completion.complete(&*backend).await
            }
        };
        if let Some(reply_to) = reply_to.take() {
            let _ = reply_to.send(outcome.clone());
        }
        match outcome {
            Ok(ReleaseOutcome::NotFound | ReleaseOutcome::NotFoundOnRetry)
                if may_arrive_late
                    || resets_when_sent
                        .is_some_and(|resets| resets != backend.connection_resets()) =>
            {
                if let UndoAction::CompleteRecord(_, late_until) = &action {
                    expires_at = expires_at.min(*late_until);
                }
            }
            Ok(outcome) => {
                let shows_names = pending.shared.shows_log_names.load(Ordering::Relaxed);
                let (node, lock) = (token.node(), key.log_name(shows_names));
                tracing::debug!(
                    node, %lock, ?outcome, "lock released in the background after a drop"
                );
                possible_grants = possible_grants.saturating_sub(1);
                if possible_grants == 0 || !may_arrive_late {
                    break;
                }
                pending.finish();
            }
            // The undo is repeated. Its failure says nothing about the call that it undoes.
            Err(_) => {}
        }
        if Instant::now() + pause > expires_at {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Undoes a claim. A mere release would leave a job that looks as if its worker had crashed.
async fn undo_claim(
    backend: &dyn Backend,
    key: &Key,
    token: &LockToken,
    job: &Option<JobId>,
) -> Result<ReleaseOutcome, Error> {
    let was_claimed = backend.unclaim(key.clone(), token.clone(), job.clone()).await?;
    Ok(if was_claimed { ReleaseOutcome::Withdrawn } else { ReleaseOutcome::NotFound })
}
