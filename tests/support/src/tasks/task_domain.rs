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

/// Until all have ended once nothing is done to them any more: leases of the dead, pauses before the next attempt, and a
/// machine that has other things to do.
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

    async fn start_processes(fleet: &mut ProcessFleet<Self>, _dice: &mut SeededRng) {
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
        calm: u64,
    ) -> HistoryReport {
        let mut wrong = fleet.stop_all_processes().await;
        wrong.extend(fleet.domain.wait_for_all_tasks().await);
        let ended = (clock::now_ns() - calm) / NS_PER_MS;
        let report = fleet.domain.store.check().run().await.expect("the store is there");
        wrong.extend(report.faults().map(|fault| violation(Guarantee::N1, fault.to_string())));
        let mut history = collect_history(fleet);
        fleet.domain.record_final_states(&mut history).await;
        let (looked, mut found) = history.check();
        // At least once: a process that stood still for longer than its lease may run beside the next one.
        found.retain(|found| matches!(found.guarantee, Guarantee::D1 | Guarantee::D3));
        wrong.extend(found);
        if looked.accepted == 0 || looked.runs == 0 {
            wrong.push(violation(Guarantee::L1, "nothing was ever run".to_owned()));
        }
        let told = vec![
            format!("{looked:?}; pushed without an answer {}", history.unanswered_counts.len()),
            format!("figure: fewest tasks pushed {}", looked.accepted),
            format!("figure: all tasks ended after the faults {ended} ms"),
        ];
        HistoryReport { lines: told, violations: wrong, log_folder: None }
    }
}

impl TaskDomain {
    /// Waits until nothing waits or runs, and looks whether the counts add up.
    async fn wait_for_all_tasks(&self) -> Option<Violation> {
        let until = tokio::time::Instant::now() + COMPLETION_TIMEOUT;
        loop {
            let stats = self.queue.stats().await.expect("the store is there");
            if stats.waiting + stats.running == 0 {
                return (stats.lost > 0 || stats.done + stats.dead != stats.pushed).then(|| {
                    violation(Guarantee::D1, format!("tasks are unaccounted for: {stats:?}"))
                });
            }
            if tokio::time::Instant::now() > until {
                return Some(violation(Guarantee::L1, format!("they do not end: {stats:?}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A dead letter is known. The store keeps nothing of a task that is done, so its runs have to say it.
    async fn record_final_states(&self, history: &mut DeferredHistory) {
        for accepted in &history.accepted {
            let id = TaskId::parse(&accepted.id).expect("an id");
            let info = self.queue.get(&id).await.expect("the store is there");
            let state = match info.map(|info| info.state) {
                None => "done",
                Some(TaskState::Dead) => "dead",
                Some(_) => "waiting",
            };
            let of = |run: &&RecordedRun| run.job_id.as_deref() == Some(&*accepted.id);
            let last = history.runs.iter().filter(of).max_by_key(|run| run.started_at);
            let end = last.and_then(|run| run.end.as_ref());
            let response = end.map(|end| (end.status, end.body.clone()));
            let seen = ObservedStatus { state: state.to_owned(), reason: String::new(), response };
            history.observed_statuses.entry(accepted.id.clone()).or_default().push(seen);
        }
    }
}

fn violation(check: Guarantee, told: String) -> Violation {
    Violation { guarantee: check, description: told }
}

/// What all processes have written.
fn collect_history(fleet: &ProcessFleet<TaskDomain>) -> DeferredHistory {
    let mut history = DeferredHistory::default();
    let mut tasks = BTreeMap::<String, (u64, bool, Option<(String, u64)>)>::new();
    fleet.read_logs(|life, text| {
        history.add_log(life, text);
        for (at, line) in text.lines().filter_map(PushEvent::parse) {
            match line {
                PushEvent::Requested(name, once) => drop(tasks.insert(name, (at, once, None))),
                PushEvent::Stored(name, id) => {
                    tasks.entry(name).and_modify(|task| task.2 = Some((id, at)));
                }
            }
        }
    });
    fleet.take_disturbances().add_to_history(&mut history);
    for (resource, (sent, once, pushed)) in tasks {
        let terms =
            if once { AcceptedTerms::SINGLE_RUN } else { AcceptedTerms::retryable(MAX_ATTEMPTS) };
        match pushed {
            Some((id, told)) => {
                let task = AcceptedJob {
                    id,
                    resource,
                    sent_at: sent,
                    answered_at: told,
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
