//! Idle workers: the end of `tasks_poll.lua`, and `poll_idle`.

use std::{sync::Arc, time::Duration};

use super::{NextEventPoller, QueueTransaction, task_poll::DueTasks};
use crate::{
    clock::saturating_micros,
    store::{backend::NodeId, tasks::TaskPollCommand},
};

impl QueueTransaction<'_> {
    /// Lists the worker as idle or removes it, and wakes another worker if there is work for it.
    /// Returns the time until the worker's next poll, and true if it is listed as idle.
    pub(super) fn update_idle_worker(
        &mut self,
        call: &TaskPollCommand,
        due: &DueTasks,
        begun: usize,
        sooner: Option<u64>,
    ) -> (Option<Duration>, bool) {
        let (me, mut event) = (polling_worker(call), due.next_event_us);
        let guarded = self.timer_worker().map(|guard| (guard.worker == me, guard.next_event_us));
        if !call.idle_timeout.is_zero() && call.max_runs > begun && !due.is_truncated {
            if let Some((lapse, _)) = self.queue.running.first() {
                event = Some(event.map_or(lapse, |event| event.min(lapse)));
            }
            let until = self.now_us.saturating_add(saturating_micros(call.idle_timeout));
            // Also if it is listed already: otherwise the entry would expire before its next poll.
            self.queue.idle_workers.set(&me, until);
            let takes = |event: &u64| guarded.is_none_or(|(own, known)| own || *event < known);
            let event = event.filter(takes);
            if let Some(event) = event {
                self.queue.timer_worker = Some(NextEventPoller {
                    idle_until_us: until,
                    next_event_us: event,
                    worker: me,
                });
            }
            let wait = event.map(|at| Duration::from_micros(at.saturating_sub(self.now_us)));
            return (wait, true);
        }
        if call.can_stay_idle || call.idle_timeout.is_zero() {
            self.queue.idle_workers.remove(&me);
        }
        if guarded.is_some_and(|(own, _)| own) {
            self.queue.timer_worker = None;
            if event.is_some() {
                self.wake_idle_worker();
            }
        } else if due.has_more_due && !due.is_at_limit {
            self.wake_idle_worker();
        } else if sooner.is_some() && event == sooner {
            self.wake_timer_worker();
        }
        (due.is_truncated.then_some(Duration::ZERO), false)
    }

    /// Two plain commands on Redis.
    pub(super) fn poll_idle(&mut self, node: &NodeId, worker: &str, longer: Duration) -> bool {
        let me = idle_worker_name(node, worker);
        let Some(until) = self.queue.idle_workers.get(&me) else { return false };
        self.queue.idle_workers.set(&me, until.saturating_add(saturating_micros(longer)));
        self.is_drained()
    }

    /// Returns true if no task waits or runs.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.waiting.iter().next().is_none() && self.queue.running.len() == 0
    }
}

pub(super) fn polling_worker(call: &TaskPollCommand) -> Arc<str> {
    idle_worker_name(&call.node, &call.worker)
}

/// Returns the name of a worker in the list of idle workers.
fn idle_worker_name(node: &NodeId, worker: &str) -> Arc<str> {
    format!("{node}:{worker}").into()
}
