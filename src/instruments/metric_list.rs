//! All counters and histograms, with their labels and descriptions.

use super::{
    metric_family::{CounterFamily, HistogramFamily},
    outcomes::{
        DecisionOutcome, DecisionSource, EnqueueResult, HandoverVia, LockRequestOutcome,
        PushResult, RunResult, StoreCallOutcome, TaskResult, WebhookResult,
    },
};

/// Values of the label `cause` of lost locks.
pub(crate) const LOSS_CAUSES: &[&str] = &["taken", "lapsed", "held_too_long"];

/// Values of the label `mode` of decisions.
pub(crate) const MODES: &[&str] = &["enforced", "shadow"];

macro_rules! counters {
    ($($id:ident: $name:literal, $label:literal, [$($variant:literal = $values:expr),*], $help:literal;)+) => {
        $(pub(super) static $id: CounterFamily =
            CounterFamily::new($name, $label, &[$(($variant, $values)),*]);)+

        /// All counters with their descriptions.
        pub(crate) static COUNTERS: &[(&CounterFamily, &str)] = &[$((&$id, $help)),+];
    };
}

macro_rules! histograms {
    ($($id:ident: $name:literal, $label:literal, $help:literal;)+) => {
        $(pub(super) static $id: HistogramFamily = HistogramFamily::new($name, $label);)+

        /// All histograms with their descriptions.
        pub(crate) static HISTOGRAMS: &[(&HistogramFamily, &str)] = &[$((&$id, $help)),+];
    };
}

counters! {
    LOCK_REQUESTS: "lockgate_lock_requests_total", "lock",
        ["outcome" = LockRequestOutcome::LABELS], "Requests for a lock by their outcome.";
    LOCK_LOSSES: "lockgate_lock_losses_total", "lock",
        ["cause" = LOSS_CAUSES], "Locks that were lost while they were held.";
    LOCK_HANDOVERS: "lockgate_lock_handovers_total", "lock",
        ["via" = HandoverVia::LABELS], "Locks that went to a waiter of the same process.";
    DECISIONS: "lockgate_rate_limit_decisions_total", "policy",
        ["outcome" = DecisionOutcome::LABELS, "source" = DecisionSource::LABELS, "mode" = MODES],
        "Results of policies.";
    DEFERRED: "lockgate_deferred_accepted_total", "route",
        ["outcome" = EnqueueResult::LABELS], "Attempts to defer a request.";
    RUNS: "lockgate_deferred_runs_total", "route",
        ["outcome" = RunResult::LABELS], "Runs of deferred requests that have ended.";
    WEBHOOKS: "lockgate_webhooks_total", "kind",
        ["outcome" = WebhookResult::LABELS], "Attempts to deliver a webhook.";
    TASKS_PUSHED: "lockgate_tasks_pushed_total", "queue",
        ["outcome" = PushResult::LABELS], "Pushes of tasks.";
    TASK_RUNS: "lockgate_task_runs_total", "queue",
        ["outcome" = TaskResult::LABELS], "Runs of tasks that have ended.";
    STORE_CALLS: "lockgate_store_calls_total", "script",
        ["outcome" = StoreCallOutcome::LABELS], "Calls to the store.";
}

histograms! {
    LOCK_WAIT: "lockgate_lock_wait_seconds", "lock", "Time from a request for a lock to its outcome.";
    LOCK_HOLD: "lockgate_lock_hold_seconds", "lock", "Time for which a lock was held.";
    REMAINING_RATIO: "lockgate_rate_limit_remaining_ratio", "policy",
        "Part of a quota that is left after an admitted request, as of the store's answer.";
    DEFERRED_WAIT: "lockgate_deferred_wait_seconds", "route",
        "Time from the acceptance of a request to the start of its first run.";
    DEFERRED_RUN: "lockgate_deferred_run_seconds", "route", "Duration of runs.";
    TASK_RUN: "lockgate_task_run_seconds", "queue", "Duration of runs of tasks.";
    TASK_START_DELAY: "lockgate_task_start_delay_seconds", "queue",
        "Time from the moment at which a task was due to its start.";
    STORE_CALL: "lockgate_store_call_seconds", "script", "Duration of calls to the store.";
    STORE_BATCH_SIZE: "lockgate_store_batch_size", "script", "Calls sent in one command.";
}

/// Gauges that `collect` sets: name, names of the labels, description.
pub(crate) const GAUGES: &[(&str, &[&str], &str)] = &[
    ("lockgate_locks_held", &[], "Locks that this process holds."),
    ("lockgate_lock_waiters", &[], "Requests of this process that wait for a lock."),
    ("lockgate_undo_pending", &[], "Undos of dropped requests that the store has not confirmed."),
    ("lockgate_worker_slots", &["queue", "state"], "Slots of the workers of this process."),
    ("lockgate_deferred_workers", &[], "Live workers for deferred requests of all processes."),
    ("lockgate_deferred_jobs", &["state"], "Deferred requests in the store by state."),
    ("lockgate_deferred_bytes", &[], "Bytes of the deferred requests that wait or run."),
    ("lockgate_deferred_paused", &[], "1 while deferred requests are paused."),
    ("lockgate_queue_tasks", &["queue", "state"], "Tasks in the store by state."),
    ("lockgate_queue_oldest_due_seconds", &["queue"], "Time for which the oldest task is due."),
    ("lockgate_queue_bytes", &["queue"], "Bytes of the tasks that wait or run."),
    ("lockgate_queue_paused", &["queue"], "1 while the queue is paused."),
    ("lockgate_store_breaker_open", &[], "1 while the circuit breaker is open."),
    ("lockgate_build_info", &["version"], "1, with the version of the library."),
];
