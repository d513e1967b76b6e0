//! Drain of a queue worker: no new runs, a time limit for current ones, and the return of their
//! tasks.

use std::{collections::HashSet, pin::pin, sync::atomic::Ordering, time::Duration};

use tokio::{
    task::{Id, JoinError},
    time::{Instant, timeout, timeout_at},
};

use super::{
    collect_ended_runs::task_result,
    poll_until_answered::{NotExecutedFlag, poll_until_answered},
    queue_worker_loop::{QueueWorkerLoop, await_optional},
    task_run::{RunningTask, TaskRunResult},
};
use crate::store::{RunToken, TaskFault, TaskOutcome, TaskSettlement};

/// Interval at which a drain checks for an unavailable store.
const OUTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Limit on the last polls of a stopping worker, including the wait for the runs that they settle.
const FINAL_POLLS_TIMEOUT: Duration = Duration::from_secs(2);

/// Limit on the wait for aborted runs to be dropped: a handler that blocks its thread may never be.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

impl QueueWorkerLoop {
    /// Starts no more tasks, or starts some again, as an operator has ordered for this process.
    /// What runs goes on. A task that the poll in flight still claims is returned.
    pub(super) fn apply_process_drain(&mut self) {
        let (queue, is_drained) = (self.worker.log_name(), self.worker.store.is_drained());
        tracing::info!(%queue, is_drained, "an operator has drained or resumed this worker");
        (self.was_woken, self.next_poll_at) = (true, Some(Instant::now()));
    }

    /// Lets current runs end until `cut_off` resolves, then drops them and returns their tasks.
    pub(super) async fn drain(&mut self, cut_off: impl Future<Output = ()>) {
        self.is_draining = true;
        let mut cut_off = pin!(cut_off);
        loop {
            // The store refused this poll, so it has started no run that must be returned.
            let was_refused =
                self.settlements_in_flight == 0 && self.not_executed.load(Ordering::Relaxed);
            let is_idle = self.running.is_empty() && self.pending_settlements.is_empty();
            if is_idle && (self.pending_poll.is_none() || was_refused) {
                break;
            }
            tokio::select! {
                () = &mut cut_off => break,
                () = self.step() => {}
                () = tokio::time::sleep(OUTAGE_CHECK_INTERVAL) => {}
            }
        }
        let _ = timeout(FINAL_POLLS_TIMEOUT, self.return_runs_and_settle()).await;
        self.warn_unreturned_tasks();
    }

    async fn return_runs_and_settle(&mut self) {
        self.return_runs().await;
        // At least one poll, to leave the idle workers.
        loop {
            let poll = self.build_poll();
            self.settlements_in_flight = poll.settlements.len();
            let store = self.worker.store.clone();
            let answer = poll_until_answered(store, poll, NotExecutedFlag::default()).await;
            self.settlements_in_flight = 0;
            self.apply_answer(answer);
            if self.pending_settlements.is_empty() {
                return;
            }
        }
    }

    fn warn_unreturned_tasks(&self) {
        let (queue, running) = (self.worker.log_name(), self.running.len());
        let unreturned = self.settlements_in_flight + self.pending_settlements.len() + running;
        // A refused poll has started nothing.
        let in_doubt = self.pending_poll.is_some() && !self.not_executed.load(Ordering::Relaxed);
        if unreturned > 0 || in_doubt {
            tracing::warn!(
                %queue, left = unreturned, running,
                "tasks not returned at shutdown; they count as crashed after their leases"
            );
        }
    }

    /// Logs the end of the worker, and the number of tasks that end with it.
    pub(super) fn log_stop(&mut self) {
        // First: of two workers that stop at once, one at least finds that it is the last.
        self.registration = None;
        let (queue, store) = (self.worker.log_name(), &self.worker.store);
        let name = self.worker.queue.operator_name();
        let workers = store.counters().workers();
        // Another worker of this process runs them.
        let is_last_worker = workers.iter().all(|other| other.queue.as_deref() != Some(&*name));
        let lost = if is_last_worker {
            store.backend().volatile_task_count(&self.worker.queue)
        } else {
            0
        };
        if lost > 0 {
            tracing::warn!(
                %queue, lost,
                "queue worker stopped; the tasks that have not run are lost when this process \
                 ends, since they are in its memory; connect the store to a server by \
                 Store::connect(..)"
            );
        } else {
            tracing::info!(%queue, "queue worker stopped");
        }
    }

    /// Aborts the unfinished runs and returns their tasks to the queue, uncharged. A task that must
    /// not run twice becomes a dead letter, since it may have run.
    ///
    /// A task is settled only after its run was dropped. A handler that blocks its thread prevents
    /// that for its own task, and for no other. The leases are not renewed anymore, so runs must
    /// end before the wait for a pending poll.
    async fn return_runs(&mut self) {
        self.run_tasks.abort_all();
        let (mut dropped, deadline) = (HashSet::new(), Instant::now() + ABORT_TIMEOUT);
        if self.pending_poll.is_some() {
            let outcome = await_optional(&mut self.pending_poll).await;
            (self.pending_poll, self.settlements_in_flight) = (None, 0);
            self.apply_outcome(outcome);
        }
        let drops = async {
            while let Some(ended) = self.run_tasks.join_next().await {
                self.record_aborted_run(ended, &mut dropped);
            }
        };
        let _ = timeout_at(deadline, drops).await;
        // All dropped runs, even if the poll took all the time.
        while let Some(ended) = self.run_tasks.try_join_next() {
            self.record_aborted_run(ended, &mut dropped);
        }
        let is_dropped = |run: &RunningTask| dropped.contains(&run.abort_handle.id());
        let dropped_runs: Vec<_> = self.running.extract_if(|_, run| is_dropped(run)).collect();
        for (_, run) in dropped_runs {
            let RunningTask {
                token,
                record_bytes,
                unique_key,
                retry_after_crash,
                cancellation,
                started_at,
                ..
            } = run;
            let outcome = if cancellation.is_cancelled() {
                TaskOutcome::Cancelled
            } else if retry_after_crash {
                TaskOutcome::ReturnToQueue { delay: Duration::ZERO }
            } else {
                TaskOutcome::Dead {
                    fault: TaskFault::Crashed,
                    reason: "drained, may have run".into(),
                }
            };
            self.count_run(task_result(&outcome), Some(started_at.elapsed()));
            self.pending_settlements.push(TaskSettlement {
                run: token,
                record_bytes,
                unique_key,
                outcome,
            });
        }
    }

    fn record_aborted_run(
        &mut self,
        ended: Result<(RunToken, TaskRunResult), JoinError>,
        dropped: &mut HashSet<Id>,
    ) {
        dropped.extend(ended.as_ref().err().map(JoinError::id));
        self.record_ended_run(ended);
    }
}
