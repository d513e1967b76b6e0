//! `TaskDomain`: faults, checks and figures of the history of tasks.

use std::{collections::BTreeMap, time::Duration};

use lockgate::{
    Store,
    queue::{Queue, TaskId, TaskState},
};

use super::{MAX_ATTEMPTS, PushEvent, QUEUE_NAME, RUN_LEASE};
use crate::{
    checker::{
        Guarantee, Violation,
        deferred::{AcceptedJob, AcceptedTerms, DeferredHistory, ObservedStatus, RecordedRun},
    },
    fleet::{
        DomainRules, FleetDomain, HistoryPlan, HistoryReport,
        InjectedFault::{self, *},
        LEASE_GRACE_PERIOD, ProcessFleet,
        clock::{self, NS_PER_MS},
        seeded_rng::SeededRng,
    },
    redis_server::{RedisServer, connect_with_long_timeout},
};

const PROCESS_COUNT: usize = 3;

/// Longest time until all tasks have ended after the faults: leases of dead processes and retry
/// backoffs, on a loaded machine.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(60);

/// The domain of tasks.
#[derive(Debug)]
pub struct TaskDomain {
    store: Store,
    queue: Queue<()>,
}

impl FleetDomain for TaskDomain {
    const NAMESPACE: &'static str = "tasks";
    const PROCESS_MODE: &'static str = "runner";
    const RULES: DomainRules = DomainRules {
        fault_weights: &[
            (Kill, 3),
            (KillAtCall, 4),
            (Stop, 2),
            (LoseReply, 4),
            (LoseMessages, 1),
            (CutCalls, 1),
            (ForgetScripts, 2),
            (Freeze, 1),
            (Restart, 1),
            (Stall, 1),
        ],
        target_scripts: &["tasks_push", "tasks_settle_and_poll", "tasks_renew"],
        lease: RUN_LEASE,
        ..DomainRules::COMMON
    };

    async fn open(server: &RedisServer) -> Self {
        let store = connect_with_long_timeout(&server.url(Self::NAMESPACE)).await;
        Self { queue: store.queue(QUEUE_NAME), store }
    }

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _rng: &mut SeededRng) {
        for _ in 0..PROCESS_COUNT {
            fleet.start_process(String::new()).await;
        }
    }

    fn grace_period(fault: InjectedFault) -> Option<Duration> {
        matches!(fault, Stop | CutCalls | Freeze | Restart | Stall).then_some(LEASE_GRACE_PERIOD)
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        _plan: &HistoryPlan,
        last_fault_end: u64,
    ) -> HistoryReport {
        let mut violations = fleet.stop_all_processes().await;
        violations.extend(fleet.domain.wait_for_all_tasks().await);
        let completion_ms = (clock::now_ns() - last_fault_end) / NS_PER_MS;
        let report = fleet.domain.store.check().run().await.expect("the store is there");
        violations.extend(report.faults().map(|fault| violation(Guarantee::N1, fault.to_string())));
        let mut history = collect_history(fleet);
        fleet.domain.record_final_states(&mut history).await;
        let (stats, mut history_violations) = history.check();
        // Execution is at least once: a process that stalls beyond its lease may run beside the
        // next one.
        history_violations
            .retain(|violation| matches!(violation.guarantee, Guarantee::D1 | Guarantee::D3));
        violations.extend(history_violations);
        if stats.accepted == 0 || stats.runs == 0 {
            violations.push(violation(Guarantee::L1, "nothing was ever run".to_owned()));
        }
        let lines = vec![
            format!("{stats:?}; pushed without an answer {}", history.unanswered_counts.len()),
            format!("figure: fewest tasks pushed {}", stats.accepted),
            format!("figure: all tasks ended after the faults {completion_ms} ms"),
        ];
        HistoryReport { lines, violations, log_folder: None }
    }
}

impl TaskDomain {
    /// Waits until no task waits or runs, and checks the sum of the counts.
    async fn wait_for_all_tasks(&self) -> Option<Violation> {
        let deadline = tokio::time::Instant::now() + COMPLETION_TIMEOUT;
        loop {
            let stats = self.queue.stats().await.expect("the store is there");
            if stats.waiting + stats.running == 0 {
                return (stats.lost > 0 || stats.done + stats.dead != stats.pushed).then(|| {
                    violation(Guarantee::D1, format!("tasks are unaccounted for: {stats:?}"))
                });
            }
            if tokio::time::Instant::now() > deadline {
                return Some(violation(Guarantee::L1, format!("they do not end: {stats:?}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The store has records of dead letters only. The state of a completed task follows from its
    /// runs.
    async fn record_final_states(&self, history: &mut DeferredHistory) {
        for accepted in &history.accepted {
            let id = accepted.id.parse::<TaskId>().expect("an id");
            let info = self.queue.get(&id).await.expect("the store is there");
            let state = match info.map(|info| info.state) {
                None => "done",
                Some(TaskState::Dead) => "dead",
                Some(_) => "waiting",
            };
            let belongs_to_task = |run: &&RecordedRun| run.job_id.as_deref() == Some(&*accepted.id);
            let last_run =
                history.runs.iter().filter(belongs_to_task).max_by_key(|run| run.started_at);
            let end = last_run.and_then(|run| run.end.as_ref());
            let response = end.map(|end| (end.status, end.body.clone()));
            let observed =
                ObservedStatus { state: state.to_owned(), reason: String::new(), response };
            history.observed_statuses.entry(accepted.id.clone()).or_default().push(observed);
        }
    }
}

fn violation(guarantee: Guarantee, description: String) -> Violation {
    Violation { guarantee, description }
}

/// Returns the records of all processes.
fn collect_history(fleet: &ProcessFleet<TaskDomain>) -> DeferredHistory {
    let mut history = DeferredHistory::default();
    let mut tasks = BTreeMap::<String, (u64, bool, Option<(String, u64)>)>::new();
    fleet.read_logs(|incarnation, text| {
        history.add_log(incarnation, text);
        for (time, line) in text.lines().filter_map(PushEvent::parse) {
            match line {
                PushEvent::Requested(name, once) => drop(tasks.insert(name, (time, once, None))),
                PushEvent::Stored(name, id) => {
                    tasks.entry(name).and_modify(|task| task.2 = Some((id, time)));
                }
            }
        }
    });
    fleet.take_disturbances().add_to_history(&mut history);
    for (resource, (sent, once, pushed)) in tasks {
        let terms =
            if once { AcceptedTerms::SINGLE_RUN } else { AcceptedTerms::retryable(MAX_ATTEMPTS) };
        match pushed {
            Some((id, stored_at)) => {
                let task = AcceptedJob {
                    id,
                    resource,
                    sent_at: sent,
                    answered_at: stored_at,
                    terms,
                    is_certain: true,
                };
                history.accepted.push(task);
            }
            None => *history.unanswered_counts.entry(resource).or_default() += 1,
        }
    }
    history
}
