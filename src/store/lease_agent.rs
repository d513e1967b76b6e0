//! The agent: has leases renewed, and gives back what was dropped.
//!
//! It is one task per store handle, started when it is first needed ([`seat`](super::seat) says where). Everything it is told goes through one unbounded mailbox,
//! so a `Drop` can talk to it without waiting, and without a runtime of its own.
//!
//! - **Renewal** is in [`rounds`](super::rounds).
//! - **Giving back** is the undo of whatever a nonce may have done. It is sent again until the store
//!   has answered, or until the lease must have ended by itself.

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
    lock_lease::LockLease,
    record_completion::RecordCompletion,
    renewal_scheduler::RenewalScheduler,
};
use crate::{error::Error, key::Key};

pub(crate) struct LeaseAgent {
    runtime: Arc<AgentRuntime>,
    /// Called by the store when it has become another server; it lives as long as this.
    _on_new_server: Arc<dyn Fn() + Send + Sync>,
}

pub(super) struct AgentState {
    backend: Arc<dyn Backend>,
    pub(super) renewals: Arc<RenewalScheduler>,
    /// Messages that are not dealt with yet.
    pending_undos: AtomicUsize,
    undos_done: Notify,
    /// An agent of this store has run.
    has_started: AtomicBool,
}

pub(super) enum AgentMessage {
    /// What is to be given back, and the outcome of the first call if it is on its way.
    Undo(UndoRequest, Option<StoreFuture<'static, ReleaseOutcome>>, PendingUndoGuard),
    /// What is to run beside the agent.
    Spawn(BoxFuture<'static, ()>),
}

/// What is to be given back.
pub(super) struct UndoRequest {
    pub(super) key: Key,
    pub(super) token: LockToken,
    pub(super) mode: LockMode,
    pub(super) action: UndoAction,
    /// When it has ended by itself.
    pub(super) expires_at: Instant,
    /// How many of its calls may each have done something that is not undone, one after the undo of the other. Those that ran
    /// before it are undone as one.
    pub(super) possible_grants: u32,
    /// The call to be undone may still lie in a broken socket: "nothing there" is not the last word.
    pub(super) may_arrive_late: bool,
    /// How often ways to the store had been left ([`Backend::connection_resets`]) when the call was sent that is to be undone,
    /// if it has not been answered. Left since then, it may come behind its undo.
    pub(super) resets_when_sent: Option<u64>,
    /// A shutdown waits until it is undone. Not for what may merely come yet, when all that is known is undone.
    pub(super) blocks_shutdown: bool,
    /// Is told what the first call came to; it goes on without whether anybody listens or not.
    pub(super) reply_to: Option<ReleaseOutcomeSender>,
}

/// Somebody who wants to know how giving back went.
pub(super) type ReleaseOutcomeSender = oneshot::Sender<Result<ReleaseOutcome, Error>>;

/// What undoes a call.
#[derive(Debug, Clone)]
pub(super) enum UndoAction {
    Release,
    /// Of a claim: the job goes back in line, together with its lock. Which one it is may not be known.
    Unclaim(Option<JobId>),
    /// Of the record of a request that runs at once; and until when a call for it that is on its way may take it.
    CompleteRecord(Box<RecordCompletion>, Instant),
}

impl LeaseAgent {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        let rounds = Arc::new(RenewalScheduler::new(Arc::clone(&backend)));
        let (pending, begun) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = AgentState {
            backend,
            renewals: rounds,
            pending_undos: pending,
            undos_done: Notify::new(),
            has_started: begun,
        };
        let seat = Arc::new(AgentRuntime::new(shared));
        let weak = Arc::downgrade(&seat);
        let verify: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if let Some(seat) = weak.upgrade() {
                seat.recheck_all();
            }
        });
        seat.shared.backend.on_new_server(Arc::downgrade(&verify));
        Self { runtime: seat, _on_new_server: verify }
    }

    /// Takes care of a new hold: renewal, and its end.
    pub(super) fn track_lease(&self, lease: &Arc<LockLease>) {
        self.runtime.ensure_running();
        self.runtime.shared.renewals.track(lease);
    }

    /// A hold that is over leaves the rounds at once: they are as long as the number of holds.
    pub(super) fn untrack_lease(&self, lease: &LockLease) {
        self.runtime.shared.renewals.untrack(lease);
    }

    /// Makes the lease last for so long from now; false if it is lost.
    pub(super) async fn extend(&self, lease: &Arc<LockLease>, by: Duration) -> Result<bool, Error> {
        self.runtime.shared.renewals.extend(lease, by).await
    }

    /// Has something given back, ordered after the call that may have taken it (calls about one lock
    /// share a connection). Never waits; if there is no runtime left to do it, the lease ends by itself.
    pub(super) fn schedule_undo(&self, message: UndoRequest) {
        let pending = PendingUndoGuard::new(&self.runtime.shared, message.blocks_shutdown);
        // On its way before anything that is asked of this lock from now on. The undo of a claim is another
        // step, and has time: its job is nobody's until then.
        let first = match message.action {
            UndoAction::Release => {
                let UndoRequest { key, token: me, mode, .. } = &message;
                self.runtime.shared.backend.send_release(key.clone(), me.clone(), *mode)
            }
            UndoAction::Unclaim(_) | UndoAction::CompleteRecord(..) => None,
        };
        if let Some(mailbox) = self.runtime.ensure_running() {
            // A message that is not heard any more is dropped, and with it what counts it.
            let _ = mailbox.tx.send(AgentMessage::Undo(message, first, pending));
        }
    }

    /// Resolves when nothing is left to give back.
    pub(crate) async fn wait_until_drained(&self) {
        loop {
            let idle = self.runtime.shared.undos_done.notified();
            if self.runtime.shared.pending_undos.load(Ordering::Acquire) == 0 {
                return;
            }
            // Whoever was told of it may be on a runtime that nobody drives.
            self.runtime.ensure_running();
            idle.await;
        }
    }

    /// Has this run beside the agent: on a runtime that somebody drives, though it be a while until that is known.
    /// Dead once it has ended, or was dropped with its runtime; `None` if there is none.
    pub(super) fn spawn_long_running(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Option<Weak<()>> {
        let life = Arc::new(());
        let alive = Arc::downgrade(&life);
        let work = async move {
            let _life = life;
            work.await;
        };
        self.runtime.ensure_running()?.tx.send(AgentMessage::Spawn(Box::pin(work))).ok()?;
        Some(alive)
    }

    /// To be called where something is used that was given to [`spawn_long_running`](Self::spawn_long_running): whoever gave it may have gone before anybody
    /// was found who drives his runtime or the store's own.
    pub(crate) fn ensure_started(&self) {
        if !self.runtime.shared.has_started.load(Ordering::Acquire) {
            self.runtime.ensure_running();
        }
    }

    /// Where work in the background should run: a runtime that lives as long as the store, if there is
    /// one, rather than that of the request that happens to ask. The caller's until something has run there.
    pub(super) fn runtime_handle(&self) -> Option<Handle> {
        self.runtime.ensure_running().map(AgentMailbox::runtime_handle)
    }
}

#[cfg(test)]
impl LeaseAgent {
    /// As if the store had become another server.
    pub(super) fn verify(&self) {
        self.runtime.recheck_all();
    }
}

impl fmt::Debug for LeaseAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseAgent").field("held", &self.runtime.shared.renewals.len()).finish()
    }
}

/// Counts a message until it is dealt with, or dropped with the runtime that was to deal with it.
pub(super) struct PendingUndoGuard {
    shared: Arc<AgentState>,
    is_counted: bool,
}

impl PendingUndoGuard {
    fn new(shared: &Arc<AgentState>, counts: bool) -> Self {
        if counts {
            shared.pending_undos.fetch_add(1, Ordering::AcqRel);
        }
        Self { shared: Arc::clone(shared), is_counted: counts }
    }

    fn finish(&mut self) {
        let counted = std::mem::take(&mut self.is_counted);
        if counted && self.shared.pending_undos.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.undos_done.notify_waiters();
        }
    }
}

impl Drop for PendingUndoGuard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Ends when the store handle is gone and its mailbox is empty.
pub(super) async fn run_agent(
    shared: Arc<AgentState>,
    mut mailbox: mpsc::UnboundedReceiver<AgentMessage>,
) {
    shared.has_started.store(true, Ordering::Release);
    loop {
        let next = shared.renewals.next_wakeup();
        let round = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            message = mailbox.recv() => match message {
                Some(AgentMessage::Undo(message, first, pending)) => {
                    drop(tokio::spawn(run_undo(message, first, pending)));
                }
                Some(AgentMessage::Spawn(work)) => drop(tokio::spawn(work)),
                None => return,
            },
            () = round => shared.renewals.tick(),
            () = shared.renewals.rescheduled() => {}
        }
    }
}

async fn run_undo(
    message: UndoRequest,
    mut first: Option<StoreFuture<'static, ReleaseOutcome>>,
    mut pending: PendingUndoGuard,
) {
    let backend = Arc::clone(&pending.shared.backend);
    let UndoRequest {
        key,
        token: me,
        mode,
        action: undo,
        expires_at: mut until,
        possible_grants: mut finds,
        may_arrive_late: doubtful,
        resets_when_sent: silences,
        reply_to: mut tell,
        ..
    } = message;
    let mut pause = Duration::from_millis(20);
    loop {
        let outcome = match (first.take(), &undo) {
            (Some(first), _) => first.await,
            (None, UndoAction::Release) => backend.release(key.clone(), me.clone(), mode).await,
            (None, UndoAction::Unclaim(job)) => undo_claim(&*backend, &key, &me, job).await,
            (None, UndoAction::CompleteRecord(ending, _)) => ending.complete(&*backend).await,
        };
        if let Some(tell) = tell.take() {
            let _ = tell.send(outcome.clone());
        }
        match outcome {
            Ok(ReleaseOutcome::NotFound | ReleaseOutcome::NotFoundOnRetry)
                if doubtful
                    || silences.is_some_and(|before| before != backend.connection_resets()) =>
            {
                if let UndoAction::CompleteRecord(_, comes) = &undo {
                    until = until.min(*comes);
                }
            }
            Ok(outcome) => {
                let (node, lock) = (me.node(), key.log_hash());
                tracing::debug!(node, %lock, ?outcome, "given back after a drop");
                finds = finds.saturating_sub(1);
                if finds == 0 || !doubtful {
                    break;
                }
                pending.finish();
            }
            // An undo that may have run is no doubt about what it undoes.
            Err(_) => {}
        }
        if Instant::now() + pause > until {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// The undo of a claim: a mere release would leave a job that looks as if its worker had died.
async fn undo_claim(
    backend: &dyn Backend,
    key: &Key,
    me: &LockToken,
    job: &Option<JobId>,
) -> Result<ReleaseOutcome, Error> {
    let stood = backend.unclaim(key.clone(), me.clone(), job.clone()).await?;
    Ok(if stood { ReleaseOutcome::Withdrawn } else { ReleaseOutcome::NotFound })
}
