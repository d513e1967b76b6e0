//! Records events in the counters of a store handle and in the metrics of the process.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

#[cfg(feature = "metrics")]
use super::metric_list;
use super::{
    outcomes::{
        DecisionOutcome, DecisionSource, EnqueueResult, HandoverVia, LockRequestOutcome,
        PushResult, RunResult, StoreCallOutcome, TaskResult, WebhookResult,
    },
    store_counters::StoreCounters,
};

/// Label of a request that matched no route, or whose route is unknown.
#[cfg(feature = "metrics")]
const UNKNOWN_ROUTE: &str = "unknown";

/// Result of one policy for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyResult<'a> {
    pub(crate) policy: &'a str,
    pub(crate) outcome: DecisionOutcome,
    pub(crate) source: DecisionSource,
    pub(crate) is_shadow: bool,
    /// Part of the quota that is left, if the store has told it.
    pub(crate) remaining_ratio: Option<f64>,
}

impl StoreCounters {
    /// Records the outcome of a request for a lock. `label` is the key without its value.
    pub(crate) fn record_lock_request(
        &self,
        label: &str,
        outcome: LockRequestOutcome,
        wait: Duration,
    ) {
        self.lock_requests.increment(outcome.index());
        #[cfg(feature = "metrics")]
        {
            let label = lock_label(label);
            metric_list::LOCK_REQUESTS.increment(label, &[outcome.index()]);
            metric_list::LOCK_WAIT.record(label, wait.as_secs_f64());
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (label, wait);
    }

    /// Records the loss of a lock; `cause` is an index of the causes.
    pub(crate) fn record_lock_loss(&self, label: &str, cause: usize) {
        self.lock_losses.fetch_add(1, Ordering::Relaxed);
        #[cfg(feature = "metrics")]
        metric_list::LOCK_LOSSES.increment(lock_label(label), &[cause]);
        #[cfg(not(feature = "metrics"))]
        let _ = (label, cause);
    }

    pub(crate) fn record_policy_result(&self, result: PolicyResult<'_>) {
        let PolicyResult { policy, outcome, source, is_shadow, remaining_ratio } = result;
        if !is_shadow {
            self.decisions.increment(outcome.index());
        }
        #[cfg(feature = "metrics")]
        {
            let indices = [outcome.index(), source.index(), usize::from(is_shadow)];
            metric_list::DECISIONS.increment(policy, &indices);
            if let Some(ratio) = remaining_ratio {
                metric_list::REMAINING_RATIO.record(policy, ratio);
            }
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (policy, source, remaining_ratio);
    }

    pub(crate) fn record_enqueue(&self, route: Option<&str>, result: EnqueueResult) {
        self.accepted.increment(result.index());
        #[cfg(feature = "metrics")]
        metric_list::DEFERRED.increment(route.unwrap_or(UNKNOWN_ROUTE), &[result.index()]);
        #[cfg(not(feature = "metrics"))]
        let _ = route;
    }

    /// Records the end of a run of a deferred request; `duration` is `None` if it is not known.
    pub(crate) fn record_run(
        &self,
        route: Option<&str>,
        result: RunResult,
        duration: Option<Duration>,
    ) {
        self.runs.increment(result.index());
        #[cfg(feature = "metrics")]
        {
            let route = route.unwrap_or(UNKNOWN_ROUTE);
            metric_list::RUNS.increment(route, &[result.index()]);
            if let Some(duration) = duration {
                metric_list::DEFERRED_RUN.record(route, duration.as_secs_f64());
            }
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (route, duration);
    }

    pub(crate) fn record_push(&self, queue: &str, result: PushResult) {
        self.pushes.increment(result.index());
        #[cfg(feature = "metrics")]
        metric_list::TASKS_PUSHED.increment(queue, &[result.index()]);
        #[cfg(not(feature = "metrics"))]
        let _ = queue;
    }

    /// Records the end of a run of a task; `duration` is `None` if it is not known.
    pub(crate) fn record_task_run(
        &self,
        queue: &str,
        result: TaskResult,
        duration: Option<Duration>,
    ) {
        self.task_runs.increment(result.index());
        #[cfg(feature = "metrics")]
        {
            metric_list::TASK_RUNS.increment(queue, &[result.index()]);
            if let Some(duration) = duration {
                metric_list::TASK_RUN.record(queue, duration.as_secs_f64());
            }
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (queue, duration);
    }
}

/// Records how long a lock was held.
pub(crate) fn record_lock_release(label: &str, held: Duration) {
    #[cfg(feature = "metrics")]
    metric_list::LOCK_HOLD.record(lock_label(label), held.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (label, held);
}

/// Records a handover within the process.
pub(crate) fn record_handover(label: &str, via: HandoverVia) {
    #[cfg(feature = "metrics")]
    metric_list::LOCK_HANDOVERS.increment(lock_label(label), &[via.index()]);
    #[cfg(not(feature = "metrics"))]
    let _ = (label, via);
}

/// Records the time between the acceptance of a request and the start of its first run.
pub(crate) fn record_deferred_wait(route: Option<&str>, waited: Duration) {
    #[cfg(feature = "metrics")]
    metric_list::DEFERRED_WAIT.record(route.unwrap_or(UNKNOWN_ROUTE), waited.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (route, waited);
}

/// Records the time between the moment at which a task was due and its start.
pub(crate) fn record_task_start(queue: &str, delay: Duration) {
    #[cfg(feature = "metrics")]
    metric_list::TASK_START_DELAY.record(queue, delay.as_secs_f64());
    #[cfg(not(feature = "metrics"))]
    let _ = (queue, delay);
}

/// Records a delivery of a webhook.
#[cfg_attr(not(feature = "webhook"), allow(dead_code, reason = "used by webhooks only"))]
pub(crate) fn record_webhook(result: WebhookResult) {
    #[cfg(feature = "metrics")]
    metric_list::WEBHOOKS.increment("webhook", &[result.index()]);
    #[cfg(not(feature = "metrics"))]
    let _ = result;
}

/// Records a call to the store.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "used by Redis stores only"))]
pub(crate) fn record_store_call(script: &str, outcome: StoreCallOutcome, started_at: Instant) {
    #[cfg(feature = "metrics")]
    {
        metric_list::STORE_CALLS.increment(script, &[outcome.index()]);
        metric_list::STORE_CALL.record(script, started_at.elapsed().as_secs_f64());
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (script, outcome, started_at);
}

/// Records the number of calls that are sent in one command.
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "used by Redis stores only"))]
pub(crate) fn record_batch_size(script: &str, calls: usize) {
    #[cfg(feature = "metrics")]
    {
        #[expect(clippy::cast_precision_loss, reason = "a batch has a few hundred calls")]
        metric_list::STORE_BATCH_SIZE.record(script, calls as f64);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (script, calls);
}

/// Returns the label of a lock: kind, parameter and scope, without the separators of its value.
#[cfg(feature = "metrics")]
fn lock_label(key_without_value: &str) -> &str {
    key_without_value.trim_end_matches(':')
}
