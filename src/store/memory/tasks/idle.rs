//! What becomes of a worker that has nothing to do: the end of `tasks_turn.lua`, and `still_idle`.

use std::{sync::Arc, time::Duration};

use super::{At, Guard, turn::Due};
use crate::{
    clock::micros,
    store::{backend::NodeId, tasks::TaskPollCommand},
};

impl At<'_> {
    /// What becomes of the worker now, and who else has something to do.
    pub(super) fn rest(
        &mut self,
        call: &TaskPollCommand,
        due: &Due,
        begun: usize,
        sooner: Option<u64>,
    ) -> (Option<Duration>, bool) {
        let (me, mut event) = (me(call), due.event);
        let guarded = self.guard().map(|guard| (guard.who == me, guard.event));
        if !call.idle_timeout.is_zero() && call.max_runs > begun && !due.cut {
            if let Some((lapse, _)) = self.queue.running.first() {
                event = Some(event.map_or(lapse, |event| event.min(lapse)));
            }
            let until = self.now.saturating_add(micros(call.idle_timeout));
            // Also if it stands there: else its time would be over before its next look.
            self.queue.idle.set(&me, until);
            let takes = |event: &u64| guarded.is_none_or(|(own, known)| own || *event < known);
            let event = event.filter(takes);
            if let Some(event) = event {
                self.queue.guard = Some(Guard { until, event, who: me });
            }
            let wait = event.map(|at| Duration::from_micros(at.saturating_sub(self.now)));
            return (wait, true);
        }
        if call.can_stay_idle || call.idle_timeout.is_zero() {
            self.queue.idle.remove(&me);
        }
        if guarded.is_some_and(|(own, _)| own) {
            self.queue.guard = None;
            if event.is_some() {
                self.wake();
            }
        } else if due.left && !due.held {
            self.wake();
        } else if sooner.is_some() && event == sooner {
            self.tell_sooner();
        }
        (due.cut.then_some(Duration::ZERO), false)
    }

    /// Two plain commands on the server.
    pub(super) fn still_idle(&mut self, node: &NodeId, worker: &str, longer: Duration) -> bool {
        let me = idler(node, worker);
        let Some(until) = self.queue.idle.get(&me) else { return false };
        self.queue.idle.set(&me, until.saturating_add(micros(longer)));
        self.quiet()
    }

    /// Nothing waits or runs.
    pub(super) fn quiet(&self) -> bool {
        self.queue.waiting.iter().next().is_none() && self.queue.running.len() == 0
    }
}

pub(super) fn me(call: &TaskPollCommand) -> Arc<str> {
    idler(&call.node, &call.worker)
}

/// What a worker is called among the idle.
fn idler(node: &NodeId, worker: &str) -> Arc<str> {
    format!("{node}:{worker}").into()
}
