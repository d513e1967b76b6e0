//! Idle workers: the end of `tasks_settle_and_poll.lua`, and `poll_idle`.

use std::{sync::Arc, time::Duration};

use super::{NextEventPoller, QueueTransaction, settle_and_poll::DueTasks};
use crate::{
    durations::saturating_micros,
    store::{backend::NodeId, tasks::TaskPollCommand},
};

/// Result of `update_idle_worker`.
pub(super) struct IdleUpdate {
    /// Time until the worker's next poll, if it has to poll by itself.
    pub(super) next_poll_in: Option<Duration>,
    pub(super) is_listed_idle: bool,
}

impl QueueTransaction<'_> {
    /// Lists the worker as idle or removes it, and wakes another worker if there is work for it.
    pub(super) fn update_idle_worker(
        &mut self,
        command: &TaskPollCommand,
        due: &DueTasks,
        started_runs: usize,
        earliest_retry_us: Option<u64>,
    ) -> IdleUpdate {
        if !command.idle_timeout.is_zero() && command.max_runs > started_runs && !due.is_truncated {
            return self.list_as_idle(command, due.next_event_us);
        }
        let worker_name = polling_worker(command);
        let is_timer_worker =
            self.timer_worker().is_some_and(|poller| poller.worker == worker_name);
        if command.can_stay_idle || command.idle_timeout.is_zero() {
            self.queue.idle_workers.remove(&worker_name);
        }
        if is_timer_worker {
            self.queue.timer_worker = None;
            if due.next_event_us.is_some() {
                self.wake_idle_worker();
            }
        } else if due.has_more_due && !due.is_at_limit {
            self.wake_idle_worker();
        } else if earliest_retry_us.is_some() && due.next_event_us == earliest_retry_us {
            self.wake_timer_worker();
        }
        let next_poll_in = due.is_truncated.then_some(Duration::ZERO);
        IdleUpdate { next_poll_in, is_listed_idle: false }
    }

    /// Lists the worker as idle. It becomes the timer worker if no other polls at the next event.
    fn list_as_idle(&mut self, command: &TaskPollCommand, next_due_us: Option<u64>) -> IdleUpdate {
        let (worker_name, mut event) = (polling_worker(command), next_due_us);
        let timer_worker =
            self.timer_worker().map(|poller| (poller.worker == worker_name, poller.next_event_us));
        if let Some((lease_end_us, _)) = self.queue.running.first() {
            event = Some(event.map_or(lease_end_us, |event| event.min(lease_end_us)));
        }
        let idle_until_us = self.now_us.saturating_add(saturating_micros(command.idle_timeout));
        // Also if it is listed already: otherwise the entry would expire before its next poll.
        self.queue.idle_workers.set(&worker_name, idle_until_us);
        let is_earlier = |event: &u64| {
            timer_worker.is_none_or(|(is_own, next_event_us)| is_own || *event < next_event_us)
        };
        let event = event.filter(is_earlier);
        if let Some(event) = event {
            self.queue.timer_worker =
                Some(NextEventPoller { idle_until_us, next_event_us: event, worker: worker_name });
        }
        let next_poll_in = event.map(|at| Duration::from_micros(at.saturating_sub(self.now_us)));
        IdleUpdate { next_poll_in, is_listed_idle: true }
    }

    /// Two plain commands on Redis.
    pub(super) fn poll_idle(&mut self, node: &NodeId, worker: &str, extension: Duration) -> bool {
        let worker_name = idle_worker_name(node, worker);
        let Some(idle_until_us) = self.queue.idle_workers.get(&worker_name) else { return false };
        self.queue
            .idle_workers
            .set(&worker_name, idle_until_us.saturating_add(saturating_micros(extension)));
        self.is_drained()
    }

    /// Returns true if no task waits or runs.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.waiting.iter().next().is_none() && self.queue.running.len() == 0
    }
}

pub(super) fn polling_worker(command: &TaskPollCommand) -> Arc<str> {
    idle_worker_name(&command.node, &command.worker)
}

/// Returns the name of a worker in the list of idle workers.
fn idle_worker_name(node: &NodeId, worker: &str) -> Arc<str> {
    format!("{node}:{worker}").into()
}
